"""`boki demo`: real flights through functions into the log and out again, then a kill and what is left after it."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import typer

from boki.cli.help import examples
from boki.cli.terminal import errors, path_text, print_table, progress, results
from boki.config.loading import DevConfig
from boki.config.up import UpConfig
from boki.demo.examples import functions_folder
from boki.errors import InvalidArgument
from boki.launch.up.health import leader_of
from boki.launch.up.state import read_state

if TYPE_CHECKING:
    from boki.client import Client
    from boki.demo.acts import CameBack, Compared, Ingested


@examples("boki demo", "boki demo --cluster", "boki demo flow", "boki demo queue", "boki demo store")
def command(
    act: Annotated[
        str,
        typer.Argument(
            metavar="flow|queue|store",
            help="flow: trips whose machine dies at random lines. queue: departures become alerts. store: a bank and "
            "a small Twitter, killed in the middle.",
            show_default=False,
        ),
    ] = "",
    seed: Annotated[int | None, typer.Option(help="Repeat the kills of an earlier run; not for queue.")] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="On a whole cluster; the plain demo also kills its primary half-way.")
    ] = False,
) -> None:
    """Replay 336,776 real flights and check what comes out.

    What comes out is compared with the table of flights; then a copy is killed and comes back.
    Everything happens in a temporary directory that is removed at the end. Exit code 0 only if all matches.
    """
    chosen_seed = secrets.randbelow(1 << 32) if seed is None else seed
    match act:
        case "":
            _show_flights(chosen_seed, is_cluster=cluster)
        case "flow":
            from boki.cli.demo_flow import show_workflows

            show_workflows(functions_folder(), chosen_seed, is_cluster=cluster)
        case "queue":
            _show_queues(is_cluster=cluster)
        case "store":
            _show_objects(chosen_seed, is_cluster=cluster)
        case _:
            raise InvalidArgument(
                f"there is no demo {act!r}: write `boki demo`, `boki demo flow`, `boki demo queue` or `boki demo store`"
            )


def _show_flights(chosen_seed: int, *, is_cluster: bool) -> None:
    from boki.demo.flights import table_path

    table = table_path()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="boki-demo-") as folder:
        ok = asyncio.run(_perform(Path(folder), table, chosen_seed, is_cluster=is_cluster))
    elapsed_s = time.perf_counter() - started
    if not ok:
        errors().print(f"[bold red]The demo failed[/] (after {elapsed_s:.0f} s; the kill's seed is {chosen_seed}).")
        raise typer.Exit(1)
    results().print(f"[bold green]All of it matches[/] ({elapsed_s:.0f} s in all).\n")
    here = Path("functions")
    folder_text = path_text(here if (here / "flights.py").exists() else functions_folder())
    next_steps = [
        ("boki dev --functions DIR", "the system with these functions, until Ctrl-C"),
        ("boki up --functions DIR", "the same as a cluster of three nodes"),
        ("boki new hello", "a project of your own, with a first function and a test"),
        ("boki bench append", "how fast this machine is"),
        ("README.md and docs/", "the LogBook and its promises"),
    ]
    results().print(f"The functions that did this are in flights.py, in this DIR:\n  {folder_text}\n", markup=False)
    results().print("Where to look next:")
    width = max(len(what) for what, _ in next_steps)
    for what, why in next_steps:
        results().print(f"  {what:<{width}}  {why}", markup=False)


def _show_queues(*, is_cluster: bool) -> None:
    from boki.client import Client
    from boki.demo.flights import table_path
    from boki.demo.queue_act import Watched, departures_to_alerts
    from boki.launch.child import Child

    async def perform(config: DevConfig | UpConfig, step: Callable[[str, int, int], None]) -> Watched:
        with Child(config) as child:
            await asyncio.to_thread(child.start)
            async with Client(child.url) as client:
                watched = await departures_to_alerts(client, table, step)
            await asyncio.to_thread(child.stop)
        return watched

    table = table_path()
    with tempfile.TemporaryDirectory(prefix="boki-demo-") as folder, progress() as bar:
        shown = bar.add_task("starting", total=None)
        kind = UpConfig if is_cluster else DevConfig
        config = kind(data=Path(folder) / "data", functions=functions_folder(), port=0)
        watched = asyncio.run(
            perform(config, lambda what, done, of: bar.update(shown, description=what, completed=done, total=of))
        )
    rows = [(name, f"{watched.alerts[name]:,}", f"{count:,}") for name, count in sorted(watched.late.items())]
    print_table(["carrier", "alerts>", "late departures>"], rows, title="Late departures that became alerts")
    results().print(
        f"{watched.departure_count:,} departures, each seen by three groups; consumers killed with SIGKILL and called "
        f"again: {watched.killed_count}; alerts twice: {watched.doubled_count}"
    )
    if not watched.matches:
        errors().print("[bold red]The demo failed[/]: alerts and late departures differ.")
        raise typer.Exit(1)
    results().print("[bold green]One alert for each late departure.[/]")


def _show_objects(seed: int, *, is_cluster: bool) -> None:
    from boki.demo.store_act import kill_in_the_middle
    from boki.launch.child import Child

    with tempfile.TemporaryDirectory(prefix="boki-demo-") as folder, progress() as bar:
        shown = bar.add_task("starting", total=None)
        kind = UpConfig if is_cluster else DevConfig
        config = kind(data=Path(folder) / "data", functions=functions_folder(), port=0)
        with Child(config) as child:
            judged = asyncio.run(
                kill_in_the_middle(
                    child,
                    Random(seed),
                    lambda what, done, of: bar.update(shown, description=what, completed=done, total=of),
                )
            )
    results().print(
        f"[bold]Killed with SIGKILL[/] when all were accepted: {judged.done_count:,} transfers were carried out, "
        f"{judged.refused_count:,} found too little; {judged.runs_again:,} calls ran more than once."
    )
    results().print(
        f"accounts with another balance than the transfers leave: {len(judged.wrong_accounts)}; totals at "
        f"{len(judged.totals)} moments of the past: {', '.join(map(str, sorted(set(judged.totals))))} "
        f"(opened with {judged.expected_total:,})"
    )
    twice = sum(count > 1 for count in judged.posts.values())
    results().print(f"posts in the timeline: {len(judged.posts)} of {judged.expected_posts}; twice: {twice}")
    if not judged.matches:
        errors().print(f"[bold red]The demo failed[/] (seed {seed}).")
        raise typer.Exit(1)
    results().print("[bold green]Nothing was lost, and nothing happened twice.[/]")


async def _perform(folder: Path, table: Path, seed: int, *, is_cluster: bool) -> bool:
    from boki.client import Client
    from boki.demo import acts
    from boki.launch.child import Child

    def config(name: str) -> DevConfig | UpConfig:
        if is_cluster:  # the primary is killed, and the engine that ingests continues
            return UpConfig(data=folder / name, functions=functions_folder(), port=0, separate=True)
        return DevConfig(data=folder / name, functions=functions_folder(), port=0, reload=False)

    killed: list[str] = []
    with progress() as bar:
        task = bar.add_task("starting", total=None)

        def step(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total)

        with Child(config("flights")) as child:
            await asyncio.to_thread(child.start)
            async with Client(child.url) as client:
                primary = await _primary_of(client) if is_cluster else ""
                ingested = await acts.ingest(
                    client, table, step, halfway=lambda: killed.extend(_kill(child.config, primary))
                )
                before = time.perf_counter()
                compared = await acts.compare(client, table, step)
                read_s = time.perf_counter() - before
            await asyncio.to_thread(child.stop)
        came_back = await acts.kill_and_come_back(config("killed"), table, Random(seed), step)
    _show_comparison(ingested, compared, read_s)
    for node in killed:
        results().print(f"[bold]{node}, which ordered the records, was killed[/] half-way in: no call failed.\n")
    _show_came_back(came_back)
    return all(one.matches for one in compared) and came_back.all_found


async def _primary_of(client: Client) -> str:
    """The sequencer that orders the records."""
    leader = leader_of(await client.status())
    return next(iter(leader.get("primaries", [])), "")


def _kill(config: DevConfig | UpConfig, node: str) -> list[str]:
    """SIGKILL for the node of that cluster; its name, if it runs."""
    state = read_state(config.folder) if isinstance(config, UpConfig) else None
    pid = state.pid_of(node) if state is not None else 0
    if pid:
        os.kill(pid, signal.SIGKILL)
    return [node] if pid else []


def _show_comparison(ingested: Ingested, compared: list[Compared], read_s: float) -> None:
    rows = []
    for one in compared:
        kind, _, value = one.tag.partition(":")
        if kind == "carrier":
            rows.append(
                (
                    value,
                    f"{one.from_log.flight_count:,}",
                    f"{one.from_log.arrived_count:,}",
                    _minutes(one.from_log.mean_arr_delay_min),
                    _minutes(one.from_table.mean_arr_delay_min),
                    "yes" if one.matches else "NO",
                )
            )
    columns = ["carrier", "flights>", "arrived>", "mean delay, log>", "mean delay, table>", "equal"]
    print_table(columns, rows, title="Mean arrival delay in minutes, from the LogBook and from the package's table")
    others = [one for one in compared if not one.tag.startswith("carrier:")]
    equal_count = sum(one.matches for one in others)
    read_count = sum(one.from_log.flight_count for one in compared)
    results().print(f"origins and destinations: {equal_count} of {len(others)} equal")
    results().print(
        f"in:  {ingested.flight_count:,} flights in {ingested.elapsed_s:.1f} s, "
        f"{ingested.flight_count / ingested.elapsed_s:,.0f} durable appends/s through a function"
    )
    results().print(
        f"out: {read_count:,} records by {len(compared)} tags in {read_s:.1f} s, {read_count / read_s:,.0f} records/s\n"
    )


def _show_came_back(came_back: CameBack) -> None:
    results().print(
        f"[bold]Killed with SIGKILL in mid-ingest[/], started again in {came_back.restart_s:.1f} s: "
        f"{came_back.found_count:,} of {came_back.acknowledged_count:,} acknowledged records found, same seqnums, "
        f"same bytes."
    )
    if came_back.unacknowledged_count:
        results().print(
            f"{came_back.unacknowledged_count:,} more were on their way, whole batches of them, and were kept."
        )
    if came_back.torn_batch_count or came_back.duplicate_count:
        results().print(
            f"[bold red]{came_back.torn_batch_count} batches are there in part, "
            f"{came_back.duplicate_count} records twice[/]"
        )
    results().print()


def _minutes(mean_min: float | None) -> str:
    return "-" if mean_min is None else f"{mean_min:.6f}"
