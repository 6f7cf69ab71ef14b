"""The life of a shard on a storage node: which stage follows which, and that a real node goes through all of them."""

from __future__ import annotations

import pytest

from boki.storage.lifecycle import NEXT, Event, Stage
from boki.storage.shards import Shard
from tests.storage.test_repair import FIRST, filled


def test_every_stage_is_reached_and_every_event_moves_some_shard() -> None:
    """From an open shard on. Whatever the stage, a shard may be closed: entries and ends of terms may be repeated."""
    found = {Stage.OPEN}
    while more := {after for (before, _), after in NEXT.items() if before in found} - found:
        found |= more
    assert found == set(Stage)
    assert {event for _, event in NEXT} == set(Event)
    assert {stage for stage, event in NEXT if event is Event.CLOSE} == set(Stage)


def test_what_is_sent_away_is_closed() -> None:
    """Only a closed shard leaves, and one that was removed is closed as soon as the metalogs have been read again."""
    assert {before for (before, _), after in NEXT.items() if after is Stage.LEAVING} == {
        Stage.CLOSED,
        Stage.LEAVING,
        Stage.REMOVED,
    }
    assert {after for (_, event), after in NEXT.items() if event is Event.CLOSE} == {
        Stage.CLOSED,
        Stage.LEAVING,
        Stage.REMOVED,
    }
    with pytest.raises(AssertionError, match="open has no remove"):
        Shard().move(Event.REMOVE)


def test_a_shard_on_a_node_goes_through_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is filled, closed, sent away, removed, found removed by a start, and sent back."""
    stages: list[Stage] = []
    move = Shard.move

    def noting(shard: Shard, event: Event) -> None:
        move(shard, event)
        stages.append(shard.stage)

    cluster, key = filled(closed=False)
    monkeypatch.setattr(Shard, "move", noting)
    holdings = cluster.core("storage-1").holdings
    assert holdings.shards[key].stage is Stage.OPEN
    cluster.close(key)
    cluster.world.tick(60)
    cluster.place(key, *FIRST[1:], "storage-4")
    cluster.world.tick(60)
    assert holdings.shards[key].stage is Stage.REMOVED
    cluster.crash("storage-1")
    cluster.start("storage-1")
    cluster.world.tick(60)
    assert cluster.core("storage-1").holdings.shards[key].stage is Stage.REMOVED
    cluster.place(key, "storage-1", "storage-4")
    cluster.world.tick(60)
    assert cluster.core("storage-1").holdings.shards[key].stage is Stage.CLOSED
    assert set(stages) == set(Stage) - {Stage.OPEN}
