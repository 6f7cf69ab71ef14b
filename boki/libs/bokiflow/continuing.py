"""`flow.continue_as_new`: the record by which a workflow begins again, and what nobody needs any more after it."""

from __future__ import annotations

from functools import partial

from boki import Context
from boki.extending import Payload
from boki.libs.bokiflow.answering import trim_answers
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.inbox import InboxReader
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.machine import Machine
from boki.libs.bokiflow.records import Continued, inbox_tag, journal_tag
from boki.libs.fold.retrying import until_answered


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
    cursor, taken = machine.mailbox.cursor(machine.seen)
    # what says that they are forgotten is trimmed below, so the record has to name them, also those not read so far
    end = max((high for _, high, _ in history.forgotten), default=0)
    await inbox.read_to(end)
    taken = tuple(sorted(seqnum for seqnum in {*taken, *history.taken, *inbox.passed} if seqnum > cursor))
    journal.add(Continued(payload, journal.place, number, taken), cursor, now_us, machine.began_us)
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
