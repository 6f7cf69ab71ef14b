"""The story of a seed tells what struck whom, and what was durable when; its digest stands for all that was told."""

from __future__ import annotations

import pytest

from boki.protocol.effects import Delete, Put, Store
from boki.storage.shards import after_shard, batch_key
from boki.verify.histories.history import History
from boki.verify.sim.clockwork import Clockwork
from boki.verify.sim.keys import ToldStores
from boki.verify.sim.options import FAULTS, Options
from boki.verify.sim.simulation import simulate

TOLD = {
    "loss": ("is lost",),
    "repeat": ("is sent twice",),
    "delay": ("is delayed",),
    "partition": ("cut: ", "meets a cut"),
    "one_way": ("cut: ", "meets a cut"),
    "hide": ("cut: ", "meets a cut"),
    "crash": (" crashes, ",),
    "crash_primary": ("sequencer-", " crashes, "),
    "stop": ("shall stop", "it was told to"),
    "pause": ("is stopped", "goes on, and takes in"),
    "power_cut": ("power fails",),
    "wipe": ("has lost its disk",),
    "clock": ("the clock of ", "is wrong by"),
    "stall": ("the disk of ", "stands still for"),
    "fsync_error": ("the next sync of ", "will fail"),
    "rot": ("has a flipped bit in byte", "batch of 1/0/"),
    "full": ("the disk of ", "is full"),
    "session": (" zookeeper for ",),
    "doubt": ("asks of zookeeper", "done, and not answered"),
    "false_seal": ("somebody seals term",),
    "logs": ("the plan changes: logs",),
    "sequencers": ("the plan changes: sequencers",),
    "drain": ("to be drained", "the plan changes: draining"),
}
QUIET = {
    "reorder": "what arrives when is told of every message",
    "stale": "what the coordinator tells late is told when it comes",
    "save": "what it stores is told",
    "swap": "told by its scenario, if it comes to that",
    "handover": "told by its scenarios, if it comes to that",
    "seal_crash": "strikes where others seal",
}


@pytest.mark.parametrize("fault", sorted(TOLD))
def test_a_fault_is_told_with_its_victim(fault: str) -> None:
    """Whoever reads the story need not guess why something is missing."""
    rate = 0.2 if fault in ("loss", "repeat", "delay", "doubt") else 4.0
    lines: list[str] = []
    options = Options(seed=2, chaos_us=2_000_000, storage=5, sequencers=3, clients=2, faults={fault: rate})
    simulate(options, lines.append)
    assert all(any(words in line for line in lines) for words in TOLD[fault])


def test_every_fault_is_told_or_has_a_reason_why_not() -> None:
    """A new class of faults cannot be forgotten in the story."""
    assert {*TOLD, *QUIET} == set(FAULTS)


def test_what_is_durable_is_told_by_name() -> None:
    """A store's keys are told in words; many of them are counted."""
    shard = (2, 0, 5)
    batches = [Put(batch_key(shard, lid), b"") for lid in range(8)]
    told = str(ToldStores("storage-1", [Store(batches), Store([Delete(batch_key(shard, 0), after_shard(shard))])]))
    assert told.startswith("batch of 2/0/5 from 0, batch of 2/0/5 from 1, ")
    assert told.endswith(" and 3 more")
    assert str(ToldStores("sequencer-1", [Store([])])) == "nothing new"


def test_the_digest_stands_for_what_was_answered_too() -> None:
    """Two runs with the same messages at the same times that showed other records are not the same."""
    outcome = simulate(Options(seed=4, chaos_us=500_000, clients=1))
    rows = list(outcome.history.to_lines())
    assert Clockwork(4).seal(rows) != Clockwork(4).seal(rows[:-1])
    other = History(outcome.history.rows)
    other.calls[-1].session = "another"
    assert Clockwork(4).seal(rows) != Clockwork(4).seal(other.to_lines())
