"""The places of workflows that wait: in the queue of a lock, or for their turn by a limit, as of now.

A workflow that waits is suspended, and says for what. Its queue is read from the log: each once for a page of a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from boki import LogBook
from boki.api.logbook import LogSession
from boki.libs.bokiflow.gates.marks import gate_id_of
from boki.libs.bokiflow.gates.records import GateRecord, gate_tag
from boki.libs.bokiflow.gates.state import Gate
from boki.libs.bokiflow.locks.state import LockQueue, LockRecord, lock_tag
from boki.libs.bokiflow.records import CODEC
from boki.protocol.calls import InvocationState

FOR_ITS_TURN: Final = "waits for its turn"
_FOR_LOCK: Final = re.compile(r"waits for lock (.*?), which ")
_PAGE: Final = 1_000
_MAX_RECORDS: Final = 20_000
"""A queue of more records than this is not looked at: its place is not told."""


class Queues:
    """The queues that one request looks at."""

    def __init__(self, session: LogSession) -> None:
        self._session = session
        self._known: dict[tuple[str, str], list[str]] = {}
        """The calls in each queue, by LogBook and tag."""

    async def place_of(self, call: InvocationState) -> dict[str, int] | None:
        """Its place from 1 on, and how many wait; of a lock, behind the holder. None: it waits in no queue."""
        note = "" if call.suspension is None else call.suspension.note
        lock = _FOR_LOCK.match(note)
        if lock is None and not note.startswith(FOR_ITS_TURN):
            return None
        tag = gate_tag(gate_id_of(call.function, call.book)) if lock is None else lock_tag(lock[1])
        found = self._known.get((call.book, tag))
        if found is None:
            book = self._session.logbook(call.book)
            found = await (_limited(book, tag, call.id) if lock is None else _locked(book, tag))
            if lock is not None:  # those of a limit have a queue for each key
                self._known[call.book, tag] = found
        return {"place": found.index(call.id) + 1, "waiting": len(found)} if call.id in found else None


async def _records(logbook: LogBook, tag: str) -> list[tuple[int, int, Any]]:
    found: list[tuple[int, int, Any]] = []
    start = 0
    while len(found) < _MAX_RECORDS:
        page = await logbook.read(tag, start=start, limit=_PAGE)
        if not page.records:
            return found
        found += ((record.seqnum, record.time, CODEC.own(record.data)) for record in page.records)
        start = page.next_start
    return []


async def _locked(logbook: LogBook, tag: str) -> list[str]:
    """Who waits for a lock, in order."""
    queue = LockQueue()
    for seqnum, _, record in await _records(logbook, tag):
        queue.apply(seqnum, record.note if isinstance(record, LockRecord) else None)
    return [request.call for request in queue.requests[1:]]


async def _limited(logbook: LogBook, tag: str, call: str) -> list[str]:
    """Who waits with that call for the same key of a limit, in order."""
    gate = Gate()
    for seqnum, time_us, record in await _records(logbook, tag):
        if isinstance(record, GateRecord):
            gate.apply(seqnum, time_us, record.note)
    keys = {one.asked.key for one in gate.waiting.values() if one.asked.call == call}
    return _in_order(one.asked for one in gate.waiting.values() if one.asked.key in keys)


def _in_order(asked: Iterable[Any]) -> list[str]:
    return [one.call for one in sorted(asked, key=lambda one: -one.priority)]
