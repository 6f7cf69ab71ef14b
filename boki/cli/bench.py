"""`boki bench`: measure this machine, one row a figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from boki.cli.connection import AsJson, Token
from boki.cli.help import examples
from boki.cli.terminal import count_text, errors, print_json, print_table, progress
from boki.config.loading import Durability
from boki.errors import InvalidArgument

if TYPE_CHECKING:
    from boki.bench.rows import Row
    from boki.bench.system import Options

NAMES = (
    *("append", "read", "invoke", "cold-start", "restart", "memory", "idle", "queue", "flow", "store", "spark"),
    *("flow-state", "flow-soak", "flow-sleepers", "flow-takeover", "peers", "floor", "failover", "scaling", "repair"),
)
NAMED_ONLY = frozenset({"spark", "peers"})
"""Not among all: they need packages that the others do without."""


Names = Annotated[
    list[str], typer.Argument(metavar="NAME", help=f"Which to run: {', '.join(NAMES)}; or all.", show_default=False)
]

Url = Annotated[str, typer.Option(metavar="URL", help="Measure the system there, which serves the load functions.")]
Apps = Annotated[bool, typer.Option("--apps", help="For flow: travel and movie reviews at 100 requests a second.")]


Inflight = Annotated[
    list[int] | None, typer.Option(min=1, help="Operations (for `invoke`: callers) in flight; may be repeated.")
]
IsCluster = Annotated[
    bool, typer.Option("--cluster", help="Measure a whole cluster, of three nodes: 3 replicas by default.")
]
Speculates = Annotated[
    bool | None,
    typer.Option(
        "--speculative-cuts/--no-speculative-cuts",
        help="With --cluster or peers: whether cuts run ahead of reports.",
        show_default="they do",
    ),
]
Replicas = Annotated[
    int | None, typer.Option(min=1, help="Replicas of each record in the system that is started.", show_default="1")
]
Trace = Annotated[bool, typer.Option("--trace", help="For append: where the time of one goes, hop by hop.")]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE.svg", help="For peers: also draw the rows as a picture.", show_default=False),
]

Sleepers = Annotated[
    int | None,
    typer.Option(
        min=1000, help="Workflows that fall asleep, for flow and flow-sleepers.", show_default="a tenth of --records"
    ),
]


@examples(
    "boki bench append",
    "boki bench append --trace",
    "boki bench append read --size-bytes 4096 --inflight 64",
    "boki bench all --cluster",
)
def command(
    names: Names,
    inflight: Inflight = None,
    size_bytes: Annotated[int, typer.Option(min=0, help="Size of a record, where it can be chosen.")] = 1024,
    records: Annotated[int, typer.Option(min=1000, help="Records, for read, restart, memory and spark.")] = 1_000_000,
    sleepers: Sleepers = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, after one that warms up; the median counts.")] = 3,
    duration_s: Annotated[float, typer.Option(min=0.1, help="Length of a round.")] = 3.0,
    cluster: IsCluster = False,
    separate: Annotated[bool, typer.Option("--separate", help="With --cluster: every role is a process.")] = False,
    replicas: Replicas = None,
    logs: Annotated[int, typer.Option(min=1, help="Its physical logs.")] = 1,
    durability: Annotated[str, typer.Option(metavar="fsync|memory", help="Its durability.")] = "fsync",
    scratch: Annotated[Path | None, typer.Option(help="Folder on the disk to measure; else a temporary one.")] = None,
    peers: Annotated[bool, typer.Option("--peers", help="For flow and store: other systems in turns.")] = False,
    speculative_cuts: Speculates = None,
    trace: Trace = False,
    apps: Apps = False,
    plot: Plot = None,
    url: Url = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Measure this machine: throughput, latency, starts, memory.

    Each benchmark starts a system of its own in a temporary directory, with the load in its worker processes. Figures
    are medians over the rounds. The targets stand in docs/benchmarks.md.
    """
    from boki.bench.system import Options

    options = Options(
        url=url,
        token=token,
        is_cluster=cluster,
        is_separate=separate,
        replicas=replicas or (3 if cluster else 1),
        logs=logs,
        durability=cast("Durability", durability),
        rounds=rounds,
        duration_s=duration_s,
        scratch=scratch,
        inflight=tuple(inflight or ()),
        size_bytes=size_bytes,
        record_count=records,
        sleepers=sleepers or 0,
        with_peers=peers,
        speculates=speculative_cuts,
        is_traced=trace,
        with_apps=apps,
    )
    options.check(wanted := _chosen(names, cluster))
    _check_plot(plot, wanted)
    _warn_of_memory(options)
    rows = _measure(wanted, options, print_json if as_json else None)
    _draw(rows, plot)
    if not as_json:
        _show(rows, options)
    _check(rows)


def _check_plot(plot: Path | None, names: list[str]) -> None:
    if plot is None:
        return
    if "peers" not in names:
        raise InvalidArgument("--plot draws the rows of peers: name that benchmark")
    from boki.bench.plot import check_plot

    check_plot(plot)


def _draw(rows: list[Row], plot: Path | None) -> None:
    if plot is not None:
        from boki.bench.plot import draw

        draw([row for row in rows if row.bench == "peers"], plot)


def _check(rows: list[Row]) -> None:
    if any(row.errors for row in rows):
        errors().print("[yellow]there were errors: these figures are not those of a healthy system[/]")
        raise typer.Exit(1)


def _warn_of_memory(options: Options) -> None:
    if options.is_in_memory:
        errors().print(
            f"[yellow]{options.folder} is in memory, where fsync costs nothing: choose a disk with --scratch[/]"
        )


def _chosen(names: list[str], is_cluster: bool) -> list[str]:
    if unknown := [name for name in names if name not in (*NAMES, "all")]:
        raise InvalidArgument(f"there is no benchmark {', '.join(unknown)}: there are {', '.join(NAMES)}, and all")
    from boki.bench.system import NEED_CLUSTER

    others = [name for name in NAMES if name not in NAMED_ONLY and (is_cluster or name not in NEED_CLUSTER)]
    return others if "all" in names else names


def _show(rows: list[Row], options: Options) -> None:
    kind = "separate roles, " if options.is_separate else "cluster, " if options.is_cluster else ""
    system = options.url or f"{kind}{count_text(options.replicas, 'replica')}, {options.durability}"
    if all(row.bench.startswith("peers") for row in rows):
        system = "several systems on this machine"  # each row says its replicas and its durability
    columns = ["bench", "in flight>", "bytes>", "ops/s>", "p50 ms>", "p99 ms>", "errors>", "besides~"]
    title = f"{system}, {count_text(options.rounds, 'round')} of {options.duration_s:g} s"
    print_table(columns, map(_cells, rows), title=title)


def _measure(names: list[str], options: Options, show: Callable[[object], None] | None) -> list[Row]:
    from boki.bench.runs import BENCHMARKS

    rows = []
    with progress(counted=False) as bar:
        task = bar.add_task("", total=None)
        for name in names:
            for row in BENCHMARKS[name](options, lambda text: bar.update(task, description=text)):
                rows.append(row)
                if show is not None:
                    show(row.flat())
    return rows


def _cells(row: Row) -> tuple[str, ...]:
    besides = ", ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in row.details.items())
    figures = (_number(figure) for figure in (row.ops_per_s, row.p50_ms, row.p99_ms))
    name = row.bench if row.system in ("one process", "cluster") else f"{row.bench}, {row.system}"
    return name, str(row.inflight), f"{row.size_bytes:,}", *figures, str(row.errors), besides


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:,.3g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
