"""`boki sim`: whole clusters under a virtual clock and under faults, one a seed; the exit status says if one broke."""

from __future__ import annotations

import os
import re
import sys
import traceback
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final

import typer

from boki.cli.help import examples
from boki.cli.terminal import errors

if TYPE_CHECKING:
    from boki.verify.sim.batches import Summary

_DULL: Final = re.compile(r": (Ping|Pong|FetchShards|ShardsFetched|InstallMembership|InstallPlan|InstallPlacement) ")
_BYTES: Final = re.compile(r"""\bb(['"])((?:\\.|(?!\1).)*)\1""")
_SHORT_BYTES: Final = 24
_LINE_CHARACTERS: Final = 400
_SHOWN: Final = 3
_BATCH_ONLY: Final = ("seeds", "start", "processes")
INTERRUPTED: Final = 130


@examples("boki sim", "boki sim --seeds 10000 --processes 8", "boki sim --seed 42 --about Append")
def command(
    context: typer.Context,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run.")] = 100,
    start: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    seed: Annotated[int | None, typer.Option(min=0, help="Run this one only, and tell its story.")] = None,
    about: Annotated[str, typer.Option(metavar="REGEX", help="With --seed: only these lines of the story.")] = "",
    shrink: Annotated[
        bool, typer.Option("--shrink", help="With --seed: make the failure small, and write it as a test.")
    ] = False,
    into: Annotated[Path, typer.Option(help="With --shrink: where the test goes.")] = Path(
        "tests/verify/sim/regressions"
    ),
    objects: Annotated[
        bool, typer.Option("--objects", help="Only transactions over objects, and many more in each seed.")
    ] = False,
    processes: Annotated[int, typer.Option(min=0, help="Number of processes; 0: one per core.")] = 0,
) -> None:
    """Simulate whole clusters under faults, one for each seed.

    A virtual clock drives them through lost messages, crashes, torn disks and reconfigurations. Each seed is one
    history, and always the same one. The exit status is 0 only if every promise was kept, and if the batch met the rare
    situations that make it worth something; 130 if it was interrupted.
    """
    _check_usage(context, is_single=seed is not None, shrinks=shrink)
    wanted = _pattern(about)
    if seed is not None:
        raise typer.Exit(_shrink(seed, into, objects) if shrink else _tell(seed, wanted, objects))
    raise typer.Exit(_run(start, seeds, processes or os.cpu_count() or 1, objects))


def _check_usage(context: typer.Context, *, is_single: bool, shrinks: bool) -> None:
    """Refuse options that would be ignored."""

    def refuse(names: tuple[str, ...], why: str) -> None:
        for name in names:
            source = context.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                raise typer.BadParameter(why, ctx=context, param_hint=f"--{name}")

    if is_single:
        refuse(_BATCH_ONLY, "that is for a batch of seeds; --seed runs one")
    else:
        refuse(("about", "shrink", "into"), "that needs --seed: which one?")
    if shrinks:
        refuse(("about",), "--shrink tells no story: leave out one of them")
    else:
        refuse(("into",), "that needs --shrink")


def _pattern(about: str) -> re.Pattern[str] | None:
    try:
        return re.compile(about) if about else None
    except re.error as error:
        raise typer.BadParameter(f"{about!r} is not a regular expression: {error}", param_hint="--about") from None


def _run(start: int, count: int, processes: int, has_objects_only: bool) -> int:
    from concurrent.futures.process import BrokenProcessPool

    from boki.verify.sim.batches import Summary, run_seeds
    from boki.verify.sim.coverage import OF_OBJECTS
    from boki.verify.sim.options import draw_objects, draw_options

    summary = Summary(OF_OBJECTS) if has_objects_only else Summary()
    status = None
    began = monotonic()
    try:
        for result in run_seeds(
            range(start, start + count), processes, draw_objects if has_objects_only else draw_options
        ):
            summary.add(result)
            for text in result.violations[:_SHOWN]:
                print(f"seed {result.seed}: {text}", flush=True)
            if sys.stderr.isatty():
                print(f"\r{summary.seeds} of {count} seeds, {len(summary.broken)} broken", end="", file=sys.stderr)
    except (KeyboardInterrupt, BrokenProcessPool) as error:
        left = count - summary.seeds
        objects = " --objects" if has_objects_only else ""
        go_on = f"boki sim{objects} --start {start + summary.seeds} --seeds {left} --processes {processes}"
        why = "stopped" if isinstance(error, KeyboardInterrupt) else "a process that ran seeds has died: it ended"
        errors().print(f"\n{why} after {summary.seeds} of {count} seeds; `{go_on}` runs and counts the others alone")
        status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    _report(summary, start, monotonic() - began)
    return status or (0 if summary.is_good else 1)


def _report(summary: Summary, start: int, took_s: float) -> None:
    if not summary.seeds:
        return
    print(
        f"\nseeds {start} to {start + summary.seeds - 1} in {took_s:.1f} s: {len(summary.broken)} broke a promise; "
        f"{summary.events / took_s:,.0f} events/s, {summary.events // summary.seeds:,} a seed; "
        f"median of operations {median(summary.operations):.0f}, of terms {median(summary.terms):.0f}; "
        f"{summary.transactions:,} transactions over objects committed"
    )
    for name in sorted({*summary.wanted, *summary.seen}):
        print(f"  {summary.seen[name]:8,}  {name}")
    if summary.unseen:
        print(f"never met: {', '.join(summary.unseen)}")
    if summary.broken:
        numbers = " ".join(str(result.seed) for result in summary.broken)
        print(f"broken: {numbers}\n`boki sim --seed N` tells the story of one, with --shrink it becomes a test")


def _tell(seed: int, wanted: re.Pattern[str] | None, has_objects_only: bool) -> int:
    from boki.verify.sim.options import draw_objects, draw_options
    from boki.verify.sim.simulation import simulate

    def tell(line: str) -> None:
        if wanted.search(line) if wanted is not None else not _DULL.search(line):
            print(_BYTES.sub(_shorten, line)[:_LINE_CHARACTERS])

    options = (draw_objects if has_objects_only else draw_options)(seed)
    try:
        outcome = simulate(options, tell)
    except Exception:  # noqa: BLE001 - the story so far is worth more than a traceback alone
        print(f"\n{options}\n\nthe simulator raised, which is a bug of its own:\n{traceback.format_exc()}")
        return 1
    print(f"\n{outcome.options}\n")
    for violation in outcome.violations:
        print(violation)
        for call in violation.calls:
            print(f"    {call}")
    print(
        f"{outcome.operations} operations, {outcome.terms} terms, {outcome.events} events, trace {outcome.trace}: "
        f"{len(outcome.violations) or 'no'} broken promises"
    )
    return 1 if outcome.violations else 0


def _shorten(found: re.Match[str]) -> str:
    return found[0] if len(found[2]) <= _SHORT_BYTES else "<bytes>"


def _shrink(seed: int, into: Path, has_objects_only: bool) -> int:
    from boki.verify.sim.options import draw_objects, draw_options
    from boki.verify.sim.shrinking import regression, shrink

    if into.exists() and not into.is_dir():  # said before the work
        raise typer.BadParameter(f"{into} is no folder, and tests are written into one", param_hint="--into")
    try:
        options, promise = shrink((draw_objects if has_objects_only else draw_options)(seed))
    except ValueError as error:
        print(error)
        return 0
    print(f"{options}\nbreaks: {promise}")
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"test_seed_{seed}.py"
    path.write_text(regression(options, promise))
    print(f"written to {path}")
    return 1
