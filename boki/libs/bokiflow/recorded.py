"""A workflow's journal and inbox as a file: what `boki flow check` replays against new code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from boki import CorruptData, LogBook, Record
from boki.extending import Payload
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.records import inbox_tag, journal_tag
from boki.libs.bokiflow.replaying import recorded_payload

VERSION: Final = 1
_PAGE_RECORDS: Final = 1_000


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
    payload: Payload | None
    """What it was started with; None: nothing."""
    journal: tuple[RecordedRecord, ...]
    inbox: tuple[RecordedRecord, ...]

    def history(self) -> History:
        """The journal, folded."""
        found = History()
        for record in self.journal:
            found.fold(record.data, record.seqnum)
        found.settle()
        return found


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
) -> Recorded:
    """Read a workflow's journal and inbox. `payload` is what it was started with, where the journal does not say it."""
    journal = _as_recorded(await _read(logbook, journal_tag(invocation_id)))
    inbox = _as_recorded(await _read(logbook, inbox_tag(invocation_id)))
    found = Recorded(
        workflow=workflow,
        id=flow_id,
        invocation=invocation_id,
        book=logbook.name,
        has_ended=has_ended,
        payload=payload,
        journal=journal,
        inbox=inbox,
    )
    return found if payload is not None else msgspec.structs.replace(found, payload=recorded_payload(found.history()))


async def _read(logbook: LogBook, tag: str) -> list[Record]:
    found: list[Record] = []
    start = 0
    while True:
        page = await logbook.read(tag, start=start, limit=_PAGE_RECORDS)
        if not page.records:
            return found
        found += page.records
        start = page.next_start


def _as_recorded(records: Sequence[Record]) -> tuple[RecordedRecord, ...]:
    return tuple(RecordedRecord(one.seqnum, one.time, one.data) for one in records)
