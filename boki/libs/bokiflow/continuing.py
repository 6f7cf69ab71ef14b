"""`flow.continue_as_new`: the record by which a workflow begins again, and what nobody needs any more after it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final

from boki import Context
from boki.extending import Payload
from boki.libs.bokiflow.answering import trim_answers
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.inbox import InboxReader
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.machine import Machine
from boki.libs.bokiflow.mailbox import Mailbox
from boki.libs.bokiflow.records import Continued, Note, Resolved, Signalled, encode_note, inbox_tag, journal_tag
from boki.libs.bokiflow.replaying import most_payload_bytes, size_of_kept
from boki.libs.fold.retrying import until_answered

_KEPT_BYTES: Final = 1 << 16
"""Maximum size of the messages that a continuation hands on in its record, if it has room."""


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
    # what says that they are forgotten is trimmed below, so the record has to name them, also those not read so far
    end = max((high for _, high, _ in history.forgotten), default=0)
    await inbox.read_to(end)
    cursor, said = handed_on(machine.mailbox, machine.seen, history, inbox.passed, room_bytes)
    journal.add(Continued(payload, journal.place, number, **said), cursor, now_us, machine.began_us)
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
    mailbox: Mailbox, seen: int, history: History, passed: Collection[int], room_bytes: int
) -> tuple[int, dict[str, Any]]:
    """What the next round is given of the messages: from behind where it reads the inbox, and what its record says.

    `seen`: up to where this round was given them. `passed`: those that were read and are forgotten. The next round
    reads from the first one on that was not taken, and its record names what was taken since. One message that is never
    taken would hold the inbox so: each round would read all since then, and name more. So messages that are few go with
    the record where that is shorter, and then always do. Not so updates and requests to end: others look for these in
    the inbox.
    """
    left = mailbox.left
    waiting = tuple(seqnum for seqnum in left if seqnum > history.cursor)
    taken = {*mailbox.taken_since(waiting[0] if waiting else 0), *history.taken, *passed}
    kept, cursor = _encoded({seqnum: note for seqnum, note in left.items() if seqnum <= history.cursor}), seen
    if waiting:
        cursor = waiting[0] - 1
        if len(taken) > len(waiting) and all(isinstance(left[seqnum], Signalled | Resolved) for seqnum in waiting):
            all_of_them = _encoded(left)
            if size_of_kept(all_of_them) <= min(_KEPT_BYTES, room_bytes // 2):
                kept, cursor = all_of_them, seen
    return cursor, {"taken": tuple(sorted(seqnum for seqnum in taken if seqnum > cursor)), "kept": kept}


def _encoded(notes: Mapping[int, Note]) -> tuple[tuple[int, bytes], ...]:
    return tuple((seqnum, encode_note(note)) for seqnum, note in notes.items())
