"""A workflow's journal and inbox as a file: what `boki flow check` replays against new code."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context as Variables
from typing import Final

import msgspec

from boki import CallCancelled, CorruptData, LogBook, Record, Trimmed
from boki.extending import OVER, Payload
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.machine import Machine
from boki.libs.bokiflow.one_round import check_round, of_one_round, records_of
from boki.libs.bokiflow.reads import NotingWay, Reads
from boki.libs.bokiflow.records import inbox_tag, journal_tag
from boki.libs.bokiflow.replaying import Runnable, at_the_end, recorded_payload

VERSION: Final = 1
NO_PAYLOAD: Final = Payload("bytes", b"")
"""What a workflow begins with that takes no payload."""


class RecordedRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record of the journal or of the inbox, as it stood in the log."""

    seqnum: int
    time_us: int
    data: bytes


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """All that a replay of a workflow needs, besides its code."""

    version: int = VERSION
    workflow: str
    id: str
    invocation: str
    book: str
    has_ended: bool
    """Whether its body has ended: see `body_has_ended`."""
    payload: Payload | None
    """What it was started with; None: nothing."""
    journal: tuple[RecordedRecord, ...]
    inbox: tuple[RecordedRecord, ...]
    reads: Reads | None = None
    """What its code has read of stores and of the log, if it was recorded with that."""

    def history(self) -> History:
        """The journal, folded."""
        found = History()
        for record in self.journal:
            found.fold(record.data, record.seqnum)
        found.settle()
        return found


def body_has_ended(state: str, failure: str) -> bool:
    """Whether the body of a workflow has ended, by the state of that and the code of its failure: a kill ends the
    workflow alone.
    """
    return state in OVER and failure != CallCancelled.code


def encode(recorded: Recorded) -> bytes:
    """The content of the file: JSON, so that a repository shows what has changed."""
    return msgspec.json.format(msgspec.json.encode(recorded), indent=1) + b"\n"


def decode(content: bytes, where: str) -> Recorded:
    """What such a file says. `CorruptData` if it is none, or of a version that is not known."""
    try:
        found = msgspec.json.decode(content, type=Recorded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(f"{where} is no recorded workflow: {error}") from None
    if found.version > VERSION:
        raise CorruptData(
            f"{where} was recorded by a newer Boki (version {found.version}; this one reads {VERSION}): check it there"
        )
    return found


async def record(
    logbook: LogBook,
    workflow: str,
    flow_id: str,
    invocation_id: str,
    *,
    has_ended: bool,
    payload: Payload | None = None,
    code: Runnable | None = None,
) -> Recorded:
    """Read a workflow's journal and inbox. `payload` is what it was started with, where the journal does not say it.

    `code`: a replay of it finds what it reads of stores and of the log, which is recorded, too.
    """

    async def read() -> Recorded:
        found = await _records(logbook, workflow, flow_id, invocation_id, has_ended=has_ended)
        history = found.history()
        begun_with = payload or recorded_payload(history)
        reads = None if code is None else await _reads(logbook, code, found, history, begun_with)
        return msgspec.structs.replace(found, payload=begun_with, reads=reads)

    return await of_one_round(read, f"{workflow} {flow_id!r}")


async def _records(logbook: LogBook, workflow: str, flow_id: str, invocation_id: str, *, has_ended: bool) -> Recorded:
    journal = _as_recorded(await records_of(logbook, journal_tag(invocation_id)))
    inbox = _as_recorded(await records_of(logbook, inbox_tag(invocation_id)))
    await check_round(logbook, invocation_id, journal[-1].seqnum + 1 if journal else 0)
    return Recorded(
        workflow=workflow,
        id=flow_id,
        invocation=invocation_id,
        book=logbook.name,
        has_ended=has_ended,
        payload=None,
        journal=journal,
        inbox=inbox,
    )


async def _reads(
    logbook: LogBook, code: Runnable, found: Recorded, history: History, begun_with: Payload | None
) -> Reads:
    """What the code reads in a replay. What was trimmed since is missing, and a check ends there."""
    way, end = NotingWay(logbook), 0
    given = history.continued.payload if history.continued is not None else begun_with or NO_PAYLOAD
    with suppress(Trimmed):
        end = await at_the_end(logbook, code, found.invocation, found.id, history, given, _end, way)
    return way.reads(end)


def _end(machine: Machine, _variables: Variables) -> int:
    """Where the replay has taken the log to end; 0: it did not have to."""
    return machine.position.seqnum if machine.position.is_chosen else 0


def _as_recorded(records: Sequence[Record]) -> tuple[RecordedRecord, ...]:
    return tuple(RecordedRecord(one.seqnum, one.time, one.data) for one in records)
