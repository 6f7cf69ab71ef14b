"""How many calls there may be that have not ended: those that are suspended, and what ends them."""

from __future__ import annotations

import msgspec
import pytest

from boki.errors import Overloaded
from boki.protocol.calls import ATTENDS, Attribute, Call, ChosenId
from tests.books.calls.call_world import CallWorld, a_call, run, time_passes
from tests.books.calls.test_suspended_calls import Script, asleep


def test_suspended_calls_take_no_room_from_those_that_run_and_have_a_bound() -> None:
    """The error names the bound, and where to look."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["wait"] = Script(lambda _: asleep(1_000))
        calls = await world.start(max_running=1, max_waiting=2, max_suspended=5)
        for number in range(1, 6):
            await calls.accept(a_call(number, "wait"))
            await time_passes(1)
        assert (calls.suspended_count, calls.running_count) == (5, 0)
        with pytest.raises(Overloaded, match=r"5 logged calls are suspended, .* --state suspended") as caught:
            await calls.accept(a_call(9))
        assert caught.value.details["limit"] == 5
        await calls.cancel(a_call(1).id)
        await time_passes(0.1)
        await calls.accept(a_call(9))
        await calls.stop()

    run(scenario())


def test_what_ends_suspended_calls_has_room_where_they_have_none() -> None:
    """A kill begins a call that closes the children: it was refused exactly when it would have made room. So was the
    repetition of a start whose answer was lost. Such calls have a bound, too.
    """

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["wait"] = Script(lambda _: asleep(1_000))
        calls = await world.start(max_suspended=2)

        def chosen(number: int, **attributes: Attribute) -> Call:
            return msgspec.structs.replace(a_call(number, "wait"), chosen=ChosenId("s", "fail", attributes=attributes))

        for number in (1, 2):
            await calls.accept(chosen(number))
            await time_passes(1)
        with pytest.raises(Overloaded):
            await calls.accept(chosen(3))
        assert await calls.accept(chosen(2)) == a_call(2).id
        for number in range(3, 11):
            await calls.accept(chosen(number, **{ATTENDS: "close"}))
            await time_passes(1)
        assert calls.suspended_count == 10
        with pytest.raises(Overloaded):
            await calls.accept(chosen(11, **{ATTENDS: "close"}))
        await calls.stop()

    run(scenario())
