"""Bodies of messages that are still to be taken, kept from the reading of the stream; others are read again.

What does not fit in the budget when it comes is not kept: a queue is taken from its other end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

from boki import LogBook
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.groups import Delivery
from boki.libs.bokiqueue.records import Carry, Push
from boki.libs.bokiqueue.state import Given

BODY_BUDGET_BYTES: Final = 64 * 1024 * 1024
SPENT_RECORDS: Final = 2_000


class Bodies:
    """The bodies that one process has of one queue."""

    def __init__(self) -> None:
        self._bodies: dict[int, tuple[Push | Carry, int]] = {}
        self._body_bytes = 0
        self._spent: deque[int] = deque()
        """Records of which every message was taken, oldest first: whoever was given them may not have looked yet."""

    def keep(self, seqnum: int, kind: Push | Carry, groups: int) -> None:
        """A record of messages has come, which so many groups will take."""
        size = _size(kind)
        if self._body_bytes + size <= BODY_BUDGET_BYTES:
            self._bodies[seqnum] = (kind, len(kind.bodies) * groups)
            self._body_bytes += size

    def take_out(self, given: Given) -> None:
        """Messages were taken by whomever: their bodies are needed once less."""
        for deliveries in given.takes:
            for one in deliveries or ():
                seqnum = one.spot.place[0]
                found = self._bodies.get(seqnum)
                if found is not None:
                    kind, left = found
                    self._bodies[seqnum] = (kind, left - 1)
                    if left == 1:
                        self._spent.append(seqnum)
        while self._spent and (len(self._spent) > SPENT_RECORDS or self._body_bytes > BODY_BUDGET_BYTES // 2):
            kind, _ = self._bodies.pop(self._spent.popleft())
            self._body_bytes -= _size(kind)

    async def fetch(self, logbook: LogBook, deliveries: Iterable[Delivery]) -> list[tuple[int, bytes]]:
        """(form, body) of each; read from the log where they are not here."""
        places = [one.spot.place for one in deliveries]
        lacking = {seqnum for seqnum, _ in places if seqnum not in self._bodies}
        read = dict(zip(lacking, await asyncio.gather(*(_read(logbook, s) for s in lacking)), strict=True))
        found = []
        for seqnum, index in places:
            kind = read[seqnum] if seqnum in read else self._bodies[seqnum][0]
            found.append((records.form_of(kind.forms, index), kind.bodies[index]))
        return found


def _size(kind: Push | Carry) -> int:
    return sum(map(len, kind.bodies)) + 100


async def _read(logbook: LogBook, seqnum: int) -> Push | Carry:
    kind = records.decode((await logbook.get(seqnum)).data)
    assert isinstance(kind, Push | Carry), "messages stand in such records"
    return kind
