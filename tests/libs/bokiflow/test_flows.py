"""What `boki.testing.flows` offers for tests of workflows: stubs, forced replay, and a crash at every moment."""

from collections import Counter
from typing import Any

import pytest

import boki.testing
from boki.libs.bokiflow import OutcomeUnknown, flow, step, workflow
from boki.testing import flows


class Bank:
    """Takes payments, once under a key."""

    def __init__(self) -> None:
        self.payments: dict[str, int] = {}
        self.calls = 0

    async def pay(self, cents: int) -> int:
        self.calls += 1
        self.payments.setdefault(step.key, cents)
        return cents


@step
async def pay(cents: int) -> int:
    raise AssertionError("tests have a stub for it")


@step
def send(what: str) -> str:
    raise AssertionError("tests have a stub for it")


@step(at_most_once=True)
async def launch() -> str:
    raise AssertionError("tests have a stub for it")


@workflow
async def order(cents: int) -> list[Any]:
    said: list[Any] = [await pay(cents)]
    await flow.sleep(3600)
    said.append(await flow.run(send, "parcel"))
    try:
        said.append(await launch())
    except OutcomeUnknown:
        said.append("unknown")
    return [*said, await pay(-cents)]


async def test_stubs(boki_context: boki.testing.Context) -> None:
    """They stand in for the bodies of steps, of both kinds, and are gone afterwards."""
    bank = Bank()
    with flows.stub(pay, bank.pay), flows.stub(send, str.upper), flows.stub(launch, lambda: "launched"):
        assert await (await order.start(boki_context, 5)).result() == [5, "PARCEL", "launched", -5]
    assert (pay.body, send.body) == (pay.fn, send.fn)


async def test_every_crash() -> None:
    """At each moment before and after a step: what takes its key happens once, what runs at most once never twice."""
    seen, calls = [], Counter[int]()
    async for ctx in flows.every_crash(book="orders"):
        bank, launched = Bank(), Counter[str]()

        def fire(launched: Counter[str] = launched) -> str:
            launched["rocket"] += 1
            return "launched"

        with flows.stub(pay, bank.pay), flows.stub(send, str.upper), flows.stub(launch, fire):
            result = await (await order.start(ctx, 5)).result()
        assert result[:2] + result[3:] == [5, "PARCEL", -5]
        assert sorted(bank.payments.values()) == [-5, 5]
        assert launched["rocket"] <= 1
        assert result[2] == "unknown" or launched["rocket"] == 1
        seen.append(result[2])
        calls[bank.calls] += 1
    assert len(seen) == 9  # once without a crash, and before and after each of four steps
    assert seen.count("unknown") == 2
    assert calls == {2: 7, 3: 2}


async def test_forced_replay_finds_what_is_not_deterministic(boki_context: boki.testing.Context) -> None:
    """A body that does something else the second time is paused, with both sides named."""
    runs = Counter[str]()

    @step
    async def look(n: int) -> int:
        return n

    @workflow
    async def moody() -> None:
        runs["moody"] += 1
        await look(runs["moody"])
        await flow.sleep(10)

    with flows.forced_replay():
        handle = await moody.start(boki_context)
        await boki_context.clock.advance(5)
        state = await handle.status()
    assert state.status == "paused"
    assert "recorded was look#0, and the code started look#0" in state.note
    assert runs["moody"] == 2


async def test_the_hooks_are_gone_afterwards(boki_context: boki.testing.Context) -> None:
    """Also if the test fails in between."""
    with pytest.raises(ZeroDivisionError), flows.forced_replay(), flows.stub(send, str.upper):
        raise ZeroDivisionError
    assert send.body is send.fn
