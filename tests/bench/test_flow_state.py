"""The grid of `boki bench flow-state`: what is cold is read from the log, what is warm is known, and rounds differ."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

import boki.testing
from boki import Context
from boki.bench import flow_state
from boki.bench.load_functions import flow_state_load
from boki.bench.load_functions.flow_state_load import Operations, StateLoad, fill_state, operate
from boki.bench.rows import Round
from boki.bench.system import Options
from boki.libs.bokistore.memory import Memory
from boki.log.memory import MemoryLog
from boki.log.operations import Answer, Operation, Read


class Listening(MemoryLog):
    """Notes which objects are read from their first record on."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def answer(self, operation: Operation, now_us: int) -> Answer:
        if isinstance(operation, Read) and not operation.start and not operation.backward:
            self.opened += [operation.tag or ""] if (operation.tag or "").startswith("!o:k") else []
        return super().answer(operation, now_us)


@pytest.fixture(autouse=True)
def few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_state_load, "KEYS", 20)


async def filled(log: Listening, use: Callable[[boki.testing.Context], Any]) -> None:
    async with boki.testing.context(flow_state_load.BOOK, log=log) as ctx:
        assert await ctx.invoke(fill_state, None) == 20
        log.opened.clear()
        await use(ctx)


async def test_cold_objects_are_read_from_the_log_by_the_worker_that_has_made_them() -> None:
    """Each one that a workflow reads, in each workflow; what it writes it need not read."""
    log = Listening()

    async def use(ctx: boki.testing.Context) -> None:
        for _ in range(2):
            log.opened.clear()
            todo = Operations([3, 4, 5], [True, True, False])
            assert await (await operate.start(ctx, todo)).result() == 2
            assert sorted(log.opened) == ["!o:k3", "!o:k4"]

    await filled(log, use)


async def test_warm_objects_are_known() -> None:
    """All of them are, from the first workflow of a worker on."""
    log = Listening()

    async def use(ctx: boki.testing.Context) -> None:
        ctx.logbook.session.shared(Memory).forget()
        for number in range(3):
            todo = Operations([3, 4, 5], [True, True, False], is_cold=False)
            assert await (await operate.start(ctx, todo)).result() == 2
            assert len(log.opened) == 20, number

    await filled(log, use)


async def test_rounds_draw_other_keys_and_both_kinds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure of one draw would be that of its keys."""
    drawn: list[list[int]] = []

    async def note(_ctx: Context, todo: Operations) -> Any:
        drawn.append(todo.keys)
        raise boki.Overloaded("enough")

    async def once(run: Callable[[int], Any], _callers: int, _duration_s: float) -> Round:
        with pytest.raises(boki.Overloaded):
            await run(0)
        return Round(0, 0, 1.0, None, None)

    monkeypatch.setattr(operate, "start", note, raising=False)
    monkeypatch.setattr(flow_state_load, "closed_loop", once)
    async with boki.testing.context(flow_state_load.BOOK) as ctx:
        for number, is_cold in ((1, True), (1, False), (2, True)):
            load = StateLoad(5, 5, round=number, is_cold=is_cold)
            await ctx.invoke(flow_state_load.flow_state_load, load)
    one, same, other = drawn
    assert one == same != other


def test_rows_say_which_objects_are_cold_and_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mix twice, and what is lost once; rounds are numbered, and the first one only warms up."""
    loads: list[StateLoad] = []

    class System:
        def run(self, _name: str, load: Any, _kind: Any) -> Any:
            if isinstance(load, StateLoad):
                loads.append(load)
                return Round(10, 0, 1.0, 2.0, 9.0, 100.0 if load.round == 0 else 3.0)
            return 20

    monkeypatch.setattr(flow_state, "target", lambda _: nullcontext(System()))
    rows = list(flow_state.flow_state(Options(rounds=2, inflight=(1,)), lambda _: None))
    kinds = [(row.details["reads"], row.details["failure_rate"], row.details["objects"]) for row in rows]
    assert kinds == [
        *((reads, 0.0, kind) for reads, _ in flow_state.MIXES for kind in ("cold", "warm")),
        *((5, rate, "cold") for rate in flow_state.FAILURES),
    ]
    assert {row.details["mean_ms"] for row in rows} == {3.0}
    assert [load.round for load in loads[:3]] == [0, 1, 2]
