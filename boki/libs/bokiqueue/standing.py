"""Standing takes: what consumers that wait have asked for in advance, and who gets what comes. Pure, part of the fold.

A process whose consumers wait grants **credit** with one of its acts: "give me up to n messages of this group". The
fold keeps it, and from then on a push is its own delivery: when the fold applies the push it names the consumer, so a
message costs one append, and an idle consumer none. AMQP and JetStream's pull consumers know the same as credit.

Credit is a running total (`granted`), of which the fold counts what it has given (`used`). So an act that is repeated
grants nothing twice, and messages that were on their way while an act was composed are not granted again.

**Sessions that are gone.** Credit ends `SESSION_US` after the last act of its process, which renews it while its
consumers wait. A process that was given something says so with its next act, be it an ack. If it does not, it is taken
to be gone and is given nothing more: after `SILENT_LEASE_US` what it was leased and has not heard of can be fenced, and
goes to others as if it had not been given; after `SILENT_POP_US` what it was popped becomes a dead letter that says so.
That must not be given twice, and must not be lost without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from boki.libs.bokiqueue.backlog import Backlog
from boki.libs.bokiqueue.groups import Delivery, Group
from boki.libs.bokiqueue.records import Credit

SESSION_US: Final = 10 * 60 * 1_000_000
"""Credit ends this long after the last act. A consumer that still waits then has renewed it."""
SILENT_LEASE_US: Final = 5 * 1_000_000
SILENT_POP_US: Final = 30 * 1_000_000
"""A process that was given messages acts within this time."""
MAX_CREDIT: Final = 10_000
"""Messages that one process may have asked one shard for in advance, of one group and kind."""
MAX_STANDING: Final = 10_000
"""Standing takes of a shard. Beyond that processes take by acts alone."""


class Standing(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The credit of one process.

    `since`: the act that began it. `silent_us`: when it was first given something that it has not acted upon, 0: there
    is nothing. `unheard`: (position, token) of these messages.
    """

    group: str
    taker: bytes
    lease_us: int
    since: int
    granted: int
    used: int
    until_us: int
    silent_us: int = 0
    unheard: set[tuple[int, int]] = set()

    @property
    def available(self) -> int:
        """How many messages it may still be given."""
        return min(self.granted - self.used, MAX_CREDIT)

    @property
    def ends_us(self) -> int:
        """When its process is taken to be gone, if it does not act."""
        silent_until_us = self.silent_us + (SILENT_LEASE_US if self.lease_us else SILENT_POP_US)
        return min(self.until_us, silent_until_us) if self.silent_us else self.until_us


class Handed(NamedTuple):
    """Messages that a standing take was given."""

    taker: bytes
    group: str
    lease_us: int
    deliveries: list[Delivery]


class StandingTakes:
    """The standing takes of one shard, by group, in the order in which they get their turns."""

    def __init__(self, standing: Iterable[Standing] = ()) -> None:
        self._groups: dict[str, dict[tuple[bytes, int], Standing]] = {}
        self._count = 0
        self._holders: dict[tuple[str, int, int], Standing] = {}
        """By group, position and token: who has not acted upon what it was given. A fence names thousands at once."""
        for one in standing:
            self._put(one)

    def __bool__(self) -> bool:
        return self._count > 0

    def __iter__(self) -> Iterator[Standing]:
        for standing in self._groups.values():
            yield from standing.values()

    def _put(self, one: Standing) -> None:
        self._groups.setdefault(one.group, {})[one.taker, one.lease_us] = one
        self._count += 1
        self._holders.update(((one.group, *each), one) for each in one.unheard)

    def _forget(self, one: Standing, handles: Iterable[tuple[int, int]]) -> None:
        """These are unheard of no longer."""
        for each in handles:
            one.unheard.discard(each)
            self._holders.pop((one.group, *each), None)

    def find(self, group: str, taker: bytes, lease_us: int) -> Standing | None:
        """The credit of that process, if it has any."""
        standing = self._groups.get(group)
        return None if standing is None else standing.get((taker, lease_us))

    def of(self, taker: bytes) -> list[Standing]:
        """The credit of that process, of all groups."""
        return [one for one in self if one.taker == taker]

    def heard(self, taker: bytes, kept_from: int, granted: Iterable[Credit], seqnum: int, now_us: int) -> None:
        """That process has acted, and grants this. It knows what it was given by records before `kept_from`."""
        until_us = now_us + SESSION_US
        for one in self.of(taker):
            self._forget(one, [(pos, token) for pos, token in one.unheard if token < kept_from])
            one.until_us, one.silent_us = until_us, now_us if one.unheard else 0
        for credit in granted:
            known = self.find(credit.group, taker, credit.lease_us)
            if known is not None and credit.since in (0, known.since):
                known.granted = credit.granted if credit.since else known.used + credit.granted
            elif known is None and not credit.since and self._count < MAX_STANDING:
                self._put(Standing(credit.group, taker, credit.lease_us, seqnum, credit.granted, 0, until_us))

    def forget_group(self, group: str) -> None:
        """The group was dropped, or begins again."""
        for one in list(self._groups.get(group, {}).values()):
            self.drop(one)

    def drop(self, one: Standing) -> None:
        """Its process is gone."""
        standing = self._groups[one.group]
        del standing[one.taker, one.lease_us]
        self._count -= 1
        self._forget(one, list(one.unheard))
        if not standing:
            del self._groups[one.group]

    def ended(self, now_us: int) -> list[Standing]:
        """Those whose processes are taken to be gone, and of which nothing is left but what is popped."""
        return [one for one in self if one.ends_us <= now_us and not (one.lease_us and one.unheard)]

    def next_end_us(self, group: str) -> int:
        """When the next process may be gone that has not acted upon what it was given; 0: there is none."""
        standing = self._groups.get(group, {}).values()
        return min((one.ends_us for one in standing if one.unheard), default=0)

    def unheard_pops(self, group: str) -> int:
        """Number of popped messages whose receipt is not confirmed yet."""
        return sum(len(one.unheard) for one in self._groups.get(group, {}).values() if not one.lease_us)

    def unheard(self, group: str, now_us: int) -> list[tuple[int, int]]:
        """(position, token) of leases that processes were given which are taken to be gone."""
        standing = self._groups.get(group, {}).values()
        return [each for one in standing if one.lease_us and one.ends_us <= now_us for each in sorted(one.unheard)]

    def pop_unheard(self, group: str, pos: int, token: int, now_us: int, *, is_over: bool) -> bool:
        """Forget an unconfirmed lease that is over, or whose process is gone. Whether there was one."""
        one = self._holders.get((group, pos, token))
        if one is None or not (is_over or one.ends_us <= now_us):
            return False
        self._forget(one, [(pos, token)])
        return True

    def hand_out(self, groups: Mapping[str, Group], backlog: Backlog, token: int, now_us: int) -> list[Handed]:
        """Give what can be taken now to those who have asked for it, in turns."""
        handed: list[Handed] = []
        for name, standing in self._groups.items():
            group = groups.get(name)
            if group is not None and group.may_give(backlog, now_us):
                self._hand_out(group, standing, backlog, token, now_us, handed)
        return handed

    def _hand_out(
        self,
        group: Group,
        standing: dict[tuple[bytes, int], Standing],
        backlog: Backlog,
        token: int,
        now_us: int,
        handed: list[Handed],
    ) -> None:
        waiting = [one for one in standing.values() if one.granted > one.used and one.ends_us > now_us]
        while waiting:
            for turn, one in enumerate(waiting):
                share = -(-(backlog.next_pos - group.cursor) // (len(waiting) - turn))
                deliveries = group.take(backlog, now_us, min(one.available, max(share, 1)), one.lease_us, token)
                if deliveries:
                    one.used += len(deliveries)
                    one.silent_us = one.silent_us or now_us
                    handles = [(delivery.spot.pos, token) for delivery in deliveries]
                    one.unheard.update(handles)
                    self._holders.update(((one.group, *each), one) for each in handles)
                    standing[one.taker, one.lease_us] = standing.pop((one.taker, one.lease_us))  # the last in turn
                    handed.append(Handed(one.taker, one.group, one.lease_us, deliveries))
                if group.is_dry or not deliveries:
                    return
            waiting = [one for one in waiting if one.granted > one.used]
