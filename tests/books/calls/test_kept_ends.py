"""The end of a call is kept for the unfinished call that it reports to, however long that sleeps or is paused."""

from __future__ import annotations

import msgspec
import pytest

from boki.books.calls import trimming
from boki.books.calls.ledger import Finished
from boki.errors import NoSuchInvocation
from boki.protocol.calls import ATTENDS, Attribute, Call, CallFilter, ChosenId, Payload
from tests.books.calls.call_world import CallWorld, Gate, a_call, run

KEEP_S = 3600.0


def chosen(number: int, function: str = "echo", *, reports_to: str = "", **attributes: Attribute) -> Call:
    """A call under an id that its caller has chosen, as workflows start them."""
    how = ChosenId("a start", reports_to=reports_to, attributes=attributes)
    return msgspec.structs.replace(a_call(number, function), chosen=how)


async def hours_pass(world: CallWorld, *, first: int, hours: int) -> None:
    """As long as that, with a call in each hour, so that there is something to trim."""
    for number in range(first, first + hours):
        await world.calls.accept(a_call(number), delay_s=KEEP_S)
        await world.calls.state(a_call(number).id, wait_s=2 * KEEP_S)


def test_an_end_is_kept_for_the_call_that_it_reports_to() -> None:
    """The child's outcome can be asked for, and a repeated start begins nothing, as long as the parent is unfinished;
    also across a restart. Lists do not show it for longer than others. Then it is trimmed.
    """

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["parent"] = Gate()
        await world.start(keep_s=KEEP_S)
        await world.calls.accept(chosen(1, "parent"))
        await gate.started.wait()
        child, other = chosen(2, reports_to=a_call(1).id), chosen(3)
        for call in (child, other):
            await world.calls.accept(call)
        ended = await world.calls.state(child.id, wait_s=1)
        await hours_pass(world, first=100, hours=4)
        await world.kill()
        await world.start(keep_s=KEEP_S)
        await hours_pass(world, first=200, hours=4)

        assert await world.calls.state(child.id) == ended
        assert ended.result == Payload("json", b'"hello"')
        begun = sum(call.id == child.id for call in world.ran)
        await world.calls.accept(child)
        assert sum(call.id == child.id for call in world.ran) == begun == 1
        listed = await world.calls.page(CallFilter(states=("done",)))
        assert child.id not in [state.id for state in listed.calls]
        assert len(world.entries()) < 12
        with pytest.raises(NoSuchInvocation):
            await world.calls.state(other.id)

        gate.opened.set()
        assert (await world.calls.state(a_call(1).id, wait_s=10)).state == "done"
        await hours_pass(world, first=300, hours=4)
        with pytest.raises(NoSuchInvocation):
            await world.calls.state(child.id)
        await world.calls.stop()

    run(scenario())


def test_of_one_call_the_newest_ends_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workflow that runs for years may have thousands of children that have ended."""
    monkeypatch.setattr(trimming, "_ENDS_OF_ONE", 2)

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["parent"] = Gate()
        await world.start(keep_s=KEEP_S)
        await world.calls.accept(chosen(1, "parent"))
        await gate.started.wait()
        for number in (2, 3, 4):
            await world.calls.accept(chosen(number, reports_to=a_call(1).id))
            await world.calls.state(a_call(number).id, wait_s=1)
        await hours_pass(world, first=100, hours=4)
        with pytest.raises(NoSuchInvocation):
            await world.calls.state(a_call(2).id)
        for number in (3, 4):
            assert (await world.calls.state(a_call(number).id)).state == "done"
        kept = [entry.id for entry in world.entries() if isinstance(entry, Finished) and entry.ended_us]
        assert kept[-2:] == [a_call(3).id, a_call(4).id], "in their order, by which the next trim knows the newest"
        gate.opened.set()
        await world.calls.stop()

    run(scenario())


def test_the_ends_that_a_call_without_an_end_attends_to_are_trimmed() -> None:
    """A schedule reads the ends of its workflows as they come, and would keep those of years."""

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["parent"] = Gate()
        await world.start(keep_s=KEEP_S)
        await world.calls.accept(chosen(1, "parent", **{ATTENDS: "schedule"}))
        await gate.started.wait()
        await world.calls.accept(chosen(2, reports_to=a_call(1).id))
        await hours_pass(world, first=100, hours=4)
        with pytest.raises(NoSuchInvocation):
            await world.calls.state(a_call(2).id)
        gate.opened.set()
        await world.calls.stop()

    run(scenario())
