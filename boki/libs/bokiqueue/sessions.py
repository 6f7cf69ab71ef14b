"""What a shard's fold remembers of the processes that take from it. Pure.

**Acts.** A process numbers its acts, and each number counts once. What its last act came to is remembered, because a
process that begins again from a checkpoint may not have heard of it; and so is what it has taken permanently, for as
long as it says that a caller may not have received it: that can be given back. There are bounds to all of it, oldest
acts first: of `MAX_TAKERS` processes, for `TAKER_US` after the last act of each, it is known how far it has counted; of
`MAX_TAKEN` messages, and of `MAX_LONG_TAKEN` if the act is longer ago than any append takes, to whom they were given.
Beyond that a process is remembered by its number alone: it is not told what its act came to, and gives nothing back.

**Standing takes.** A process whose consumers wait grants **credit** with one of its acts: "give me up to n messages of
this group". From then on a push is its own delivery: the fold names the consumer when it applies the push, so a message
costs one append, and an idle consumer none. AMQP and JetStream's pull consumers know the same as credit. Credit is a
running total (`granted`), of which the fold counts what it has given (`used`). So an act that is repeated grants
nothing twice, and messages that were on their way while an act was composed are not granted again.

**Sessions that are gone.** Credit ends `SESSION_US` after the last act of its process, which renews it while its
consumers wait. A process that was given something says so with its next act, be it an ack. If it does not, it is
taken to be gone and is given nothing more: after `SILENT_LEASE_US` what it was leased and has not confirmed can be
fenced, and goes to others as if it had not been given; after `SILENT_POP_US` what it was popped becomes a dead letter
that says so. That must not be given twice, and must not be lost without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from boki.libs.bokiqueue.groups import Backlog, Delivery, Group
from boki.libs.bokiqueue.records import MAX_NUMBER, Credit, GroupName, Handle, Later, Number, Span, Taker, Time
from boki.libs.fold.commands import Sessions

TAKER_US: Final = 15 * 60 * 1_000_000
"""A process that has not acted for this long is forgotten, with what its last act was given."""
MAX_TAKERS: Final = 10_000
MAX_TAKEN: Final = 100_000
MAX_LONG_TAKEN: Final = 10_000
LONG_US: Final = 60 * 1_000_000
"""Longer than an append may take."""
MAX_POPPED: Final = 100_000
"""Messages that one process may still give back; the oldest go first."""
SESSION_US: Final = 10 * 60 * 1_000_000
"""Credit ends this long after the last act. A consumer that still waits then has renewed it."""
SILENT_LEASE_US: Final = 5 * 1_000_000
SILENT_POP_US: Final = 30 * 1_000_000
"""A process that was given messages acts within this time."""
MAX_CREDIT: Final = 10_000
"""Messages that one process may have asked one shard for in advance, of one group and kind."""
MAX_STANDING: Final = 10_000
"""Standing takes of a shard. Beyond that processes take by acts alone."""
NEVER_US: Final = 1 << 63

_Key = tuple[Any, int]
"""A process or a group, and the length of the lease."""


class Given(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of an act: for each take its messages (None: there is no such group), for each settled message
    whether it was in the state that the verb asks for, and so has changed.
    """

    number: Number
    time_us: Time
    takes: list[list[Delivery] | None]
    settles: list[list[bool]]

    @property
    def is_forgotten(self) -> bool:
        """Only its number is known: every act takes or settles something."""
        return not self.takes and not self.settles


class Popped(msgspec.Struct, frozen=True, array_like=True):
    """What a process took permanently and may give back, as long as it does not say that a caller has received it."""

    group: str
    token: int
    deliveries: list[Delivery]
    is_standing: bool = False
    """Whether it was given to a standing take, and not to an act."""


class Takers(Sessions[Given]):
    """The processes that took from one shard lately, and what their last acts came to."""

    def __init__(self, given: dict[bytes, Given], popped: dict[bytes, list[Popped]]) -> None:
        super().__init__(given, keep_us=TAKER_US, most=MAX_TAKERS)
        self.popped = popped
        for taker, one in list(given.items()):
            self.acted(taker, one, popped.get(taker, []))

    def acted(self, taker: bytes, given: Given, popped: list[Popped]) -> None:
        """It has acted, and these pops may be given back."""
        if popped:
            self.popped[taker] = popped
        else:
            self.popped.pop(taker, None)
        count = sum([len(some) for some in given.takes if some]) + sum(map(len, given.settles))
        self.note(taker, given, count + sum([len(one.deliveries) for one in popped]))

    def add_popped(self, taker: bytes, popped: Popped) -> None:
        """Its standing take popped these. They may be given back until its next act."""
        given = self.last.get(taker)
        if given is None:
            return
        some = self.popped.setdefault(taker, [])
        some.append(popped)
        weight = self.weights.get(taker, 0) + len(popped.deliveries)
        while weight > MAX_POPPED and len(some) > 1:
            weight -= len(some.pop(0).deliveries)
        self.note(taker, given, weight)

    def lose_popped(self, taker: bytes, group: str) -> list[Delivery]:
        """It is gone: what its standing takes popped and it never confirmed."""
        given, popped = self.last.get(taker), self.popped.get(taker, [])
        lost = [one for one in popped if one.is_standing and one.group == group]
        if given is not None and lost:
            self.acted(taker, given, [one for one in popped if one not in lost])
        return [delivery for one in lost for delivery in one.deliveries]

    def forget_group(self, group: str) -> None:
        """It begins again or is no more: what was taken from it is nothing to it now."""
        for taker, given in list(self.last.items()):
            self.acted(taker, given, [one for one in self.popped.get(taker, ()) if one.group != group])

    def forget_old(self, time_us: int) -> list[bytes]:
        """Forget what was too long ago, or is too much, but not the last act. Which processes are forgotten."""
        forgotten = super().forget_old(time_us)
        for taker in forgotten:
            self.popped.pop(taker, None)
        while self.weight > MAX_LONG_TAKEN and len(self.weights) > 1:
            taker = next(iter(self.weights))
            given = self.last[taker]
            if given.time_us > time_us - LONG_US and self.weight <= MAX_TAKEN:
                break
            self.weight -= self.weights.pop(taker)
            self.popped.pop(taker, None)
            self.last[taker] = Given(given.number, given.time_us, [], [])
        return forgotten

    def deliveries(self) -> Iterator[Delivery]:
        """All messages that are remembered: their bodies may still be asked for."""
        for given in self.last.values():
            for some in given.takes:
                yield from some or ()
        for popped in self.popped.values():
            for one in popped:
                yield from one.deliveries


class Standing(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The credit of one process. `since`: the act that began it. `silent_us`: when it was first given something that
    it has not acted on, 0: there is nothing. `unheard`: (position, token) of these messages.
    """

    group: GroupName
    taker: Taker
    lease_us: Span
    since: Number
    granted: Annotated[int, Meta(ge=0)]  # checkpoints of an earlier Boki may hold more than `MAX_NUMBER`
    used: Number
    until_us: Later
    silent_us: Time = 0
    unheard: set[Handle] = set()

    @property
    def available(self) -> int:
        """How many messages it may still be given."""
        return min(self.granted - self.used, MAX_CREDIT)

    def may_take(self, now_us: int) -> bool:
        """Whether it is given what comes now: it has asked for it, and its process is not taken to be gone."""
        return self.granted > self.used and self.ends_us > now_us

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
        self._groups: dict[str, dict[_Key, Standing]] = {}
        self._takers: dict[bytes, dict[_Key, Standing]] = {}
        self._holders: dict[tuple[str, int, int], Standing] = {}
        """By group, position and token: the take that has not acted on this lease. A fence names thousands."""
        self._sound_until_us = NEVER_US
        """No process counts as gone before this: until then `ended` has nothing to look for."""
        for one in standing:
            one.granted = min(one.granted, MAX_NUMBER)
            self._put(one)

    def __bool__(self) -> bool:
        return bool(self._takers)

    def __len__(self) -> int:
        return sum(map(len, self._takers.values()))

    def __iter__(self) -> Iterator[Standing]:
        for standing in self._groups.values():
            yield from standing.values()

    def _put(self, one: Standing) -> None:
        self._groups.setdefault(one.group, {})[one.taker, one.lease_us] = one
        self._takers.setdefault(one.taker, {})[one.group, one.lease_us] = one
        if one.lease_us:
            self._holders.update(((one.group, pos, token), one) for pos, token in one.unheard)
        self._sound_until_us = min(self._sound_until_us, one.ends_us)

    def _forget(self, one: Standing, handles: Iterable[tuple[int, int]]) -> None:
        """These are unheard of no longer."""
        for each in handles:
            one.unheard.discard(each)
            self._holders.pop((one.group, *each), None)

    def find(self, group: str, taker: bytes, lease_us: int) -> Standing | None:
        """The credit of that process, if it has any."""
        return self._takers.get(taker, {}).get((group, lease_us))

    def of(self, taker: bytes) -> list[Standing]:
        """The credit of that process, of all groups."""
        return list(self._takers.get(taker, {}).values())

    def of_group(self, group: str) -> list[Standing]:
        """The credit of all processes, in turn."""
        return list(self._groups.get(group, {}).values())

    def count(self, group: str) -> int:
        """Number of takes that stand for the group."""
        return len(self._groups.get(group, ()))

    @property
    def is_full(self) -> bool:
        """Whether no standing take can be added: then processes take by acts alone."""
        return len(self) >= MAX_STANDING

    def heard(self, taker: bytes, kept_from: int, granted: Iterable[Credit], seqnum: int, now_us: int) -> None:
        """That process has acted, and grants this. It knows what it was given by records before `kept_from`."""
        until_us = now_us + SESSION_US
        for one in self.of(taker):
            self._forget(one, [(pos, token) for pos, token in one.unheard if token < kept_from])
            one.until_us, one.silent_us = until_us, now_us if one.unheard else 0
            self._sound_until_us = min(self._sound_until_us, one.ends_us)
        for credit in granted:
            known = self.find(credit.group, taker, credit.lease_us)
            if known is not None and credit.since in (0, known.since):
                total = credit.granted if credit.since else known.used + credit.granted
                known.granted = min(total, MAX_NUMBER)  # a checkpoint with more could not be read
            elif known is None and not credit.since and not self.is_full:
                self._put(Standing(credit.group, taker, credit.lease_us, seqnum, credit.granted, 0, until_us))

    def forget_group(self, group: str) -> None:
        """The group was dropped, or begins again."""
        for one in self.of_group(group):
            self.drop(one)

    def drop(self, one: Standing) -> None:
        """Its process is gone."""
        self._forget(one, list(one.unheard))
        of_group, of_taker = self._groups[one.group], self._takers[one.taker]
        del of_group[one.taker, one.lease_us], of_taker[one.group, one.lease_us]
        if not of_group:
            del self._groups[one.group]
        if not of_taker:
            del self._takers[one.taker]

    def ended(self, now_us: int) -> list[Standing]:
        """Those whose processes are taken to be gone, and of which nothing is left but what is popped."""
        if now_us < self._sound_until_us:
            return []
        self._sound_until_us = min((one.ends_us for one in self if one.ends_us > now_us), default=NEVER_US)
        return [one for one in self if one.ends_us <= now_us and not (one.lease_us and one.unheard)]

    def next_end_us(self, group: str) -> int:
        """When the next process may be gone that has not acted on what it was given; 0: there is none."""
        return min((one.ends_us for one in self._groups.get(group, {}).values() if one.unheard), default=0)

    def unheard_pops(self, group: str) -> int:
        """Number of popped messages whose receipt is not confirmed yet."""
        return sum(len(one.unheard) for one in self.of_group(group) if not one.lease_us)

    def unheard(self, group: str, now_us: int, limit: int = 1 << 62) -> list[tuple[int, int]]:
        """(position, token) of leases that processes were given which are taken to be gone."""
        gone = [one for one in self._groups.get(group, {}).values() if one.lease_us and one.ends_us <= now_us]
        return [each for one in gone for each in sorted(one.unheard)][:limit]

    def pop_unheard(self, group: str, pos: int, token: int, now_us: int, *, is_over: bool) -> bool:
        """Forget an unconfirmed lease that is over, or whose process is gone. Whether there was one."""
        one = self._holders.get((group, pos, token))
        if one is None or not (is_over or one.ends_us <= now_us):
            return False
        self._forget(one, [(pos, token)])
        if not one.unheard and one.ends_us <= now_us:
            self.drop(one)  # what it still waits for it must ask for again
        return True

    def hand_out(self, groups: Mapping[str, Group], backlog: Backlog, token: int, now_us: int) -> list[Handed]:
        """Give what can be taken now to those who have asked for it, in turns, each its share."""
        handed: list[Handed] = []
        for name, standing in self._groups.items():
            group = groups.get(name)
            while group is not None and group.may_give(backlog, now_us):
                is_one = group.ready_count(backlog) <= 1  # then there is nothing to share out
                turn = []
                for one in standing.values():
                    if one.may_take(now_us):
                        turn.append(one)
                        if is_one:
                            break
                if not turn:
                    break
                for at, one in enumerate(turn):
                    share = max(1, -(-(backlog.next_pos - group.cursor) // (len(turn) - at)))
                    deliveries = group.take(backlog, now_us, min(one.available, share), one.lease_us, token)
                    if not deliveries:
                        break
                    standing[one.taker, one.lease_us] = standing.pop((one.taker, one.lease_us))  # the last in turn
                    self._give(one, deliveries, now_us)
                    handed.append(Handed(one.taker, name, one.lease_us, deliveries))
                    if group.is_dry:
                        break
        return handed

    def _give(self, one: Standing, deliveries: list[Delivery], now_us: int) -> None:
        if not one.silent_us:
            one.silent_us = now_us
            self._sound_until_us = min(self._sound_until_us, one.ends_us)
        one.used += len(deliveries)
        for delivery in deliveries:
            handle = delivery.spot.pos, delivery.token
            one.unheard.add(handle)
            if one.lease_us:
                self._holders[one.group, *handle] = one
