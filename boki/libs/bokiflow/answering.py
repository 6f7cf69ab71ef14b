"""Updates and their answers: where they stand, and for how long.

Both stand in the inbox, and under a tag of their own. `flow.continue_as_new` trims the inbox. An update that is
repeated under its id must get its answer all the same, for as long as the log remembers the id
(`limits.key_window_s`): the repeated append says only where the first one stood.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from boki import Context, LogBook, Trimmed
from boki.libs.bokiflow.records import Answered, Result, Updated, inbox_tag, note_of, updates_tag
from boki.libs.fold.retrying import until_answered, until_decided

_PAGE: Final = 100


async def append_answer(ctx: Context, data: bytes, update_id: str, seqnum: int) -> None:
    """Append an answer to the update at `seqnum`, under a key: a replay makes it again. The log forgets an answer after
    its update, so a key of the id alone would swallow the answer to the next update under that.
    """
    run = ctx.invocation_id
    key = f"flow-answer:{run}:{update_id}:{seqnum}"
    append = partial(ctx.logbook.append, data, [inbox_tag(run), updates_tag(run)], key=key)
    await until_decided(append, f"an answer of workflow {run}")


async def trim_answers(ctx: Context, now_us: int) -> None:
    """Trim updates and answers whose ids the log does not remember any more: a repeated update is a new one by then."""
    tag, logbook = updates_tag(ctx.invocation_id), ctx.logbook
    forgotten_us = now_us - int(logbook.session.caller.limits.key_window_s * 1e6)
    start = until = 0
    while True:  # in most cases the first one is too young
        read = partial(logbook.read, tag, start=start, limit=_PAGE if start else 1)
        page = await until_answered(read, "updates of a workflow")
        old = [record for record in page.records if record.time < forgotten_us]
        until = old[-1].next_seqnum if old else until
        if page.is_end or len(old) < len(page.records):
            break
        start = page.next_start
    if until:
        await until_answered(partial(logbook.trim, until, tag=tag), "a trim")


async def trimmed_answer(logbook: LogBook, run: str, update: Updated, seqnum: int) -> Result | Updated | None:
    """The answer to an update that stood at that seqnum, where the inbox has been trimmed since; None: it has none yet.

    Another update that was sent under the same id, if that stood there. `Trimmed`: the update was taken, and its answer
    is not kept any more.
    """
    for is_last in (False, True):
        found = await _find(logbook, run, update, seqnum)
        if found is not None:
            return found
        page = await logbook.read(inbox_tag(run), start=seqnum, stop=seqnum + 1, limit=1)
        if page.records:
            return None
        if not is_last:
            await logbook.sync()  # whoever answered may have known of the trim before the answer
    raise Trimmed(
        f"update {update.id!r} was answered before the workflow continued as new, and its answer is not kept any more: "
        "ask for the state by a query, or send a new update under a new id",
        outcome="unknown",
        update=update.id,
    )


async def _find(logbook: LogBook, run: str, update: Updated, start: int) -> Result | Updated | None:
    is_end = False
    while not is_end:
        page = await logbook.read(updates_tag(run), start=start, limit=_PAGE)
        for record in page.records:
            note = note_of(record.data)
            if isinstance(note, Answered) and note.id == update.id:
                return note.result
            if isinstance(note, Updated) and note.id == update.id and note != update:
                return note
        start, is_end = page.next_start, page.is_end
    return None
