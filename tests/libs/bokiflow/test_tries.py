"""A try of a workflow, before its call is accepted, asks nothing of the log or of other calls, whatever the body does.

The call may still be refused, or its id may be another call's: then an effect of the try would be one too many.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from boki.api.append_gatherer import AppendGatherer
from boki.errors import BokiError
from boki.extending import Function, Suspend
from boki.libs.bokiflow import Workflow, flow, step, workflow
from boki.log.limits import DEFAULT_LIMITS
from boki.protocol.calls import PINNED, Begun, Call, CallChange, ChosenId, InvocationState, Outcome, Payload
from boki.verify.sim.flow_work import context_of
from tests.books.calls.call_world import FaultyPort, WatchedLog, a_call, now_us, run, time_passes
from tests.libs.bokiflow.golden import FEATURES, put, steps

_LONGEST_S = 5.0
"""A thousand times as long as a try may take; longer than a run waits before it reads its inbox or is suspended."""


@step(pure=True)
async def one_more(n: int) -> int:
    return n + 1


@workflow
async def computes(n: int) -> int:
    return await one_more(await one_more(n))


@workflow
async def decides(n: int) -> int:
    return await one_more(n + flow.patched("adds"))


@workflow
async def reads(n: int) -> int:
    found: int = await flow.store.read("room", default=n)
    return found


@workflow
async def begins_again(n: int) -> int:
    if n < 10:
        flow.continue_as_new(n + 1)
    return n


@workflow
async def gives_up_a_child(n: int) -> int:
    child = asyncio.ensure_future(flow.start(steps, n))
    await asyncio.sleep(0)
    child.cancel()
    return n


@workflow
async def gives_up_a_step(n: int) -> int:
    task = asyncio.ensure_future(put(n))
    await asyncio.sleep(0)
    task.cancel()
    return n


@workflow
async def fails_with_a_child(n: int) -> int:
    asyncio.ensure_future(flow.start(steps, n)).cancel()
    child = asyncio.ensure_future(flow.start(steps, n))
    await asyncio.sleep(0)
    child.cancel()
    raise ValueError("the child was never started")


@workflow
async def fails(_n: int) -> int:
    raise ValueError("before anything has happened")


@workflow
async def naps(n: int) -> int:
    await flow.sleep(0.001)
    await flow.sleep(n)
    return n


BODIES: dict[str, Workflow[int, Any]] = FEATURES | {
    one.name: one
    for one in (
        *(computes, decides, reads, begins_again, naps),
        *(gives_up_a_child, gives_up_a_step, fails_with_a_child, fails),
    )
}


class _NoCalls:
    """Other calls: what is asked of them is remembered, and refused."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def invoke(self, call: Call) -> Outcome:
        raise AssertionError(f"{call.function} was called")

    async def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        self.asked.append(f"start of {call.function}")
        return call.id

    async def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        self.asked.append(f"{change} of {invocation_id}")
        raise AssertionError("it has no call")


async def tried(one: Workflow[int, Any]) -> tuple[object, list[object], float]:
    """The outcome of a try, what it asked for, and how long it took."""
    port, calls = FaultyPort(WatchedLog(DEFAULT_LIMITS)), _NoCalls()
    known = Function.of(one)
    call = msgspec.structs.replace(
        a_call(1, one.name), payload=known.encode_payload(3), chosen=ChosenId("s", attributes={PINNED: 1})
    )
    call = msgspec.structs.replace(call, run=1, attempt=1, is_tried=True)
    ctx = context_of(call, port, AppendGatherer(port), calls, now_us)
    loop = asyncio.get_running_loop()
    ended_s: list[float] = []
    task = asyncio.ensure_future(known.run(ctx, *known.arguments_of(call)))
    task.add_done_callback(lambda _task: ended_s.append(loop.time()))
    began_s = loop.time()
    await time_passes(_LONGEST_S)
    found: object = "it is not over"
    if task.done():
        found = task.exception() or task.result()
    task.cancel()
    await asyncio.wait([task])
    return found, [*port.operations, *calls.asked], ended_s[0] - began_s


ENDS = {"computes": 5, "gives_up_a_step": 3}
"""What bodies return that need neither the log nor another call."""


@pytest.mark.parametrize("name", BODIES)
def test_a_try_asks_for_nothing(name: str) -> None:
    """It ends with what the body has computed or raised, or gives way as soon as the body needs anything else."""
    found, asked, took_s = run(tried(BODIES[name]))
    assert asked == []
    if name == "fails":
        assert isinstance(found, ValueError)
    elif name in ENDS:
        assert found == ENDS[name]
    else:
        assert isinstance(found, Suspend), found
    assert took_s == 0, "nothing puts its acceptance off"


class _Answering(_NoCalls):
    """Starts are answered with what has come of them, and questions with what is so by then."""

    def __init__(self, *results: Payload | None) -> None:
        super().__init__()
        self._results = list(results)

    async def begin_call(self, call: Call, delay_s: float, key: str | None) -> Begun:
        return Begun(await self.invoke_later(call, delay_s, key), self._results.pop(0))

    async def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        self.asked.append(f"{change} of {invocation_id}")
        payload = Payload("json", b"-1")
        return InvocationState(
            id=invocation_id, function="f", book="b", state="done", accepted_us=1, due_us=1, result=payload
        )


def test_a_handle_knows_what_its_start_has_told() -> None:
    """The first question for the result asks nobody, unless the workflow was rewound meanwhile; then others do."""

    async def scenario() -> None:
        calls = _Answering(Payload("json", b"5"), None, Payload("json", b"7"))
        port = FaultyPort(WatchedLog(DEFAULT_LIMITS))
        ctx = context_of(a_call(1), port, AppendGatherer(port), calls, now_us)
        handle = await computes.start(ctx, 3)
        assert await handle.result() == 5
        assert calls.asked == ["start of computes"]
        assert await handle.result() == -1
        assert await (await computes.start(ctx, 3)).result() == -1
        rewound = await computes.start(ctx, 3)
        with pytest.raises(BokiError):
            await rewound.rewind(7)
        assert await rewound.result() == -1

    run(scenario())
