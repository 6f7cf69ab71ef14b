"""What a shard's fold remembers of those who take: how far each has counted, and what may still be asked about. Pure.

A process numbers its acts, and each number counts once. What its last act came to is remembered, because a process that
begins anew from a checkpoint may not have heard of it; and what it has taken for good, for as long as it says that
nobody may have received it: that can be given back. There are bounds to all of it, oldest acts first:

* of `MAX_TAKERS` processes, for `TAKER_US` after the last act of each, it is known how far it has counted;
* of `MAX_TAKEN` messages, and of `MAX_LONG_TAKEN` if the act is longer ago than any append takes, it is known to whom
  they were given, and what was said to who settled them. Beyond that a process is remembered by its number alone: it is
  not told what its act came to, and can give nothing back.

So processes that take once and end leave little behind, however many they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from boki.libs.bokiqueue.groups import Delivery
from boki.libs.bokiqueue.snapshots import Given, Popped

TAKER_US: Final = 15 * 60 * 1_000_000
"""A process that has acted for so long is forgotten, with what its last act was given."""
MAX_TAKERS: Final = 10_000
MAX_TAKEN: Final = 100_000
MAX_LONG_TAKEN: Final = 10_000
LONG_US: Final = 60 * 1_000_000
"""Longer than an append may take."""
MAX_POPPED: Final = 100_000
"""Messages that one taker may still give back, about; the oldest go first."""


class Takers:
    """All who took from one shard lately."""

    def __init__(self, given: dict[bytes, Given], popped: dict[bytes, list[Popped]]) -> None:
        self.given = given
        """What the last act of each came to, in the order of these acts."""
        self.popped = popped
        self._kept: dict[bytes, int] = {}
        """For how many messages each of them stands in these two, in that order; those with none are not here."""
        self._kept_count = 0
        self._count_anew()

    def counts(self, taker: bytes, number: int) -> bool:
        """Whether its act of that number has not come before."""
        last = self.given.get(taker)
        if last is None or number > last.number:
            return True
        self.note(taker, last, self.popped.get(taker))
        return False

    def unreceived(self, taker: bytes, kept_from: int) -> list[Popped]:
        """What it has popped by records from there on. The list is another one each time."""
        return [one for one in self.popped.get(taker, ()) if one.token >= kept_from]

    def note(self, taker: bytes, given: Given, popped: list[Popped] | None) -> None:
        """It has acted, and these pops may be given back."""
        self.given.pop(taker, None)
        self.given[taker] = given  # at the end: the dictionary is in the order of last acts
        if popped:
            popped = self.popped[taker] = _bounded(popped)
        else:
            self.popped.pop(taker, None)
        count = 0
        for some in given.takes:
            if some:
                count += len(some)
        for verdicts in given.settles:
            count += len(verdicts)
        if popped:
            count += _count_popped(popped)
        self._kept_count += count - self._kept.pop(taker, 0)
        if count:
            self._kept[taker] = count

    def add_popped(self, taker: bytes, popped: Popped) -> None:
        """Its standing take popped these. They may be given back until its next act."""
        given = self.given.get(taker)
        if given is not None:
            self.note(taker, given, [*self.popped.get(taker, ()), popped])

    def lose_popped(self, taker: bytes, group: str) -> list[Delivery]:
        """It is gone: what its standing takes popped and it never confirmed."""
        given, popped = self.given.get(taker), self.popped.get(taker, [])
        lost = [one for one in popped if one.is_standing and one.group == group]
        if given is not None and lost:
            self.note(taker, given, [one for one in popped if one not in lost])
        return [delivery for one in lost for delivery in one.deliveries]

    def forget_group(self, group: str) -> None:
        """It begins anew or is no more: what was taken from it is nothing to it now."""
        for taker, popped in list(self.popped.items()):
            self.popped[taker] = [one for one in popped if one.group != group]
        self._count_anew()

    def _count_anew(self) -> None:
        for taker, given in list(self.given.items()):
            self.note(taker, given, self.popped.get(taker))

    def forget_old(self, time_us: int) -> None:
        """What was too long ago, or is too much, but not the last act."""
        while self.given:
            taker, given = next(iter(self.given.items()))
            if given.time_us > time_us - TAKER_US and len(self.given) <= MAX_TAKERS:
                break
            del self.given[taker]
            self.popped.pop(taker, None)
            self._kept_count -= self._kept.pop(taker, 0)
        while self._kept_count > MAX_LONG_TAKEN and len(self._kept) > 1:
            taker = next(iter(self._kept))
            given = self.given[taker]
            if given.time_us > time_us - LONG_US and self._kept_count <= MAX_TAKEN:
                break
            self._kept_count -= self._kept.pop(taker)
            self.popped.pop(taker, None)
            self.given[taker] = Given(given.number, given.time_us, [], [])

    def deliveries(self) -> Iterator[Delivery]:
        """All messages that are remembered: their bodies may still be asked for."""
        for given in self.given.values():
            for some in given.takes:
                yield from some or ()
        for popped in self.popped.values():
            for one in popped:
                yield from one.deliveries


def _count_popped(popped: list[Popped]) -> int:
    return sum([len(one.deliveries) for one in popped])


def _bounded(popped: list[Popped]) -> list[Popped]:
    """The last of them: the oldest go first, and the newest stays however much it is."""
    count = 0
    for index in range(len(popped) - 1, -1, -1):
        count += len(popped[index].deliveries)
        if count > MAX_POPPED and index < len(popped) - 1:
            return popped[index + 1 :]
    return popped
