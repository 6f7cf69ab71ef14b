"""Acts for one schedule: starts the workflows of its ticks, and ends those that are to make room."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NoReturn

from boki import Context, KeyReused, NoSuchInvocation, TooLarge, WrongState
from boki.extending import OVER, PINNED, Attribute, CallsById, invocation_id_of
from boki.libs.bokiflow.attending import Attending
from boki.libs.bokiflow.clocks import clock_of
from boki.libs.bokiflow.closing import kill_tree
from boki.libs.bokiflow.history import life_of
from boki.libs.bokiflow.records import CancelRequested, encode_note, inbox_tag
from boki.libs.bokiflow.schedules.state import CODEC, Decided, Fold, Note, schedule_tag
from boki.libs.fold.retrying import until_answered

BY: Final = "boki:schedule"
"""The attribute of workflows that a schedule has started: its id."""


def run_id(schedule: str, key: str) -> str:
    """The id of the workflow that a schedule starts for a tick."""
    return f"{schedule}@{key}"


def start_of(key: str) -> str:
    """Names the start of the workflow of a tick."""
    return f"schedule {key}"


def own_attributes(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Those of an attendant that the workflows of its ticks get."""
    return {name: value for name, value in attributes.items() if not name.startswith("boki:")}


async def attend_schedule(ctx: Context, workflow: str, watcher: str, keep_s: float) -> NoReturn:
    """One run of a schedule's attendant. `watcher`: the call that waits for the ends of its workflows as well.
    `keep_s`: for how long what they leave is kept.
    """
    await _Attendant(ctx, workflow, watcher, keep_s).run()


class _Attendant:
    """See `attend_schedule`."""

    def __init__(self, ctx: Context, workflow: str, watcher: str, keep_s: float) -> None:
        self._watcher = watcher
        self._keep_s = keep_s
        self._ctx = ctx
        self._calls = CallsById(ctx)
        self._workflow = workflow
        chosen = self._calls.chosen
        assert chosen is not None, "an attendant's id is chosen"
        self._name = chosen.name
        self._attributes = {**own_attributes(chosen.attributes), BY: chosen.name, PINNED: 0}
        self._state = _State(chosen.name, workflow, ctx.logbook.name)
        self._now_us = clock_of(ctx).now_us
        self._sure_us = int(ctx.logbook.session.caller.limits.key_window_s * 1e6) // 2
        """For this long after a decision an unknown workflow was never started. Ended calls are kept for
        `keep_calls_s`, which is at least `key_window_s`; the other half is for clocks that differ."""

    async def run(self) -> NoReturn:
        """Act, and suspend."""
        tag = schedule_tag(self._ctx.invocation_id)
        await Attending[Note, Decided](self._ctx, tag, CODEC, self._state, self._act).run(self._recover)
        raise AssertionError("it was suspended")

    async def _act(self, decided: Decided) -> None:
        started = [act.key for act in decided.acts if act.verdict == "started"]
        if decided.closed:
            await self._close()
        for key in started:
            await self._start(key)

    async def _recover(self) -> None:
        """What was decided before this run."""
        for key, decided_us in list(self._state.running.items()):
            try:
                state = await self._calls.state(self._state.call_id(key))
            except NoSuchInvocation:
                if self._now_us() - decided_us < self._sure_us:
                    await self._start(key)
                else:  # it may have ended, and be forgotten: a start would run it twice
                    self._state.end(self._state.call_id(key), 0)
            else:
                if state.state in OVER:
                    self._state.end(state.id, 0)
        await self._close()

    async def _start(self, key: str) -> None:
        flow_id, call_id = run_id(self._name, key), self._state.call_id(key)
        start = partial(
            self._calls.start,
            call_id,
            self._workflow,
            self._calls.payload,
            book=self._ctx.logbook.name,
            start=start_of(key),
            name=flow_id,
            reports_to=self._ctx.invocation_id,
            attributes=self._attributes,
            watcher=self._watcher,
        )
        try:
            await until_answered(start)
        except KeyReused:
            self._ctx.log.error("%s was started by somebody else with another payload: the schedule leaves it", flow_id)
            self._state.end(call_id, 0)
            return
        except TooLarge as error:  # an earlier version has accepted the payload: no error that passes
            self._ctx.log.error("%s was not started: %s", flow_id, error)
            self._state.end(call_id, 0)
            return
        if (await self._calls.state(call_id)).state in OVER:  # that was before: nothing will tell
            self._state.end(call_id, 0)

    async def _close(self) -> None:
        for key in sorted(self._state.leaving):
            call_id = self._state.call_id(key)
            try:
                state = await self._calls.state(call_id)
                if state.attributes.get(BY) != self._name:  # it has ended, and another caller has begun its id again
                    self._state.end(call_id, 0)
                elif self._state.closing == "kill":
                    await kill_tree(self._ctx, call_id, self._keep_s, state.life_us)
                elif state.state in OVER:  # a later workflow of that id would be cancelled
                    self._state.end(call_id, 0)
                else:
                    why = f"schedule {self._name} has come to its next tick"
                    note = encode_note(CancelRequested(why, life_of(start_of(key))))
                    await self._ctx.logbook.append(note, [inbox_tag(call_id)], key=f"flow-close:{call_id}")
            except (WrongState, NoSuchInvocation):
                pass  # it has ended


class _State(Fold):
    """The fold, which knows the ids of its calls."""

    def __init__(self, name: str, workflow: str, book: str) -> None:
        super().__init__(name)
        self._workflow = workflow
        self._book = book
        self._keys: dict[str, str] = {}

    def call_id(self, key: str) -> str:
        """The invocation id of the workflow of a tick."""
        found = invocation_id_of(self._workflow, self._book, run_id(self.name, key))
        self._keys[found] = key
        return found

    def end(self, invocation_id: str, next_seqnum: int) -> None:
        """See `boki.libs.bokiflow.attending.Deciding`."""
        key = self._keys.get(invocation_id)
        if key in self.running:
            self.ended[key] = next_seqnum
