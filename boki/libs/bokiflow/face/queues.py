"""The places of workflows that wait: in the queue of a lock, or for their turn by a limit, as of now.

A workflow that waits is suspended, and says for what. Queues are read from the log, each once for a page of a list.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from boki import LogBook
from boki.api.logbook import LogSession
from boki.libs.bokiflow.gates.marks import FOR_ITS_TURN, gate_id_of
from boki.libs.bokiflow.gates.records import GateRecord, gate_tag
from boki.libs.bokiflow.gates.state import Gate
from boki.libs.bokiflow.locks.state import LockQueue, LockRecord, lock_tag
from boki.libs.bokiflow.locks.watching import lock_of
from boki.libs.bokiflow.records import CODEC
from boki.protocol.calls import InvocationState

_PAGE: Final = 1_000
_MAX_RECORDS: Final = 20_000
"""A queue of more records than this is not looked at: its place is not told."""


class Place(msgspec.Struct, frozen=True):
    """Where it waits for a lock or its turn: its place from 1 on, and how many wait."""

    place: int
    waiting: int


class Queues:
    """The queues that one request looks at."""

    def __init__(self, session: LogSession) -> None:
        self._session = session
        self._known: dict[tuple[str, str], list[list[str]]] = {}
        """By LogBook and tag: the calls that wait, in order. A limit has a queue for each of its keys."""

    async def place_of(self, call: InvocationState) -> Place | None:
        """Its place; of a lock, behind the holder. None: it waits in no queue."""
        note = "" if call.suspension is None else call.suspension.note
        lock = lock_of(note)
        if lock is None and not note.startswith(FOR_ITS_TURN):
            return None
        tag = gate_tag(gate_id_of(call.function, call.book)) if lock is None else lock_tag(lock)
        queues = self._known.get((call.book, tag))
        if queues is None:
            book = self._session.logbook(call.book)
            queues = await (_limited(book, tag) if lock is None else _locked(book, tag))
            self._known[call.book, tag] = queues
        queue = next((queue for queue in queues if call.id in queue), None)
        return None if queue is None else Place(queue.index(call.id) + 1, len(queue))


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


async def _locked(logbook: LogBook, tag: str) -> list[list[str]]:
    """The queue of a lock, behind the holder."""
    queue = LockQueue()
    for seqnum, _, record in await _records(logbook, tag):
        queue.apply(seqnum, record.note if isinstance(record, LockRecord) else None)
    return [[request.call for request in queue.requests[1:]]]


async def _limited(logbook: LogBook, tag: str) -> list[list[str]]:
    """The queues of a limit: of one key the highest priority is first."""
    gate = Gate()
    for seqnum, time_us, record in await _records(logbook, tag):
        if isinstance(record, GateRecord):
            gate.apply(seqnum, time_us, record.note)
    queues: dict[str, list[str]] = {}
    for one in sorted((waiting.asked for waiting in gate.waiting.values()), key=lambda asked: -asked.priority):
        queues.setdefault(one.key, []).append(one.call)
    return list(queues.values())
