"""Benchmarks of clusters: what is taken from a status and a timeline, and one that runs on a real cluster."""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from boki.bench import faults
from boki.bench.faults import _last_change, _victim
from boki.bench.flow_takeover import is_gone, row_of_kill, stall_s
from boki.bench.load_functions import load
from boki.bench.load_functions.load import Timeline, Watch, watched_loop
from boki.bench.outside_load import Aim, aim_at, append_from_outside
from boki.bench.system import Options
from boki.bench.timeline import compared, copy_rates, sample
from boki.errors import ConfigError, Unavailable
from boki.gateway.engine_registry import EngineRegistry
from boki.launch.up.state import ProcessState
from boki.log.ids import NodeId
from boki.log.membership import Member, Membership, Role
from boki.log.view import place_book
from boki.protocol.call_messages import Load, TellFunctions

LEADER = {
    "node": "controller-2",
    "term": 4,
    "sequencers": ["sequencer-1", "sequencer-2", "sequencer-3"],
    "primaries": ["sequencer-2"],
    "changes": [{"term": 4, "reason": "old", "duration_ms": 9.0}],
}
STATUS: dict[str, Any] = {"nodes": {"controller-2": {"leader": True, "controller": LEADER}, "engine-1": None}}


ROLES = ("controller", "sequencer", "storage", "engine", "gateway")
NODES = tuple(
    ProcessState(node=f"node-{number}", role="node", state="running", plays=tuple(f"{role}-{number}" for role in ROLES))
    for number in (1, 2, 3)
)


def gateway_choice(book: str) -> NodeId | None:
    """The engine that a gateway of three nodes sends the book's operations to."""
    registry, engines = EngineRegistry(), [NodeId(f"engine-{number}") for number in (1, 2, 3)]
    registry.on_membership(
        Membership(number=1, members=tuple(Member(node=one, role=Role.ENGINE, incarnation=1) for one in engines)), 0
    )
    for engine in engines:
        registry.on_load(engine, Load(1, 0, 8, 1, has_index=True, is_ready=True), 0)
        registry.on_functions(engine, TellFunctions(1, 1, (), ()), 0)
    return registry.for_book(book, ())


@pytest.mark.parametrize("primary", [1, 2, 3])
@pytest.mark.parametrize("with_engine", [True, False])
def test_the_load_goes_through_the_engine_that_is_to_be_killed_or_another(primary: int, *, with_engine: bool) -> None:
    """Gateways choose the engine by the book. So the book is chosen, and no other node is killed in place of one."""
    aim = aim_at(f"sequencer-{primary}", NODES, [f"sequencer-{primary}"], with_engine=with_engine)
    assert aim.process.node == f"node-{primary}"
    assert (aim.engine in aim.roles) is with_engine
    assert gateway_choice(aim.book) == aim.engine


@pytest.mark.parametrize("log", [0, 1, 2])
def test_the_book_is_in_the_log_of_the_primary_that_is_killed(log: int) -> None:
    """With several logs, appends to the others would continue."""
    primaries = ["sequencer-1", "sequencer-2", "sequencer-3"]
    aim = aim_at(primaries[log], NODES, primaries, with_engine=True)
    assert (aim.primary, place_book(aim.book, 3), aim.engine) == (primaries[log], log, f"engine-{log + 1}")


def test_nothing_else_is_killed_where_the_wanted_node_has_no_engine() -> None:
    """The benchmark killed some other node, and the row said that it had been the primary's."""
    bare = ProcessState(node="node-1", role="node", state="running", plays=("sequencer-1",))
    with pytest.raises(Unavailable, match="no engine on"):
        aim_at("sequencer-1", [bare, *NODES[1:]], ["sequencer-1"], with_engine=True)
    with pytest.raises(Unavailable, match="no engine beside"):
        aim_at("sequencer-2", NODES[1:2], ["sequencer-2"], with_engine=False)
    with pytest.raises(Unavailable, match="sequencer-7"):
        aim_at("sequencer-7", NODES, ["sequencer-7"], with_engine=True)


def told(primary: str, **appended: int | None) -> dict[str, Any]:
    """A status. Engines with None did not answer."""
    leader = {"leader": True, "controller": {"primaries": [primary]}}
    engines = {
        f"engine-{name[1:]}": {"error": "late"} if count is None else {"engine": {"appended_records": count}}
        for name, count in appended.items()
    }
    return {"nodes": {"controller-1": leader, **engines}}


def test_a_node_is_killed_only_when_the_load_is_seen_on_its_engine() -> None:
    """Of the engines' own counts, under the primary that was there when the load began."""
    aim = Aim(NODES[1], "sequencer-2", "engine-2", "bench-1")
    before = told("sequencer-2", e1=1000, e2=5, e3=7)
    assert aim.is_met(before, told("sequencer-2", e1=1002, e2=405, e3=7))
    assert not aim.is_met(before, told("sequencer-2", e1=1400, e2=5, e3=7))
    assert not aim.is_met(before, told("sequencer-2", e1=1100, e2=405, e3=7))
    assert not aim.is_met(before, told("sequencer-1", e1=1000, e2=405, e3=7))
    assert not aim.is_met(before, before)
    assert not aim.is_met(before, told("sequencer-2", e1=None, e2=405, e3=7))
    assert not aim.is_met({}, told("sequencer-2", e1=1000, e2=405, e3=7))


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads for which a second passes whenever they look at the clock."""
    seconds = itertools.count()
    clock = SimpleNamespace(time=lambda: next(seconds), time_ns=lambda: next(seconds) * 1_000_000_000)
    monkeypatch.setattr(load, "time", clock)


class FakeCluster:
    """Three nodes with a load that appends through `engine`, whatever its book."""

    state = SimpleNamespace(processes=NODES)

    def __init__(self, engine: int) -> None:
        self.engine = engine
        self.killed: list[str] = []
        self.avoided: list[Collection[str]] = []

    def wait_healthy(self) -> dict[str, Any]:
        status = told("sequencer-2", e1=0, e2=0, e3=0)
        status["nodes"]["controller-1"]["controller"] |= {"node": "controller-1", "term": 4}
        return status

    def status(self) -> dict[str, Any]:
        return told("sequencer-2", **{f"e{number}": 900 * (number == self.engine) for number in (1, 2, 3)})

    def load_from_outside(self, _watch: Watch, _book: str, avoided: Collection[str]) -> tuple[Any, tuple[str, ...]]:
        self.avoided.append(avoided)
        return SimpleNamespace(result=lambda: Timeline([], [], [])), ("gateway-1", "gateway-3")

    def kill(self, node: str) -> int:
        self.killed.append(node)
        return 1


def test_a_row_tells_what_was_on_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Primary, engine and a replica of the load are lost in one fault, and none of its connections is."""
    monkeypatch.setattr(faults, "time", SimpleNamespace(sleep=lambda _seconds: None))
    fake: Any = FakeCluster(engine=2)
    row = faults._killed_node(Options(is_cluster=True), fake, "node of the primary and the engine", 0)
    assert fake.killed == ["node-2"]
    assert "gateway-2" in fake.avoided[0]
    shown = {name: row.details[name] for name in ("node", "roles", "with_primary", "with_engine", "gateways")}
    assert shown == {
        "node": "node-2",
        "roles": "controller-2 sequencer-2 storage-2 engine-2 gateway-2",
        "with_primary": True,
        "with_engine": True,
        "gateways": "gateway-1 gateway-3",
    }


@pytest.mark.parametrize("kind", ["node of the primary and the engine", "node of the primary"])
def test_no_node_is_killed_while_the_load_goes_elsewhere(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried a few times, and then refused: a row about another fault than it names is worse than none."""
    monkeypatch.setattr(faults, "time", SimpleNamespace(sleep=lambda _seconds: None))
    fake: Any = FakeCluster(engine=1 if kind.endswith("engine") else 2)
    with pytest.raises(Unavailable, match="nothing was killed"):
        faults._killed_node(Options(is_cluster=True), fake, kind, 0)
    assert not fake.killed
    assert len(fake.avoided) > 1


async def connections(avoided: Collection[str]) -> tuple[Timeline, tuple[str, ...], dict[str, set[str]]]:
    """A load against three gateways behind one address, taken in turn by connections: what it tells, and the gateways
    that requests of each path came to.
    """
    numbers, seen = itertools.count(), dict[str, set[str]]()
    nodes: dict[asyncio.BaseTransport | None, str] = {}

    async def answer(request: web.Request) -> web.Response:
        if request.transport not in nodes:
            nodes[request.transport] = f"gateway-{next(numbers) % 3 + 1}"
        node = nodes[request.transport]
        seen.setdefault(request.path, set()).add(node)
        return web.json_response({"node": node} if request.path == "/status" else None, status=200)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    begun: list[tuple[str, ...]] = []
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        timeline = await append_from_outside(url, Watch("x", 4, 8, 20.0), "bench-1", avoided, begun.append)
    finally:
        await runner.cleanup()
    return timeline, begun[0], seen


@pytest.mark.usefixtures("ticks")
def test_the_load_from_outside_keeps_off_the_gateway_of_the_node() -> None:
    """Its connections are to others, and they are those that it appends over."""
    timeline, gateways, seen = asyncio.run(connections({"gateway-2", "engine-2"}))
    assert gateways == ("gateway-1", "gateway-3")
    assert seen.pop("/status") == {"gateway-1", "gateway-2", "gateway-3"}
    assert seen.popitem()[1] == {"gateway-1", "gateway-3"}
    assert timeline.errors  # these gateways append nothing


def test_a_load_that_finds_no_other_gateway_does_not_begin() -> None:
    """It is refused, and not sent to the node that is to be killed."""
    with pytest.raises(Unavailable, match="were all to gateway-1, gateway-2, gateway-3"):
        asyncio.run(connections({"gateway-1", "gateway-2", "gateway-3"}))


@pytest.mark.usefixtures("ticks")
def test_a_watched_load_tells_appends_and_failures_apart() -> None:
    """A failed append has no latency, and its caller continues."""
    numbers = itertools.count()

    async def append(caller: int) -> None:
        await asyncio.sleep(0)
        if next(numbers) % 2:
            raise Unavailable(f"caller {caller}")

    timeline = asyncio.run(watched_loop(append, Watch("x", 2, 8, 20.0)))
    assert len(timeline.starts_us) == len(timeline.latencies_us) > 1
    assert set(timeline.errors) <= {"Unavailable: caller 0", "Unavailable: caller 1"}
    assert len(timeline.errors) > 1


@pytest.mark.parametrize(
    ("kind", "engine", "expected"),
    [
        ("primary", "engine-1", "sequencer-2"),
        ("backup", "engine-1", "sequencer-1"),
        ("controller", "engine-1", "controller-2"),
        ("engine", "engine-1", "engine-2"),
        ("engine", "engine-2", "engine-1"),
        ("storage", "engine-1", "storage-2"),
    ],
)
def test_the_victim_is_what_was_asked_for(kind: str, engine: str, expected: str) -> None:
    """The engine that is killed is never the one with the load."""
    assert _victim(LEADER, kind, 1, engine) == expected


def test_a_change_of_terms_is_that_which_came_after() -> None:
    """Not one of before the kill; and nothing is told where there was none."""
    after = json.loads(json.dumps(STATUS))
    changes = after["nodes"]["controller-2"]["controller"]["changes"]
    assert _last_change(after, STATUS) == {}
    changes.append({"term": 5, "reason": "its primary does not answer", "duration_ms": 31.26})
    assert _last_change(after, STATUS) == {"seal_to_install_ms": 31.3, "reason": "its primary does not answer"}


def test_a_pause_counts_from_the_event_until_the_next_append_that_ends() -> None:
    """Also if appends that had begun before end after it; failures are counted."""
    quiet = [(at, 1_000) for at in range(0, 3_000_000, 10_000)]
    after = [(3_000_000 - 500, 700_500), (3_700_000, 2_000)]
    starts, latencies = zip(*(quiet + after), strict=True)
    found = compared(Timeline(list(starts), list(latencies), ["x"]), 3_000_000)
    assert (found["p50_before_ms"], found["max_ms"], found["stall_ms"], found["failed"]) == (1.0, 700.5, 700.0, 1)


def test_the_stall_of_a_workflow_is_from_the_kill_to_the_next_beat_without_its_sleep() -> None:
    """However long before the kill the last beat was; one that ended before the kill has none."""
    assert stall_s([0, 200_000, 2_600_000, 2_800_000], 300_000) == pytest.approx(2.1)
    assert stall_s([0, 299_000, 2_600_000], 300_000) == pytest.approx(2.1)
    assert stall_s([200_000, 400_000], 300_000) == 0.0
    assert stall_s([0, 200_000], 300_000) is None
    assert stall_s([], 300_000) is None


def test_the_row_of_a_kill_has_no_rate_and_counts_workflows_without_a_stall_apart() -> None:
    """Those that had ended before it beside those that lack beats; with nothing left there is nothing to tell."""
    times = [[0, 2_600_000], [0, 3_600_000], [0, 200_000], []]
    row = row_of_kill(Options(is_cluster=True), "engine-1", times, 300_000, 1.5)
    assert (row.ops_per_s, row.p50_ms, row.p99_ms, row.errors, row.inflight) == (None, None, None, 1, 4)
    assert row.details == {
        "killed": "engine-1",
        "detected_s": 1.5,
        "stall_p50_s": 2.6,
        "stall_longest_s": 3.1,
        "longest_after_detection_s": 1.6,
        "ended_before": 1,
    }
    none = row_of_kill(Options(is_cluster=True), "engine-1", times[2:], 300_000, 1.5).details
    assert (none["stall_p50_s"], none["stall_longest_s"], none["longest_after_detection_s"]) == (None, None, None)


def test_an_engine_is_gone_when_its_incarnation_is_in_no_membership() -> None:
    """A status that does not tell the members says nothing; another incarnation is another engine."""
    member = {"node": "engine-1", "incarnation": 7}
    assert not is_gone({}, "engine-1", 7)
    assert not is_gone({"members": [member]}, "engine-1", 7)
    assert is_gone({"members": [member]}, "engine-1", 6)
    assert is_gone({"members": []}, "engine-1", 7)


def test_a_rate_of_repair_under_load_ends_with_the_load() -> None:
    """What is copied after the load counts for itself: one rate over both was 35 MB/s where 8.4 are allowed, because
    the load was over long before the copying.
    """
    timeline = Timeline([0, 19_999_000], [1_000, 1_000], [])
    under = [(at * 1_000_000, at * 8_400_000) for at in range(21)]
    after = [(21_000_000 + at * 1_000_000, 200_000_000 + at * 67_000_000) for at in range(13)]
    assert copy_rates(under + after, timeline.until_us) == {"mb_per_s": 8.4, "mb_per_s_after_load": 67.0}
    assert copy_rates(under, timeline.until_us) == {"mb_per_s": 8.4, "mb_per_s_after_load": None}
    assert copy_rates(after, timeline.until_us) == {"mb_per_s": None, "mb_per_s_after_load": 67.0}


def test_a_status_without_an_answer_is_no_sample() -> None:
    """It counted as nothing copied: one at the end of the load, and the rate was below zero."""
    samples: list[tuple[int, int]] = []
    for at_s, repair in enumerate(({"copied_bytes": 0}, {"copied_bytes": 8_000_000}, {}, {})):
        sample(samples, repair, at_s * 1_000_000)
    assert copy_rates(samples, 9_000_000)["mb_per_s"] == 8.0


def test_what_needs_a_cluster_is_refused_without_one() -> None:
    """And a cluster of one's own is not the one behind a URL."""
    with pytest.raises(ConfigError, match="--cluster"):
        Options().check(["failover"])
    with pytest.raises(ConfigError, match="leave --url out"):
        Options(url="http://x", is_cluster=True).check(["append"])
    Options(is_cluster=True, replicas=3).check(["failover", "append"])


def test_appends_are_measured_on_a_real_cluster() -> None:
    """The same rows as of one process, and the row says which it was."""
    words = ["append", "--cluster", "--inflight", "4", "--rounds", "1", "--duration-s", "0.2", "--json"]
    command = [sys.executable, "-m", "boki", "bench", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(row["system"], row["replicas"], row["errors"]) for row in found} == {("cluster", 3, 0)}
    assert all(row["ops_per_s"] for row in found)
