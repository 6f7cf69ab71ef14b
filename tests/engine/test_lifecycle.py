"""The life of an engine: which stage follows which, and what its shell hears of it."""

from __future__ import annotations

import pytest

from boki.engine.lifecycle import NEXT, Lifecycle, Stage
from boki.protocol.effects import Announce, EngineNews


def test_every_stage_is_reached_and_a_fence_ends_all() -> None:
    """Some stage leads to each of the table, and an engine may be fenced in each."""
    assert {Stage.STARTING}.union(*NEXT.values()) == set(Stage) == set(NEXT)
    assert [stage for stage in Stage if Stage.FENCED not in NEXT[stage]] == [Stage.FENCED]


@pytest.mark.parametrize("catches_up", [True, False])
def test_each_stage_is_announced_once(catches_up: bool) -> None:
    """Also if the engine is closed before it has caught up: then it was never ready."""
    lifecycle = Lifecycle()
    assert lifecycle.settle(is_current=False, is_closed=False) is None
    if catches_up:
        assert lifecycle.settle(is_current=True, is_closed=False) == Announce(EngineNews.READY)
        assert lifecycle.settle(is_current=True, is_closed=False) is None
    assert lifecycle.takes_appends
    lifecycle.close()
    lifecycle.close()
    assert not lifecycle.takes_appends
    assert lifecycle.settle(is_current=True, is_closed=False) is None
    assert lifecycle.settle(is_current=True, is_closed=True) == Announce(EngineNews.CLOSED)
    assert lifecycle.settle(is_current=True, is_closed=True) is None
    lifecycle.move(Stage.FENCED)
    assert lifecycle.is_fenced
    assert not lifecycle.takes_appends


def test_a_stage_that_the_table_does_not_allow_is_refused() -> None:
    """A fenced engine does nothing any more, and one that has begun to close is not ready again."""
    lifecycle = Lifecycle()
    lifecycle.move(Stage.FENCED)
    with pytest.raises(AssertionError, match="fenced cannot become ready"):
        lifecycle.move(Stage.READY)
