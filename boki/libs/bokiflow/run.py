"""Runs a workflow: the body of its logged call, run after run until it has ended.

A run begins with the journal that the runs before it have left, as an `Execution`. It ends with the workflow; or when
the workflow has nothing to do but wait, which needs no process (`Suspend`); or when its code diverges from the journal,
which pauses it.
"""

from __future__ import annotations

from asyncio import CancelledError, current_task
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn, Protocol

import msgspec

from boki import CallLost, Context, InvalidArgument, NoSuchInvocation
from boki.extending import CallsById, Function, Payload, Suspend, WakeOn, decode_any, encode_any
from boki.libs.bokiflow.attempts import NO_THREAD_US
from boki.libs.bokiflow.beginning import QueryRequest
from boki.libs.bokiflow.body import Body, ContinueAsNew
from boki.libs.bokiflow.calling import Calling
from boki.libs.bokiflow.clocks import clock_of
from boki.libs.bokiflow.closing import CLOSER, close_and_look_again, close_children
from boki.libs.bokiflow.execution import TRIED, Execution, Overtaken
from boki.libs.bokiflow.gates.marks import gate_id_of, limit_of
from boki.libs.bokiflow.gates.passing import attend_gate, pass_gate
from boki.libs.bokiflow.gates.spec import Limit
from boki.libs.bokiflow.history import History, life_of, request_of
from boki.libs.bokiflow.inbox import InboxReader, unawaited
from boki.libs.bokiflow.joining import came_of
from boki.libs.bokiflow.pausing import Pause
from boki.libs.bokiflow.records import Paused, encode_note, entry_of, inbox_tag, journal_tag
from boki.libs.bokiflow.refusals import Diverged, NoThread, Unreadable
from boki.libs.bokiflow.replaying import Runnable, ask_query, join, most_payload_bytes, read_base, read_counted
from boki.libs.bokiflow.rewinding import FORKED_FROM
from boki.libs.bokiflow.run_time import GIVES_WAY, RunTime
from boki.libs.bokiflow.schedules.attendant import attend_schedule
from boki.libs.bokiflow.sweeping import Sweeps, kept_s
from boki.libs.bokiflow.upgrading import CHECKER, MOVER, move
from boki.libs.bokiflow.work import JOINS
from boki.libs.fold.retrying import until_answered

_NOTE_CHARS = 200
MAX_LOSSES: Final = 8
"""So often in a row runs may be lost without progress before their workflow is paused."""
MAX_REPLAYS: Final = 3
"""So often a replay for a query or an upgrade is begun that loses its worker, and other workflows with that."""
_REPLAYING: Final = ("query", MOVER, CHECKER)
MAX_ATTEMPTS: Final = 1_000
"""So often in a row runs may be lost with progress. What a step does may kill the worker while another one beside it
goes forward, and after 10,000 attempts the call would fail.
"""
_AGAIN = ("again", "again_if_failed")


class Limited(Runnable, Protocol):
    """What can be run, and how it is let begin."""

    limit: Limit | None


async def run_workflow(ctx: Context, workflow: Limited, arguments: tuple[Any, ...]) -> Any:
    """The result of the workflow, once it is certain. Raises what the workflow raised, or `Suspend`."""
    run_time = RunTime(ctx)
    with run_time.bounded():
        chosen = CallsById(ctx).chosen
        if chosen is not None and chosen.attends:
            return await _attend(ctx, workflow, chosen.attends)
        if not ctx.run_number:
            raise InvalidArgument(
                f"{workflow.name} is a workflow, which must be a logged call: start it with {workflow.name}.start(...),"
                " or call it under a key"
            )
        await _check_losses(ctx)
        return await _run(ctx, workflow, arguments, run_time)


async def _run(ctx: Context, workflow: Limited, arguments: tuple[Any, ...], run_time: RunTime) -> Any:
    chosen = CallsById(ctx).chosen
    life = _life(ctx)
    flow_id = ctx.invocation_id if chosen is None or not chosen.name else chosen.name
    tag = journal_tag(ctx.invocation_id)
    attributes = {} if chosen is None else chosen.attributes
    has_history = chosen is not None and (chosen.if_ended in _AGAIN or bool(chosen.copies) or FORKED_FROM in attributes)
    limit = limit_of(attributes, workflow.limit)
    _check_try(ctx, needs_log=has_history or limit is not None or JOINS in attributes)
    is_first = ctx.run_number == 1 and not has_history and limit is None
    history = History(life) if is_first else await read_counted(ctx.logbook, tag, life)
    if limit is not None and not history.has_begun:
        await pass_gate(ctx, workflow, limit, arguments[0] if arguments else None, history)
    base = await read_base(ctx.logbook, ctx.invocation_id) if JOINS in attributes else None
    keep_s, has_begun, was_overtaken = kept_s(ctx, workflow.keep_s), False, False
    while True:
        payload = CallsById(ctx).payload if history.continued is None else history.continued.payload
        if has_begun or history.continued is not None:  # each execution has its own: a body may change what it is given
            arguments = Function.of(workflow).arguments(payload)
        has_begun = True
        body = Body(history.scopes(ctx.invocation_id), flow_id, ctx.logbook.name, workflow.fn, arguments)
        body.continue_after, body.is_continued = workflow.continue_after, history.continued is not None
        body.life = life
        body.most_payload_bytes = most_payload_bytes(ctx.logbook, history)
        body.payload = payload if history.continued is None else body.payload
        if base is not None:
            join(body, base)
        execution = Execution(ctx, workflow.name, history, body, life, run_time, keep_s=keep_s, in_turn=was_overtaken)
        if is_first:
            execution.inbox.vet, is_first = partial(_is_first_life, ctx, execution, life), False
        try:
            try:
                try:
                    found = await execution.result()
                except ContinueAsNew as again:  # if that fails, the workflow has failed
                    await execution.record_continuation(again.payload)
                else:
                    await _clean_up(ctx, workflow, body)
                    execution.leave_end()
                    return found if body.joined is None else came_of(workflow, body.joined, found)
            except Overtaken:
                was_overtaken = was_overtaken or execution.journal.is_overtaken
            except NoThread as error:
                raise Suspend(clock_of(ctx).now_us() + NO_THREAD_US, note=str(error)) from error
            except (Diverged, Unreadable) as error:
                await execution.close()
                await _pause(ctx, str(error))
            except (Suspend, CancelledError, GeneratorExit):
                raise  # the workflow has not ended: another run continues it, or a kill closes its children
            except BaseException:
                await _clean_up(ctx, workflow, body)
                execution.leave_end()
                raise
        finally:
            await execution.close()
        if run_time.may_end:  # one that continues as new again and again would never come to rest
            raise Suspend(1, note=GIVES_WAY)
        history = await read_counted(ctx.logbook, tag, life, asks=execution.journal.is_overtaken)


async def _is_first_life(ctx: Context, execution: Execution, life: int) -> bool:
    """Whether no earlier life of the id has left a journal. Its call may be forgotten first, so a first run has not
    looked for one: then the execution begins again with it, because it says which messages that life was given.
    """
    last = await until_answered(partial(ctx.logbook.check_tail, journal_tag(ctx.invocation_id)))
    entry = None if last is None else entry_of(last.data)
    if last is None or (entry is not None and entry.life == life):
        return True
    execution.end(Overtaken())
    return False


def _check_try(ctx: Context, *, needs_log: bool) -> None:
    """End a try of what cannot begin or end without the log or other calls: it is to be accepted first."""
    if needs_log and CallsById(ctx).is_tried:
        raise Suspend(1, note=TRIED)


async def _check_losses(ctx: Context) -> None:
    """Pause a workflow whose runs are lost again and again without progress. One record of the journal is read, and not
    all of it: that may be what takes too much memory.
    """
    calls = CallsById(ctx)
    if ctx.run_number <= MAX_LOSSES:  # it was not paused for losses, nor is it
        return
    last = await until_answered(partial(ctx.logbook.check_tail, journal_tag(ctx.invocation_id), fresh=True))
    await _check_pause(ctx, 0 if last is None else last.seqnum)
    if calls.attempt <= MAX_LOSSES:
        return
    entry = None if last is None else entry_of(last.data)
    progress_run = 0 if entry is None or entry.life != _life(ctx) else entry.progress_run
    is_too_often = calls.attempt > MAX_ATTEMPTS
    if is_too_often or ctx.run_number - progress_run >= MAX_LOSSES:
        why = await _last_loss(ctx)
        how = f"{MAX_ATTEMPTS:,} times in a row" if is_too_often else f"{MAX_LOSSES} times in a row without progress"
        why = f"lost {how}: {why}"
        # as a message, so that other ones do not end it: the next run may kill its worker, too
        note, key = (
            encode_note(Paused(why, _life(ctx))),
            f"flow-pause:{ctx.invocation_id}:{_life(ctx):x}:{ctx.run_number}",
        )
        seqnum = await until_answered(partial(ctx.logbook.append, note, [inbox_tag(ctx.invocation_id)], key=key))
        _tell(ctx, why)
        _suspend(ctx, why, seqnum + 1)


async def _last_loss(ctx: Context) -> str:
    """How the last run of this call ended that was lost."""
    with suppress(NoSuchInvocation):  # an engine may not have heard of it yet
        error = (await until_answered(partial(CallsById(ctx).state, ctx.invocation_id))).last_error
        if error is not None:
            return error.message
    return "its worker process or its engine was lost"


async def _check_pause(ctx: Context, journal_seqnum: int) -> None:
    """Suspend a workflow again that was paused behind that last record of its journal, and woken by something else than
    the end of the pause. Without a replay, which may be what kills its worker.
    """
    inbox = InboxReader(ctx.logbook, inbox_tag(ctx.invocation_id), journal_seqnum, (), unawaited)
    inbox.lives = {_life(ctx)} - {0}
    await inbox.read_to_end()
    pause = Pause({request_of(ctx.invocation_id, _life(ctx))})
    for letter in inbox.letters:
        pause.hear(letter.note)
    if pause.reason:
        _suspend(ctx, pause.reason, inbox.next_start)


def _life(ctx: Context) -> int:
    chosen = CallsById(ctx).chosen
    return 0 if chosen is None else life_of(chosen.start)


async def _answer_query(ctx: Context, workflow: Runnable) -> Payload:
    """The call asks a workflow something: it replays that one, and changes nothing."""
    asked = msgspec.msgpack.decode(CallsById(ctx).payload.data, type=QueryRequest)
    payload = decode_any(asked.payload, f"payload of query {asked.query}")
    found = await ask_query(ctx.logbook, workflow, asked.invocation_id, asked.flow_id, asked.query, payload)
    return encode_any(found, f"answer of query {asked.query}")


async def _attend(ctx: Context, workflow: Limited, what: str) -> Any:
    """The call does not run the body: it is an attendant (`boki.libs.bokiflow.attending`), or answers a query."""
    if what in _REPLAYING and CallsById(ctx).attempt > MAX_REPLAYS:
        raise CallLost(f"a replay of {workflow.name} was lost {MAX_REPLAYS} times: {await _last_loss(ctx)}")
    if what == "query":
        return await _answer_query(ctx, workflow)
    if what in (MOVER, CHECKER):
        return await move(ctx, workflow, is_dry=what == CHECKER)
    if what == CLOSER:
        return await close_and_look_again(ctx, kept_s(ctx, workflow.keep_s))
    if what == "schedule":
        watcher = "" if workflow.limit is None else gate_id_of(workflow.name, ctx.logbook.name)
        await attend_schedule(ctx, workflow.name, watcher, kept_s(ctx, workflow.keep_s))
    if what == "gate":
        await attend_gate(ctx)
    raise InvalidArgument(
        f"{workflow.name} has no attendant {what!r:.40}: a newer Boki has started it", field="attends"
    )


async def _clean_up(ctx: Context, workflow: Runnable, body: Body) -> None:
    """The workflow is about to end: so do its children, and histories that are old enough."""
    _check_try(ctx, needs_log=body.may_have_children)
    keep_s = kept_s(ctx, workflow.keep_s)
    if body.children:
        calling = Calling(ctx, body.scopes)
        for work in body.children.values():
            await calling.close(work, keep_s)
    task = current_task()
    if body.is_continued and not (task is not None and task.cancelling()):  # one that is cut off has not ended
        chosen = CallsById(ctx).chosen
        await close_children(ctx, keep_s, is_copy=chosen is not None and bool(chosen.copies))
    ctx.logbook.session.shared(Sweeps).workflow_ended(ctx, keep_s)


async def _pause(ctx: Context, why: str) -> NoReturn:
    """Suspend the workflow until a message comes, such as one that resumes it."""
    last = await until_answered(partial(ctx.logbook.check_tail, inbox_tag(ctx.invocation_id)))
    _tell(ctx, why)
    _suspend(ctx, why, last.next_seqnum if last is not None else 0)


def _tell(ctx: Context, why: str) -> None:
    ctx.log.error("%s %s is paused: %s", ctx.function_name, ctx.invocation_id, why)


def _suspend(ctx: Context, why: str, next_start: int) -> NoReturn:
    """It is paused until there is a message from that seqnum on."""
    note = f"paused: {why}"
    wake = WakeOn(ctx.logbook.name, inbox_tag(ctx.invocation_id), next_start)
    raise Suspend(wakes=[wake], note=note if len(note) <= _NOTE_CHARS else note[: _NOTE_CHARS - 1] + "…")
