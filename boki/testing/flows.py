"""Test your workflows: stubs for steps, a replay after every step, and a crash at every moment.

A workflow runs in a context of `boki.testing` as it does in a system, in virtual time::

    from boki.testing import flows

    async def test_travel() -> None:
        async with boki.testing.context() as ctx:
            with flows.stub(book_hotel, lambda trip: "room 7"), flows.forced_replay():
                handle = await travel.start(ctx, Trip("Rome"))
                assert (await handle.result()).hotel == "room 7"

Timers, delays between attempts and deadlines pass at once when nothing else runs. What a crash leaves behind is tried
at every moment before and after each step::

    async def test_travel_survives_every_crash() -> None:
        async for ctx in flows.every_crash():
            bank = Bank()
            with flows.stub(pay, bank.pay):
                assert await (await travel.start(ctx, Trip("Rome"))).result() == Booking(...)
            assert bank.balance == -300           # with `step.key` as the key of the payment
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from boki.libs.bokiflow.hooks import Hooks, installed
from boki.libs.bokiflow.stepping import Step
from boki.testing import Context, context

__all__ = ["every_crash", "forced_replay", "stub"]


@contextmanager
def stub(step: Step[..., Any], body: Callable[..., Any]) -> Iterator[None]:
    """Run `body` in place of the step's function: `async def` or `def`, whatever the step is.

    Its result is recorded, retried and replayed as that of the step.
    """
    before = step.body
    step.replace_body(body)
    try:
        yield
    finally:
        step.replace_body(before)


@contextmanager
def forced_replay() -> Iterator[None]:
    """Begin every workflow again, by a replay, after each event that is recorded while no step runs.

    A body that does not do the same thing twice is found by it.
    """
    with installed(_Replaying()):
        yield


async def every_crash(**options: Any) -> AsyncIterator[Context]:
    """A fresh context for each moment at which a process can die: before and after the body of each step.

    The first context has no crash, and counts the steps that its workflows run. `options` are those of
    `boki.testing.context`. After the crash the workflow continues by itself, as after the loss of a worker: a step
    whose body had run, and whose record was not written, runs again.
    """
    counted = _Counting()
    with installed(counted):
        async with context(**options) as ctx:
            yield ctx
    for moment in range(counted.count):
        with installed(_Dying(moment)):
            async with context(**options) as ctx:
                yield ctx


class _Replaying(Hooks):
    replays = True


class _Counting(Hooks):
    """Counts the moments at which a process can die."""

    def __init__(self) -> None:
        self.count = 0

    def dies(self, moment: str, step: str) -> bool:  # noqa: ARG002
        self.count += 1
        return False


class _Dying(_Counting):
    """Dies at one of them."""

    def __init__(self, moment: int) -> None:
        super().__init__()
        self._moment = moment

    def dies(self, moment: str, step: str) -> bool:
        super().dies(moment, step)
        return self.count == self._moment + 1
