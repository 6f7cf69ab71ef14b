"""`boki chaos`: hurt a real cluster on this machine for a while, and check whether it kept its promises."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from boki.cli.connection import AsJson
from boki.cli.help import examples
from boki.cli.terminal import errors, print_json, print_table, progress, results
from boki.errors import InvalidArgument

if TYPE_CHECKING:
    from boki.verify.chaos.faults import Fault
    from boki.verify.chaos.run import Report

_TERMINATED: Final = 128 + signal.SIGTERM


class _Layout(NamedTuple):
    """What kind of cluster it is."""

    is_separate: bool
    speculates: bool
    has_direct_links: bool


@examples("boki chaos", "boki chaos --minutes 30 --seed 7 --keep chaos-7")
def command(
    minutes: Annotated[float, typer.Option(min=0.0, help="How long faults go on; each class comes at least once.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Draws the faults and the load.")] = 1,
    sessions: Annotated[int, typer.Option(min=1, max=1000, help="Clients at work.")] = 10,
    faults: Annotated[
        list[str] | None, typer.Option("--fault", metavar="CLASS", help="Only this class of faults; may be repeated.")
    ] = None,
    separate: Annotated[bool, typer.Option("--separate", help="Every role is a process of its own.")] = False,
    speculative_cuts: Annotated[
        bool, typer.Option("--speculative-cuts/--no-speculative-cuts", help="Whether cuts run ahead of reports.")
    ] = True,
    direct_links: Annotated[
        bool,
        typer.Option(
            "--direct-links", help="Nodes speak by the sockets of production, and cannot be cut off from each other."
        ),
    ] = False,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the cluster's files, logs and the history in this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every promise of a cluster while its parts fail.

    The cluster is under load while its processes, links, disks and ZooKeeper fail. A node dies with all its roles.

    Ends with 0 only if no promise was broken and every class of faults has happened.
    """
    from boki.verify.chaos.faults import FAULTS

    known = {fault.name: fault for fault in FAULTS if not (direct_links and fault.cuts_nodes)}
    if unknown := [name for name in faults or () if name not in known]:
        why = " with --direct-links" if any(fault.name in unknown for fault in FAULTS) else ""
        raise InvalidArgument(f"there is no class of faults {', '.join(unknown)}{why}: there are {', '.join(known)}")
    chosen = [known[name] for name in faults or known]
    with tempfile.TemporaryDirectory(prefix="boki-chaos-") as scratch, progress(counted=False) as bar:
        task = bar.add_task("starting a cluster", total=None)

        began_s = time.monotonic()

        def tell(text: str) -> None:
            text = f"{time.monotonic() - began_s:7.2f} {text}"
            bar.update(task, description=text[:100])
            bar.console.print(text, style="dim", highlight=False, markup=False)

        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            layout = _Layout(separate, speculative_cuts, direct_links)
            report = asyncio.run(_run(folder, seed, minutes * 60, chosen, sessions, tell, layout))
        except asyncio.CancelledError:
            raise typer.Exit(_TERMINATED) from None
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)
    if not report.is_clean:
        raise typer.Exit(1)


async def _run(
    folder: Path,
    seed: int,
    duration_s: float,
    faults: Sequence[Fault],
    sessions: int,
    tell: Callable[[str], None],
    layout: _Layout,
) -> Report:
    from boki.verify.chaos.run import Chaos
    from boki.verify.chaos.target import TargetCluster

    run = asyncio.current_task()
    assert run is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, run.cancel)  # ends what was started, too
    # one more storage node than replicas, so that one can be drained
    target = TargetCluster(folder, storage=4, tell=tell, **layout._asdict())
    try:
        await target.start()
        tell("the cluster serves")
        chaos = Chaos(target, folder, seed=seed, duration_s=duration_s, faults=faults, sessions=sessions, tell=tell)
        return await chaos.run()
    finally:
        await target.stop()


def _show(report: Report) -> None:
    rows = [
        (name, str(count), _seconds(report.stalls_s.get(name)), _seconds(report.slowest_append_s.get(name)))
        for name, count in sorted(report.faults.items())
    ]
    print_table(["fault", "times>", "longest stall s>", "slowest append s>"], rows, title=f"seed {report.seed}")
    out = results()
    told = f"{report.acknowledged:,} acknowledged appends, {report.unknown:,} whose outcome is unknown"
    out.print(f"{told}, {report.refused:,} refused")
    out.print(
        f"{report.accepted_calls:,} accepted calls; {report.messages:,} messages of queues; "
        f"{report.transactions:,} transactions over objects; {report.workflows:,} workflows"
    )
    out.print(f"{report.reconfigurations} changes of the plan, {report.terms} terms")
    out.print(f"while no fault was at work, 99% of appends took at most {report.p99_append_s:.3f} s")
    out.print(f"longest stall {report.longest_stall_s:.2f} s, {report.duration_s:.0f} s in all")
    for name in report.missing:
        errors().print(f"[red]{name} was never felt: this run shows nothing about it[/]")
    for text in report.violations:
        errors().print(text, style="red", markup=False, highlight=False)
    if report.is_clean:
        out.print("[green]every promise was kept[/]")


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
