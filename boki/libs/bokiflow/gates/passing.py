"""What a workflow does before it begins, if it has a limit: it asks, and is suspended until that is decided."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn

from boki import BokiError, ConditionFailed, Context, Expect
from boki.extending import ANY_VERSION, ATTENDS, CallsById, Suspend, WakeOn, changes_of
from boki.libs.bokiflow.attending import Attending
from boki.libs.bokiflow.beginning import has_ended, next_change
from boki.libs.bokiflow.clocks import clock_of
from boki.libs.bokiflow.gates.marks import FOR_ITS_TURN, PRIORITY, gate_id_of, key_of
from boki.libs.bokiflow.gates.records import Admission, Asked, GateNote, GateRecord, Running, gate_tag
from boki.libs.bokiflow.gates.spec import Limit, describe
from boki.libs.bokiflow.gates.state import Gate
from boki.libs.bokiflow.history import History, request_of
from boki.libs.bokiflow.inbox import InboxReader
from boki.libs.bokiflow.records import (
    CODEC,
    CancelRequested,
    Ended,
    Entry,
    encode_entry,
    ended_tag,
    inbox_tag,
    journal_tag,
)
from boki.libs.bokiflow.refusals import cancelled
from boki.libs.bokiflow.replaying import Runnable
from boki.libs.bokiflow.sweeping import kept_s
from boki.libs.fold.retrying import until_answered, until_decided

_PAUSE_US: Final = 2_000_000
"""After an error that may pass."""
_LOOKED_AT: Final = 100
"""Of this many workflows that were let begin last, an attendant that starts checks whether they have ended."""


async def pass_gate(ctx: Context, runnable: Runnable, limit: Limit, payload: Any, history: History) -> None:
    """Return when the workflow may begin. `WorkflowCancelled`: it may not. Raises `Suspend` until that is decided."""
    workflow, request, tag = runnable.name, request_of(ctx.invocation_id, history.life), inbox_tag(ctx.invocation_id)
    inbox = InboxReader(ctx.logbook, tag, history.cursor, (), lambda: None, history.forgotten)
    inbox.lives = history.lives
    await until_answered(inbox.read_to_end)
    for letter in inbox.letters:
        match letter.note:
            case Admission(admitted=admitted) if request in admitted:
                return
            case Admission(refused=refused) if (why := dict(refused).get(request)) is not None:
                await _record_end(ctx, history, letter.seqnum, kept_s(ctx, runnable.keep_s))
                raise cancelled(workflow, why)
            case CancelRequested(reason=reason):
                await _record_end(ctx, history, letter.seqnum, kept_s(ctx, runnable.keep_s))
                raise cancelled(workflow, reason)
            case _:
                pass
    chosen = CallsById(ctx).chosen
    attributes = {} if chosen is None else chosen.attributes
    key = key_of(limit, attributes, payload)
    gate_id = gate_id_of(workflow, ctx.logbook.name)
    is_unreported = chosen is None or chosen.watcher != gate_id
    asked = Asked(request, ctx.invocation_id, key, int(attributes.get(PRIORITY, 0)), limit, is_unreported)
    note, again_us = f"{FOR_ITS_TURN}: {describe(limit, key)}", 0
    try:
        await ctx.logbook.append(CODEC.encode(GateRecord(asked)), [gate_tag(gate_id)], key=f"flow-gate:{request}")
        await _start_attendant(ctx, workflow, gate_id)
    except BokiError as error:
        if not error.retryable and error.outcome != "unknown":
            raise
        again_us = clock_of(ctx).now_us() + _PAUSE_US  # all of it may be repeated
    raise Suspend(again_us, [WakeOn(ctx.logbook.name, tag, inbox.next_start)], note[:200])


async def _record_end(ctx: Context, history: History, seen: int, keep_s: float) -> None:
    """Record in the journal that this life has ended without having begun, by the message at `seen`: a later one reads
    what comes behind that, and is not cancelled by the same request.
    """
    if history.has_ended:
        return  # the run that has recorded it was lost
    tag = journal_tag(ctx.invocation_id)
    now_us = clock_of(ctx).now_us()
    entry = Entry(0, history.place, seen, now_us, Ended(now_us), 0, history.life)
    when = Expect(tag, count=history.place)
    append = partial(ctx.logbook.append, encode_entry(entry), [tag, ended_tag(keep_s)], when=when)
    with suppress(ConditionFailed):  # another run of the same life has recorded it
        await until_decided(append, f"the end of workflow {ctx.invocation_id}")


async def _start_attendant(ctx: Context, workflow: str, gate_id: str) -> None:
    await CallsById(ctx).start(
        gate_id,
        workflow,
        b"",
        if_ended="again",
        book=ctx.logbook.name,
        name="boki:gate",
        attributes={ATTENDS: "gate", ANY_VERSION: True},
    )


class _Codec:
    """Records of flow control, as an attendant reads and writes them."""

    @staticmethod
    def encode(note: GateNote) -> bytes:
        return CODEC.encode(GateRecord(note))

    @staticmethod
    def own(data: bytes) -> GateNote | None:
        record = CODEC.own(data)
        return record.note if isinstance(record, GateRecord) else None


async def attend_gate(ctx: Context) -> NoReturn:
    """One run of the attendant that lets workflows begin."""
    gate, calls = Gate(), CallsById(ctx)
    sure_us = int(ctx.logbook.session.caller.limits.key_window_s * 1e6) // 2  # see schedules
    changed: dict[str, WakeOn] = {}

    async def look(some: list[Running]) -> None:
        for one in some:
            if one.is_unreported:
                changed[one.call] = await next_change(ctx, one.call)  # seen before its state
            is_over = await has_ended(calls, one.call)
            if is_over or (is_over is None and clock_of(ctx).now_us() - one.at_us > sure_us):
                gate.end(one.call, 0)

    async def act(decided: Admission) -> None:
        """It is done by its record. What was killed before it was let begin has ended without an end to come."""
        await look([gate.running[one] for one in decided.admitted if one in gate.running])

    async def recover() -> None:
        running = list(gate.running.values())
        await look([one for one in running[:-_LOOKED_AT] if one.is_unreported] + running[-_LOOKED_AT:])

    def others() -> list[WakeOn]:
        """The changes of those that run and do not report their ends, if anything waits for a place."""
        if not gate.waiting:
            return []
        return [changed.get(one.call, changes_of(one.call)) for one in gate.running.values() if one.is_unreported]

    def told(note: GateNote) -> list[str]:
        return [inbox_tag(call) for call in gate.calls_of(note)] if isinstance(note, Admission) else []

    tag = gate_tag(ctx.invocation_id)
    await Attending[GateNote, Admission](ctx, tag, _Codec(), gate, act, told, others).run(recover)
    raise AssertionError("it was suspended")
