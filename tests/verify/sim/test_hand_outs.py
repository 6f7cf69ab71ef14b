"""The watch over hand-outs of queues: it accuses a fold that gives to sessions which are gone, and no other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest

from boki.libs.bokiqueue.following import Following
from boki.libs.bokiqueue.records import Act, Credit, Grant, Push, Settings, Setup
from boki.libs.bokiqueue.sessions import Standing
from boki.libs.bokiqueue.state import ShardState
from boki.verify.sim.hand_outs import LEASE_SILENCE_US, POP_SILENCE_US, watched
from tests.libs.bokiqueue.running import asynchronous

SECOND = 1_000_000


def hands_that_look_at_nobody() -> Any:
    """What comes is given to whoever asked for it, be its process gone or not."""
    return patch.object(Standing, "may_take", lambda self, _now_us: self.granted > self.used)


def sessions_that_do_not_end() -> Any:
    """A session is there for as long as its credit lasts, however silent it is."""
    return patch.object(Standing, "ends_us", property(lambda self: self.until_us))


@pytest.mark.parametrize("lease_us", [0, 60 * SECOND])
@pytest.mark.parametrize(
    ("without", "is_accused"),
    [(nullcontext, False), (hands_that_look_at_nobody, True), (sessions_that_do_not_end, True)],
)
@asynchronous
async def test_a_delivery_to_a_session_that_is_gone_is_noticed(
    without: Callable[[], Any], is_accused: bool, lease_us: int
) -> None:
    """Its process was handed a message, and has not acted for as long as the library promises to wait."""
    found: set[str] = set()
    followed = watched(Following("q", 1, taker=b"watches"), found)
    followed.lines[0].begin(ShardState(0), 0)
    state = followed.lines[0].state
    silence_us = LEASE_SILENCE_US if lease_us else POP_SILENCE_US
    push = Push(0, b"\x00", [b"x"])
    with without():
        for seqnum, (time_us, record) in enumerate(
            [
                (0, Setup(0, Settings())),
                (0, Grant(0, b"gone", 1, [], [], [], 0, [Credit("", lease_us, 9)])),
                (0, push),
                (silence_us - 1, push),
                (silence_us - 1, Act(0, b"other", 1)),
                (silence_us, push),
            ],
            start=1,
        ):
            state.apply(seqnum, SECOND + time_us, record)
    assert len(found) == is_accused
    assert all("gave [2] to a session that was gone" in text for text in found)
