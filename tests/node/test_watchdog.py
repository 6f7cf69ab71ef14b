"""The watch for logs that grow while nothing of them is applied."""

from __future__ import annotations

import logging

import pytest

from boki.log.ids import NodeId
from boki.log.metalog import Cut, MetalogEntry
from boki.node.watchdog import StallWatch
from boki.protocol.follower import MetalogFollower
from boki.protocol.messages import Metalog
from tests.members import view

ENTRY: MetalogEntry = Cut(1, ())


def follower(*, committed: int, here: int) -> MetalogFollower:
    made = MetalogFollower({})
    made.install([view()])
    made.offer(Metalog(1, 0, 0, (ENTRY,) * here, committed), 0)
    return made


def test_a_log_that_stands_still_is_told_once_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """After `stall_s` the log says so with the numbers, again every ten seconds, and that it continues when it does."""
    watch = StallWatch(NodeId("engine-1"), 2.0)
    log = follower(committed=5, here=1)
    with caplog.at_level(logging.WARNING, logger="boki.node"):
        for now_s in (0.0, 1.0, 1.9):
            watch.look(log, now_s)
        assert not caplog.records
        for now_s in (2.0, 3.0, 11.9):
            watch.look(log, now_s)
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "log 0 stands still: 5 entries are committed" in caplog.text
        assert watch.describe(log)["logs"]["0"] == {"applied": 0, "lag": 5, "stalled_s": 11.9}
        watch.look(log, 12.1)
        assert len(caplog.records) == 2
        log.advance(0)
        watch.look(log, 13.0)
        assert "goes on after 13.0 s" in caplog.text
        assert watch.describe(log)["logs"]["0"]["stalled_s"] == 0


def test_an_idle_log_is_no_stalled_one(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is told of a log that has been applied as far as anybody knows."""
    watch = StallWatch(NodeId("engine-1"), 2.0)
    log = follower(committed=1, here=1)
    log.advance(0)
    for now_s in (0.0, 100.0, 200.0):
        watch.look(log, now_s)
    watch.look(None, 300.0)
    assert not caplog.records
