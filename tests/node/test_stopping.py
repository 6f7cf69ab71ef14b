"""The time that all roles of a node that stops have together."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from boki.coordination.session import SessionState
from boki.log.ids import NodeId
from boki.log.membership import Member, Membership, Role
from boki.node.controller import ControllerIncarnation
from boki.node.coordination import SharedCoordinator
from boki.node.engine import EngineIncarnation
from boki.node.stopping import NodeStop


def test_roles_of_a_node_that_stops_share_a_deadline() -> None:
    """Whichever is asked first, and however long it took; one that begins again alone has a deadline of its own."""
    now_s = 100.0
    stop = NodeStop(lambda: now_s)
    assert stop.deadline_s(10.0) == 110.0
    now_s = 200.0
    assert stop.deadline_s(10.0) == 210.0
    stop.begin()
    now_s = 207.0
    stop.begin()
    assert stop.deadline_s(10.0) == 210.0
    assert stop.left_s(210.0) == 3.0
    assert stop.left_s(stop.deadline_s(5.0)) == 0.0


@pytest.mark.parametrize(("drain_s", "least_s"), [(10.0, 1.0), (0.25, 0.25)])
def test_an_engine_drains_for_a_moment_when_its_gateway_has_used_up_the_time(drain_s: float, least_s: float) -> None:
    """A call that began a moment ago is not cut off at once; a shorter `drain_s` is kept."""
    now_s = 100.0
    stop = NodeStop(lambda: now_s)
    stop.begin()
    now_s = 200.0
    engine: Any = SimpleNamespace(
        **{part: AsyncMock() for part in ("remote", "calls", "deployed", "functions")},
        service=None,
        config=SimpleNamespace(drain_s=drain_s),
        port=SimpleNamespace(is_ready=True),
        node_stop=stop,
        _ready=asyncio.Event(),
    )
    asyncio.run(EngineIncarnation.drain(engine))
    engine.calls.stop.assert_awaited_once_with(least_s)
    engine.functions.stop.assert_awaited_once_with(least_s)


@pytest.mark.parametrize("state", SessionState)
def test_a_controller_that_stops_withdraws_its_candidacy(state: SessionState) -> None:
    """Or it would lead until its node's session has ended, and replace none of the roles that stop after it."""
    controller: Any = SimpleNamespace(coordinator=SimpleNamespace(state=state, withdraw=AsyncMock()))
    asyncio.run(ControllerIncarnation.drain(controller))
    assert controller.coordinator.withdraw.await_count == (state is SessionState.CONNECTED)


@pytest.mark.parametrize("expires_first", [True, False])
def test_a_node_without_a_session_does_not_wait_for_engines_of_other_nodes(expires_first: bool) -> None:
    """It would not hear that they are gone, and is to begin again at once."""
    other = Member(node=NodeId("engine-2"), role=Role.ENGINE, incarnation=2, is_leaving=True)
    coordinator: Any = SimpleNamespace(state=SessionState.CONNECTED, membership=Membership(number=1, members=(other,)))

    async def body() -> None:
        shared = SharedCoordinator(coordinator, election=False, on_news=lambda _: None)
        waiting = asyncio.create_task(shared.engines_left(3600))
        if not expires_first:
            await asyncio.sleep(0)
            assert not waiting.done()
        coordinator.state = SessionState.EXPIRED
        coordinator.on_session(SessionState.EXPIRED)
        await asyncio.wait_for(waiting, 10)

    asyncio.run(body())
