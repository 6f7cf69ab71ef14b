"""`boki bench peers`: the servers that it starts, the arithmetic of its table, and its picture."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from boki.bench import peer_servers, peers
from boki.bench.log_peers import LOG_PEERS, REFERENCE, LogLoad, LogPeer, append_round
from boki.bench.peer_servers import NatsServer, RedisServer
from boki.bench.peers import System, compared
from boki.bench.plot import draw
from boki.bench.queue_flow import QueueLoad, QueueRound
from boki.bench.rows import Round, Row
from boki.bench.system import Options
from boki.cli.app import app
from boki.config.loading import DevConfig
from boki.config.up import UpConfig
from boki.errors import BokiError

SINGLE = [peer for peer in LOG_PEERS if peer.server.replicas == 1 and peer_servers.is_installed(peer.server)]
LOAD = LogLoad(256, 1024, 3.0)


@pytest.mark.parametrize("peer", SINGLE, ids=lambda peer: peer.name)
def test_records_are_appended_to_a_real_server_that_is_gone_afterwards(peer: LogPeer, tmp_path: Path) -> None:
    """A round counts acknowledged appends; neither process nor folder outlives it."""
    with peer_servers.running(peer.server, tmp_path) as started:
        one = append_round(peer, started, LogLoad(2, 100, 0.1))
        assert started.version.count(".") == 2
    assert one.op_count > 0
    assert (one.error_count, one.p50_ms is None) == (0, False)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((peer_servers.HOST, started.ports[0]))
    assert list(tmp_path.iterdir()) == []


async def _record_counts(peer: LogPeer, started: peer_servers.Started) -> list[int]:
    """How many records each stream of the server holds."""
    if peer.server.client == "redis":
        from redis import asyncio as redis

        async with redis.Redis(host=peer_servers.HOST, port=started.ports[0]) as client:
            return [await client.xlen(key) for key in await client.keys("*")]
    import nats

    connection = await nats.connect(f"nats://{peer_servers.HOST}:{started.ports[0]}")
    try:
        return [info.state.messages for info in await connection.jetstream().streams_info()]
    finally:
        await connection.close()


@pytest.mark.parametrize("peer", SINGLE, ids=lambda peer: peer.name)
def test_an_append_of_many_appends_as_many_in_the_systems_own_way(peer: LogPeer, tmp_path: Path) -> None:
    """Its row multiplies appends by the records of one, so each must be there; the stream is gone afterwards."""

    async def append_twice(started: peer_servers.Started) -> None:
        async with peer.appending(started, 1, LogLoad(1, 100, 0.1, 7)) as append:
            await append(0)
            await append(0)
            assert await _record_counts(peer, started) == [14]
        assert await _record_counts(peer, started) == []

    with peer_servers.running(peer.server, tmp_path) as started:
        asyncio.run(append_twice(started))


def test_a_queue_has_as_many_replicas_as_its_row_says(tmp_path: Path) -> None:
    """Of three servers, and its messages come out once."""

    async def replicas(started: peer_servers.Started) -> int:
        load = QueueLoad("several", 1, 1, 1, 100, 0.1)
        async with REFERENCE.queue.pipe(started, load) as pipe:
            await pipe.push(b"x")
            assert await pipe.pop(5.0) == b"x"
            import nats

            connection = await nats.connect(f"nats://{peer_servers.HOST}:{started.ports[0]}")
            found = await connection.jetstream().stream_info("several")
            await connection.close()
            return int(found.config.num_replicas)

    with REFERENCE.running(tmp_path, 1) as running:
        assert asyncio.run(replicas(running.started)) == 3
        one = running.deliver(QueueLoad("round", 2, 2, 1, 100, 0.2))
    assert one.delivered_count > 0
    assert one.error_count == 0


def system(name: str, loads: list[object], one: QueueRound) -> System:
    """A system that notes what load it gets."""

    def run(clients: int, load: LogLoad) -> Round:
        loads.append((clients, load))
        return Round(300, 0, 1.0, 3.0, 9.0)

    def deliver(load: QueueLoad) -> QueueRound:
        loads.append(replace(load, queue=""))
        return one

    return System(name, "1.0", 3, "fsync", run, deliver, f"as {name} does")


def test_batches_and_a_queue_have_rows_of_their_own() -> None:
    """A batch's rate counts its records and its row says what the batch is; a queue's figures are of deliveries."""
    loads: list[object] = []
    found = QueueRound(50, 60, 2, 0.5, 1.0, 2.0, 3.0, 4.0)
    systems = [system(name, loads, found) for name in ("ours", REFERENCE.name)]
    options = Options(rounds=1, duration_s=0.5)
    one, *_, four = peers._batches(options, lambda _text: None, systems)
    assert (one.bench, one.inflight, four.inflight, one.size_bytes) == ("peers-append-many", 1, 4, 100)
    assert (one.details["records_per_s"], one.details["batch_is"]) == (300_000, "as ours does")
    assert one.details["rate_to_nats_r3"] == 1.0
    assert (1, LogLoad(4, 100, 0.5, 1_000)) in loads
    ours, _ = peers._queues(options, lambda _text: None, systems)
    assert (ours.bench, ours.inflight, ours.details["consumers"]) == ("peers-queue", 64, 64)
    assert (ours.ops_per_s, ours.p50_ms, ours.p99_ms, ours.errors) == (100.0, 3.0, 4.0, 2)
    assert loads[-1] == QueueLoad("", 64, 64, 1, 1024, 0.5)


def test_every_row_names_replicas_and_durability() -> None:
    """No two systems have the same name, and none leaves out how its writes become durable."""
    names = [peer.name for peer in LOG_PEERS]
    assert len(set(names)) == len(names)
    assert all(" R" in name and ", " in name and "fsync" in name for name in names)
    assert REFERENCE.name == "NATS JetStream R3, no fsync"


def test_three_nats_servers_are_one_cluster_and_sync_only_if_asked(tmp_path: Path) -> None:
    """Each has its own files and ports and routes to all; the default interval of syncs is left alone."""
    for is_synced in (False, True):
        commands = NatsServer(3, is_synced).commands("nats-server", tmp_path, [1, 2, 3, 4, 5, 6])
        settings = [Path(words[-1]).read_text(encoding="utf-8") for words in commands]
        assert [text.count("listen:") for text in settings] == [2, 2, 2]
        assert all(f"nats://127.0.0.1:{port}" in text for text in settings for port in (2, 4, 6))
        assert all(("sync_interval: always" in text) == is_synced for text in settings)
        assert len({text.split("store_dir: ")[1].split(",")[0] for text in settings}) == 3
    (alone,) = NatsServer(1).commands("nats-server", tmp_path, [1, 2])
    assert "cluster" not in Path(alone[-1]).read_text(encoding="utf-8")


def test_redis_syncs_as_its_row_says(tmp_path: Path) -> None:
    """The setting that Redis gets is the one that the row names."""
    (words,) = RedisServer("everysec").commands("redis-server", tmp_path, [6379])
    assert words[words.index("--appendfsync") + 1] == "everysec"
    assert RedisServer("everysec").durability == "fsync every second"
    assert RedisServer("always").durability == "fsync always"


def test_ratios_are_medians_of_rounds_that_followed_each_other() -> None:
    """One slow minute of the machine changes both sides of a ratio: it is taken in each round, then the median."""
    rounds = {
        "ours": [Round(2_000, 0, 1.0, 3.0, 9.0), Round(200, 0, 1.0, 20.0, 40.0), Round(3_000, 1, 1.0, 1.0, 2.0)],
        REFERENCE.name: [
            Round(1_000, 0, 1.0, 2.0, 5.0),
            Round(100, 0, 1.0, 10.0, 30.0),
            Round(1_000, 0, 1.0, 2.0, 5.0),
        ],
    }
    nothing = QueueRound(0, 0, 0, 1.0, None, None, None, None)
    ours = compared(system("ours", [], nothing), 2, LOAD, rounds)
    assert (ours.ops_per_s, ours.p50_ms, ours.errors, ours.inflight) == (2_000, 3.0, 1, 512)
    assert ours.details == {"version": "1.0", "clients": 2, "rate_to_nats_r3": 2.0, "p50_to_nats_r3": 1.5}
    assert (ours.durability, ours.replicas, ours.system) == ("fsync", 3, "ours")


def row(system: str, clients: int, inflight: int, ops_per_s: float | None) -> Row:
    return Row(
        bench="peers",
        inflight=clients * inflight,
        size_bytes=1024,
        replicas=3,
        durability="fsync",
        system=system,
        ops_per_s=ops_per_s,
        p50_ms=1.0,
        p99_ms=None,
        errors=0,
        details={"clients": clients},
    )


def test_the_picture_has_every_system_and_window(tmp_path: Path) -> None:
    """It is drawn without a figure too, and the same rows are the same file."""
    rows = [row(system, *window, 1e4) for system in ("Boki R3", "NATS R3") for window in ((1, 16), (2, 1_000))]
    rows.append(row("Redis", 1, 16, None))
    rows.append(row("Redis", 2, 1_000, 5.0))
    for name in ("a.svg", "b.svg"):
        draw(rows, tmp_path / name)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert all(word in text for word in ("Boki R3", "NATS R3", "Redis", "1 x 16", "2 x 1,000"))
    assert "<script" not in text
    assert text == (tmp_path / "b.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["append", "--plot", "a.svg"], "peers"),
        (["peers", "--plot", "a.png"], ".svg"),
        (["peers", "--plot", "nowhere/a.svg"], "exists"),
        (["peers", "--url", "http://127.0.0.1:9"], "--url"),
        (["append", "--no-speculative-cuts"], "--cluster"),
        (["peers", "append", "--speculative-cuts"], "--cluster"),
    ],
)
def test_what_cannot_be_compared_or_drawn_is_refused_before_anything_starts(words: list[str], remedy: str) -> None:
    """The error says what to write instead."""
    done = CliRunner().invoke(app, ["bench", *words])
    assert done.exit_code == 2, done.output
    assert remedy in done.output


@pytest.mark.parametrize(("wanted", "speculates"), [(None, True), (True, True), (False, False)])
def test_its_clusters_have_cuts_that_run_ahead_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, wanted: bool | None, speculates: bool
) -> None:
    """Without `--cluster`: it starts clusters all the same. One process has no such cuts."""
    started: dict[int, DevConfig | UpConfig] = {}

    @contextmanager
    def target(options: Options) -> Iterator[None]:
        started[options.replicas] = options.config(Path("data"), Path("functions"))
        yield

    options = Options(speculates=wanted)
    options.check(["peers"])
    monkeypatch.setattr(peers, "target", target)
    for replicas in (1, 3):
        with peers._ours(options, lambda _text: None, replicas, "fsync"):
            pass
    assert isinstance(started[1], DevConfig)
    assert isinstance(started[3], UpConfig)
    assert started[3].speculative_cuts is speculates


def test_without_nats_there_is_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs it."""
    monkeypatch.setattr(peers, "is_installed", lambda _server: False)
    with pytest.raises(BokiError, match=r"pip install 'boki\[peers\]'"):
        next(peers.peers(Options(), lambda _text: None))
