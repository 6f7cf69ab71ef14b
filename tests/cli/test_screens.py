"""Every screen at 80 and at 120 columns: no line is broken, no cell is torn in the middle of a word."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from boki.api.http.exchange import Invocation, Invocations
from boki.cli import bench, calls, cluster_status, functions, ingest, log, status, terminal, up_screen
from boki.cli.app import app
from boki.cli.console import Screen
from boki.cli.up_screen import UpScreen
from boki.config.loading import DevConfig
from boki.errors import FunctionFailed
from boki.launch.up.core import Process, SupervisorCore
from boki.launch.up.identity import start_mark
from boki.launch.up.state import ProcessState, SupervisorState
from boki.libs.bokiqueue import DeadLetter, GroupStats, QueueStats
from boki.libs.bokiqueue.face import commands as queue
from boki.log.record import Record
from boki.protocol.calls import CallStatus, FunctionInfo, ModuleInfo
from boki.protocol.deployments import VersionInfo

TIME_US = 1_795_388_699_450_592
ROLES = {"controller": 2, "sequencer": 3, "storage": 3, "engine": 2, "gateway": 1}
NODES = [(role, f"{role}-{number}") for role, count in ROLES.items() for number in range(1, count + 1)]
CLUSTER: dict[str, Any] = {
    "version": "0.1.0",
    "url": "http://127.0.0.1:8080",
    "ready": True,
    "node": "gateway-1",
    "pid": 4_194_303,
    "members": [{"node": name, "role": role, "incarnation": 8_589_934_651} for role, name in NODES],
    "draining": ["storage-3"],
    "functions": [f"handle_order_number_{number}" for number in range(12)],
    "modules": [{"module": "broken", "path": "broken.py", "error": "functions/broken.py:3: SyntaxError: expected ':'"}],
    "nodes": {
        "controller-1": {
            "role": "controller",
            "pid": 4_194_201,
            "leader": True,
            "controller": {"node": "controller-1", "term": 12, "primaries": ["sequencer-1", "sequencer-2"]},
        },
        **{
            f"sequencer-{number}": {
                "role": "sequencer",
                "pid": 4_194_210 + number,
                "leads": [0, 1, 2, 3] if number == 1 else [],
                "logs": {"0": {"entries": 12_345_678, "committed": 12_345_670}, "1": {"entries": 5, "committed": 5}},
            }
            for number in (1, 2, 3)
        },
        **{
            f"storage-{number}": {
                "role": "storage",
                "pid": 4_194_220 + number,
                "shards": 123_456,
                "open_shards": 12,
                "repair": {"lacking_records": 1_234_567, "bytes_per_s": 123 << 20},
                "disk": {"free_bytes": 123 << 30},
            }
            for number in (1, 2, 3)
        },
        **{
            f"engine-{number}": {
                "role": "engine",
                "pid": 4_194_230 + number,
                "ready": True,
                "logs": {"0": {"applied": 1000, "lag": 2_330}},
                "calls": {"running": 4_096, "waiting": 4_096},
                "engine": {"index_bytes": 200 << 20, "cache_bytes": 256 << 20, "appended_records": 123_456_789},
            }
            for number in (1, 2)
        },
    },
}
DEV: dict[str, Any] = {
    "version": "0.1.0",
    "url": "http://127.0.0.1:8080",
    "ready": True,
    "data": ".boki",
    "log": {
        "durability": "fsync",
        "term": 3,
        "replicas": 3,
        "write_quorum": 2,
        "free_bytes": 123 << 30,
        "engine": {"index_bytes": 1 << 20, "cache_bytes": 1 << 20, "appended_records": 336_776},
        "metalog_entries": {"0": 123_456},
        "nodes": {"storage-1": "up", "sequencer-1": "up, primary of 0"},
    },
    "functions": CLUSTER["functions"],
    "modules": CLUSTER["modules"],
}
SUPERVISOR = SupervisorState(
    pid=1,
    mark="",
    url="",
    zookeeper="",
    chroot="",
    processes=tuple(
        ProcessState(node=name, role=role, state="running", pid=os.getpid(), mark=start_mark(os.getpid()), restarts=12)
        for role, name in [*NODES, ("zookeeper", "zookeeper-1")]
    ),
)
RECORDS = [
    Record(8_796_093_022_208, ("guest:Ada", "order:8125", "country:Netherlands"), b"hello", None, TIME_US),
    Record(9_007_199_254_740_993, (), b'{"item":"tea","count":2,"note":"' + b"very long " * 30 + b'"}', None, TIME_US),
    Record(9_007_199_254_740_994, ("x" * 200,), "日本語のテキスト".encode() * 20, None, TIME_US),
]
VERSIONS = [
    VersionInfo(
        number=number,
        bundle_hash="ab" * 32,
        deployed_us=TIME_US,
        size_bytes=123_456,
        functions=tuple(f"handle_order_{at}" for at in range(3 * number)),
        broken=("payments", "refunds"),
        is_active=number == 2,
    )
    for number in (1, 2)
]
BOOK = SimpleNamespace(
    name="orders-of-the-shop-in-Rotterdam",
    record_count=123_456_789,
    size_bytes=123 << 30,
    first_seqnum=1,
    last_seqnum=9_007_199_254_740_993,
    last_time_us=TIME_US,
)
GROUP = GroupStats("billing", 123_456, 100, 100, 100, 86_400.0, 123_456, 100, 1_234.5, True)
STATS = QueueStats("orders", 4, 1_234_567, 1_234_567, 1_000.0, 10, 1_000_000, 86_400.0, [GROUP])
LETTERS = [
    DeadLetter(
        handle="0-8796093022208-12",
        id="0-8796093022208-12",
        reason="KeyError: 'amount' in functions/billing.py, line 17",
        deliveries=10,
        pushed_us=TIME_US,
        died_us=TIME_US,
        form=0,
        data=b"{" + b'"a":1,' * 50,
    )
]


class Book:
    """Answers reads with the records above."""

    def read(self, _tag: str | None, *, start: int = 0, **_options: Any) -> Any:
        found = [record for record in RECORDS if record.seqnum >= start]
        return SimpleNamespace(records=found, next_start=RECORDS[-1].seqnum + 1)

    def check_tail(self, _tag: str | None, **_options: Any) -> Record:
        return RECORDS[-1]

    def read_prev(self, _tag: str | None, *, max_seqnum: int) -> Record | None:
        return next((record for record in reversed(RECORDS) if record.seqnum <= max_seqnum), None)


CALLS = [
    Invocation(
        id=f"{number:032x}",
        function="handle_order_of_a_customer",
        book="orders-of-the-shop-in-Rotterdam",
        state=state,
        attempts=12,
        accepted_us=TIME_US,
        due_us=TIME_US,
        started_us=TIME_US,
        last_started_us=TIME_US,
        next_us=TIME_US if state in ("retrying", "suspended") else 0,
        wakes=[{"book": "orders", "tag": "!fi:order-17", "min_seqnum": 3}] if state == "suspended" else (),
        note="waits for the payment provider" if state == "suspended" else "",
        errors={"PaymentProviderUnavailable": 11, "call_lost": 1},
        last_error=FunctionFailed("handle_order_of_a_customer: PaymentProviderUnavailable: " + 12 * "try it later "),
    )
    for number, state in enumerate(get_args(CallStatus), 2**127)
]


class Client:
    """Answers as a busy system would."""

    url = "http://127.0.0.1:8080"

    def __init__(self, said: dict[str, Any]) -> None:
        self._said = said

    def status(self) -> dict[str, Any]:
        return self._said

    def functions(self) -> list[FunctionInfo]:
        fields = {"item": {"type": "string"}, "count": {"type": "integer", "default": 1}}
        schema = {"type": "object", "properties": fields, "required": ["item"]}
        return [
            FunctionInfo(
                name=f"place-order-{at}",
                module="orders",
                is_async=True,
                payload_schema=schema,
                http=(f"POST /orders/{{item}}/{at}", f"PUT /orders-by-name/{{item}}/{at}")[: 2 - at],
            )
            for at in range(3)
        ]

    def versions(self) -> list[VersionInfo]:
        return VERSIONS

    def books(self, _prefix: str = "", *, after: str = "", limit: int = 0) -> list[Any]:
        return [] if after else [BOOK]

    def logbook(self, _name: str) -> Book:
        return Book()

    def calls(self, **_filter: Any) -> Invocations:
        return Invocations(calls=CALLS)

    def invocation(self, invocation: str, **_options: Any) -> Invocation:
        return next((call for call in CALLS if call.id == invocation or call.state == invocation), CALLS[0])


@pytest.fixture(params=[80, 120])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal of that width, for consoles that are made while the test runs."""
    for name, value in (("TTY_COMPATIBLE", "1"), ("NO_COLOR", "1"), ("COLUMNS", str(request.param))):
        monkeypatch.setenv(name, value)
    for console in (terminal.results, terminal.errors):
        console.cache_clear()
    yield request.param
    for console in (terminal.results, terminal.errors):
        console.cache_clear()


def is_unbroken(text: str, width: int) -> None:
    """No line is too long, nothing has a sixth of a second, and nobody meets an incarnation."""
    from rich.cells import cell_len
    from rich.text import Text

    assert text.strip()
    for line in text.splitlines():
        assert cell_len(Text.from_ansi(line).plain) <= width, line
    assert ".450592" not in text
    assert "incarnation" not in text


def words_are_whole(text: str, *words: str) -> None:
    """Each stands unbroken somewhere."""
    for word in words:
        assert word in text, (word, text)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy cluster, and a busy queue."""
    for module in (calls, functions, log):
        monkeypatch.setattr(module, "connect", lambda _url, _token: nullcontext(Client(CLUSTER)))
    monkeypatch.setattr(ingest, "_pipeline", lambda *_: None)
    lag = SimpleNamespace(book="visits", records=123_456_789, dead=1_000, behind=123_456, has_more=True, behind_s=1e5)
    monkeypatch.setattr("boki.spark.lag.lags", lambda _pipeline: [lag])


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        (["log", "books"], ["orders-of-the-shop-in-Rotterdam", "123,456,789", "123.0 GiB"]),
        (["log", "read", "b"], ["8796093022208", "2026-11-22 ", "guest:Ada", "order:8125", "country:Netherlands"]),
        (["log", "tail", "b", "--no-follow"], ["8796093022208", "guest:Ada, order:8125"]),
        (["functions"], ["handle_order_5", "place-order-2({", "orders", "payments", "refunds", "2026-11-22 ", "(UTC)"]),
        (["functions"], ["routes", "POST /orders/{item}/0", "/orders-by-name/{item}/0", "POST /orders/{item}/1"]),
        (["ingest", "status", "p.toml"], ["visits", "123,455,789"]),
        (["calls", "list"], ["80000000000000000000000000000001", "cancelled", "retrying", "suspended", "12"]),
        (["calls", "show", "suspended"], ["suspended", "order-17", "provider"]),
        (["calls", "show", "8" * 32], ["80000000000000000000000000000000", "PaymentProviderUnavailable: 11", " UTC"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_screen_of_a_command_is_unbroken(width: int, said: None, words: list[str], whole: list[str]) -> None:
    """With data as long as real ones are."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    is_unbroken(done.output, width)
    words_are_whole(done.output, *whole)


def test_the_screens_of_queues_are_unbroken(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures, dead letters with their reasons, and what comes next."""

    async def letters(_limit: int) -> list[DeadLetter]:
        return LETTERS

    async def stats() -> QueueStats:
        return STATS

    handle: Any = SimpleNamespace(name="orders", stats=stats, dead_letters=letters)
    asyncio.run(queue.stats(handle))
    asyncio.run(queue.dlq(handle))
    text = "".join(capsys.readouterr())
    is_unbroken(text, width)
    words_are_whole(text, "billing", "1,234.5", "123,456", "0-8796093022208-12", "functions/billing.py,")


@pytest.mark.parametrize("supervisor", [SUPERVISOR, None], ids=["here", "elsewhere"])
def test_the_status_of_a_cluster_is_unbroken(
    width: int, supervisor: SupervisorState | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eleven nodes, several logs, busy engines, troubles in words."""
    cluster_status.show(CLUSTER, supervisor)
    text = "".join(capsys.readouterr())
    is_unbroken(text, width)
    words_are_whole(
        text, "sequencer-1", "12,345,678", "1,234,567", "123.0 MiB/s", "123,456,789", "handle_order_number_11"
    )


def test_the_status_of_a_cluster_tells_which_engines_were_told_to_run_nothing(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """All else may be well, and no call is answered."""
    nodes: dict[str, Any] = {name: {"role": "engine", "functions_held_back": True} for name in ("engine-1", "engine-2")}
    cluster_status.show({**CLUSTER, "functions": [], "nodes": nodes}, None)
    text = "".join(capsys.readouterr())
    is_unbroken(text, width)
    told = "engine-1, engine-2 run none, by --functions-version none: `boki functions use` ends that"
    assert f"Functions: none; {told}" in " ".join(text.split())
    nodes["engine-1"]["functions_held_back"] = False
    cluster_status.show({**CLUSTER, "functions": ["greet"], "nodes": nodes}, None)
    text = " ".join("".join(capsys.readouterr()).split())
    assert "Functions: greet; engine-2 runs none, by --functions-version none: " in text


def test_the_status_of_a_single_process_is_unbroken(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Facts, logs, nodes, functions."""
    status.show(DEV)
    text = "".join(capsys.readouterr())
    is_unbroken(text, width)
    words_are_whole(text, "sequencer-1", "123,456", "336,776", "handle_order_number_11")


def test_the_screen_of_boki_up_is_unbroken(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """State, facts, processes, troubles, what happened."""
    core = SupervisorCore([Process(name, role, ("x",)) for role, name in NODES])
    core.tick(0)
    for _, name in NODES:
        core.started(name, os.getpid(), 0)
    facts = {"data": "a/rather/long/path/" * 6, "address": "http://127.0.0.1:8080"}
    screen = UpScreen("console", core, facts)
    screen.is_ready = True
    screen.status = CLUSTER
    screen.start()
    screen.event("exited", "engine-1 was ended by SIGKILL; it is started again in 0.5 s, for the 12th time " * 2, {})
    screen.stop()
    text = capsys.readouterr().out
    is_unbroken(text, width)
    words_are_whole(text, "sequencer-1", "running", str(os.getpid()), "memory")
    assert up_screen.rows(core)


def test_the_start_screen_of_boki_dev_is_unbroken(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it listens, on which data, its functions, what is broken, what to try."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "functions").mkdir()
    many = [
        FunctionInfo(
            name=f"handle_order_number_{at}", module="orders", is_async=True, http=(f"GET /orders-of-{at:02}/{{item}}",)
        )
        for at in range(12)
    ]
    modules = [
        ModuleInfo(module="orders", path="orders.py", functions=tuple(many)),
        ModuleInfo(module="broken", path="broken.py", error="functions/broken.py:3: SyntaxError: expected ':'"),
    ]
    Screen("console").started("http://127.0.0.1:8080", DevConfig(), modules)
    text = capsys.readouterr().out
    is_unbroken(text, width)
    assert (
        "  API        http://127.0.0.1:8080/openapi.json" in text.splitlines()
    )  # a line of its own, at 80 columns, too
    words_are_whole(text, "handle_order_number_11", "http://127.0.0.1:8080/openapi.json")
    assert "  routes     GET /orders-of-00/{item}  handle_order_number_0" in text.splitlines()
    assert "             GET /orders-of-07/{item}  handle_order_number_7" in text.splitlines()
    assert "             and 4 more: boki functions lists them" in text.splitlines()


def test_the_table_of_boki_bench_is_unbroken(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight columns and what else was measured."""
    details = {"engine_cpu_s": 12.5, "gateway_cpu_s": 1234.5, "batches": 12_345}
    row = SimpleNamespace(
        bench="append", system="cluster", inflight=1024, size_bytes=65_536, ops_per_s=123_456.0, p50_ms=12.345,
        p99_ms=1_234.5, errors=0, details=details,
    )  # fmt: skip
    options: Any = SimpleNamespace(
        is_cluster=True, is_separate=False, url="", replicas=3, durability="fsync", rounds=3, duration_s=3.0
    )
    bench._show([row], options)  # type: ignore[list-item]
    text = capsys.readouterr().out
    is_unbroken(text, width)
    words_are_whole(text, "123,456", "65,536", "12,345")
