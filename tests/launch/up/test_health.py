"""What a status says in words: each trouble once, and nothing when all is well."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from boki.launch.up.health import drain_left, leader_of, sentences

Change = Callable[[dict[str, Any]], object]


def node(role: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "zookeeper": "connected", "disk": {"has_room": True, "free_bytes": 1 << 30}, **more}


def healthy() -> dict[str, Any]:
    """A cluster in which all is well."""
    leading = {
        "node": "controller-1",
        "term": 4,
        "sequencers": ["sequencer-1", "sequencer-2", "sequencer-3"],
        "primaries": ["sequencer-1"],
        "repair": {"draining": {}},
    }
    nodes = {
        "controller-1": node("controller", leader=True, controller=leading),
        "controller-2": node("controller", leader=False, controller={}),
        "engine-1": node("engine", ready=True, term=4, applied_term=4, logs={"0": {"applied": 9, "lag": 3}}),
    }
    for number in (1, 2, 3):
        nodes[f"storage-{number}"] = node("storage", repair={"lacking_records": 0})
        nodes[f"sequencer-{number}"] = node("sequencer", leads=[0] if number == 1 else [])
    members = [{"node": name, "role": told["role"]} for name, told in nodes.items()]
    return {"ready": True, "members": members, "draining": [], "nodes": nodes}


def drained(status: dict[str, Any], *, shards: int, is_complete: bool) -> None:
    status["draining"] = ["storage-2"]
    told = {"shards": shards, "is_complete": is_complete}
    status["nodes"]["controller-1"]["controller"]["repair"]["draining"] = {"storage-2": told}


TROUBLES: list[tuple[Change, str]] = [
    (lambda s: s["nodes"].update({"engine-1": {"error": "no answer within 1 s"}}), "engine-1 is registered and does"),
    (lambda s: s["nodes"].update({"engine-1": None}), "engine-1 is registered and does not answer"),
    (lambda s: s["nodes"]["controller-1"].update(leader=False), "no controller leads"),
    (lambda s: [s["nodes"].pop(name) for name in ("controller-1", "controller-2")], "no controller is up"),
    (lambda s: s["nodes"]["controller-1"]["controller"].update(waiting="a quorum"), "controller-1 waits: a quorum"),
    (lambda s: s["nodes"]["controller-1"]["controller"].update(step="sealing"), "changing the term: sealing"),
    (lambda s: s["nodes"].pop("sequencer-2"), "sequencer-2 is away: if one more is lost, nothing can be appended"),
    (
        lambda s: [s["nodes"].pop(name) for name in ("sequencer-2", "sequencer-3")],
        "a majority: nothing can be appended",
    ),
    (
        lambda s: s.update(gone=[{"node": "engine-2", "role": "engine", "since_s": 12.3}]),
        "engine-2 is gone: it was registered until 12 s ago",
    ),
    (lambda s: s["nodes"]["sequencer-1"].update(leads=[]), "log 0 has no primary: nothing is appended to it until"),
    (lambda s: s["nodes"]["controller-1"]["controller"].update(degraded=["2 of 3"]), "degraded: 2 of 3"),
    (lambda s: drained(s, shards=7, is_complete=False), "storage-2 is being drained: no new shard goes there"),
    (lambda s: drained(s, shards=7, is_complete=False), "7 shards to go"),
    (lambda s: drained(s, shards=0, is_complete=True), "storage-2 is drained: it can be stopped"),
    (lambda s: s["nodes"]["storage-1"].update(zookeeper="suspended"), "storage-1 does not reach ZooKeeper"),
    (lambda s: s["nodes"]["storage-1"]["disk"].update(has_room=False), "storage-1 has no room on its disk (1,073.7 MB"),
    (lambda s: s["nodes"]["engine-1"].update(ready=False), "engine-1 is not ready"),
    (lambda s: s["nodes"]["engine-1"]["logs"]["0"].update(lag=5000), "engine-1 is 5,000 entries behind in log 0"),
    (lambda s: s["nodes"]["engine-1"]["logs"]["0"].update(stalled_s=6.5), "log 0 stands still for 6.5 s: 3 entries"),
    (lambda s: s["nodes"]["engine-1"].update(applied_term=3), "still finishes term 3, and the current one is 4"),
    (
        lambda s: s["nodes"]["storage-3"].update(
            repair={"lacking_records": 1200, "lacking_bytes": 3_000_000, "bytes_per_s": 1_000_000}
        ),
        "storage-3 lacks 1,200 records (about 3.0 MB) and copies them at 1.0 MB/s, about 3 s left",
    ),
]


def test_nothing_is_said_when_all_is_well() -> None:
    """A sentence that is always there would not be read."""
    assert sentences(healthy()) == []


@pytest.mark.parametrize(("change", "words"), TROUBLES, ids=[words for _, words in TROUBLES])
def test_a_trouble_is_said_once(change: Change, words: str) -> None:
    """In words that name the node and what follows from it."""
    status = copy.deepcopy(healthy())
    change(status)
    assert sum(words in sentence for sentence in sentences(status)) == 1, sentences(status)
    assert len(sentences(status)) == 1


def test_what_is_not_known_is_no_trouble() -> None:
    """A status of nothing but a gateway, or of an older Boki, does not fail."""
    assert sentences({}) == ["no controller is up: nothing is lost by that, but a lost sequencer would not be replaced"]
    assert leader_of({"nodes": {"x": None}}) == {}


def test_a_drain_is_complete_only_when_the_leader_says_so() -> None:
    """No shard known to need the node is not enough: a node may not have told yet."""
    status = healthy()
    assert drain_left(status, "storage-2") is None
    drained(status, shards=0, is_complete=False)
    assert drain_left(status, "storage-2") == 1
    drained(status, shards=0, is_complete=True)
    assert drain_left(status, "storage-2") == 0
