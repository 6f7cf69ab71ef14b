"""`flow.continue_as_new`: the record by which a workflow begins again, and what nobody needs any more after it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from boki import Context
from boki.extending import Payload
from boki.libs.bokiflow.answering import trim_answers
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.inbox import InboxReader
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.machine import Machine
from boki.libs.bokiflow.mailbox import Mailbox
from boki.libs.bokiflow.records import Continued, Note, Signalled, encode_note, inbox_tag, journal_tag
from boki.libs.bokiflow.replaying import most_payload_bytes
from boki.libs.fold.retrying import until_answered

_KEPT_BYTES: Final = 1 << 16
"""Maximum size of the signals that a continuation hands on in its record."""


async def record_continuation(
    ctx: Context,
    machine: Machine,
    inbox: InboxReader,
    journal: JournalWriter,
    history: History,
    now_us: int,
    payload: Payload,
) -> None:
    """Record it at the end of the journal, and trim what stands in front of it."""
    number = history.continued.number + 1 if history.continued is not None else 1
    room_bytes = most_payload_bytes(ctx.logbook) - len(payload.data)
    cursor, given, kept = handed_on(machine.mailbox, machine.seen, history, room_bytes)
    # what says that they are forgotten is trimmed below, so the record has to name them, also those not read so far
    end = max((high for _, high, _ in history.forgotten), default=0)
    await inbox.read_to(end)
    taken = tuple(sorted(seqnum for seqnum in {*given, *inbox.passed} if seqnum > cursor))
    journal.add(Continued(payload, journal.place, number, taken, kept), cursor, now_us, machine.began_us)
    journal.flush()
    await journal.rest()
    if journal.error is not None:
        raise journal.error
    if not journal.is_overtaken:
        trim = ctx.logbook.trim
        run = ctx.invocation_id
        await until_answered(partial(trim, journal.last_seqnum, tag=journal_tag(run)), "a trim")
        if cursor:
            await until_answered(partial(trim, cursor + 1, tag=inbox_tag(run)), "a trim")
        if machine.mailbox.has_answered:
            await trim_answers(ctx, now_us)


def handed_on(
    mailbox: Mailbox, seen: int, history: History, room_bytes: int
) -> tuple[int, set[int], tuple[tuple[int, bytes], ...]]:
    """How the next round is given what this one, which has read up to `seen`, has not taken: from behind where it reads
    the inbox, what it leaves out there, and the signals that it is given with the record.

    A signal that nobody ever takes would hold the inbox: each round would read all since then, and its record would
    name all that was taken. So signals go with the record if that is shorter, and those that did once always do.
    """
    left = mailbox.left
    waiting = [seqnum for seqnum in left if seqnum > history.cursor]
    taken = {*mailbox.taken_since(waiting[0] if waiting else 0), *history.taken}
    if len(taken) > len(waiting) and all(isinstance(left[seqnum], Signalled) for seqnum in waiting):
        kept = _encoded(left)
        if sum(len(data) for _, data in kept) <= min(_KEPT_BYTES, room_bytes):
            return seen, taken, kept
    kept = _encoded({seqnum: note for seqnum, note in left.items() if seqnum <= history.cursor})
    return waiting[0] - 1 if waiting else seen, taken, kept


def _encoded(notes: Mapping[int, Note]) -> tuple[tuple[int, bytes], ...]:
    return tuple((seqnum, encode_note(note)) for seqnum, note in notes.items())
