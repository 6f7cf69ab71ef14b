"""`boki logs`: what the nodes of a cluster on this machine and its functions have written, as one stream."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from boki.cli.connection import AsJson, data_directory, supervisor_of
from boki.cli.help import examples
from boki.cli.terminal import errors, has_colour, print_json
from boki.errors import InvalidArgument, Unavailable
from boki.host.lines import console_lines, level_name, printable, speaker

if TYPE_CHECKING:
    from boki.launch.up.log_reader import LogLine, NodeLog

_POLL_S: Final = 0.2
_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_COLOURS: Final = ((logging.ERROR, "\x1b[31m"), (logging.WARNING, "\x1b[33m"))


@examples(
    "boki logs",
    "boki logs node-1 -f",
    "boki logs --function greet --level warning -n 20",
    "boki logs --json -n 1000 | jq .text",
)
def command(
    node: Annotated[
        str,
        typer.Argument(help="Only this process: node-1, zookeeper, supervisor, ...; with --separate: engine-1, ..."),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines as they come, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of lines to begin with.")] = 100,
    level: Annotated[str, typer.Option(help="Only lines of this level and above: debug, info, warning, error.")] = "",
    function: Annotated[str, typer.Option(metavar="NAME", help="Only what calls of this function have said.")] = "",
    as_json: AsJson = False,
    data: Annotated[
        Path | None, typer.Option(metavar="PATH", envvar="BOKI_DATA", help="The cluster's data directory.")
    ] = None,
) -> None:
    """Print what nodes and functions of a cluster write.

    The lines of all nodes are merged by time, which is UTC. The cluster is that of `boki up` in this folder; `boki dev`
    and nodes of `boki start` write to their own output.
    """
    from boki.launch.up.log_reader import last_of

    if level and level.lower() not in _LEVELS:
        raise InvalidArgument(f"--level {level!r} is not a level: choose one of {', '.join(_LEVELS)}", field="level")
    least = logging.getLevelNamesMapping()[level.upper()] if level else logging.NOTSET

    def matches(line: LogLine) -> bool:
        return line.level >= least and (not function or bool(line.invocation and line.who == function))

    directory = data_directory(data, os.environ)
    nodes = _chosen(directory, node)
    width = 0 if node else max(len(one.node) for one in nodes)
    screen = _Screen(as_json=as_json, width=width)
    found = last_of(nodes, lines, matches)
    screen.show(found)
    if not found and lines:
        errors().print("no such lines", style="dim")
    if follow:
        _follow(directory, node, nodes, screen, matches)
    elif supervisor_of(directory, os.environ) is None:
        errors().print(f"The cluster on {directory} does not run now.", style="dim", markup=False)


def _chosen(directory: Path, node: str) -> list[NodeLog]:
    from boki.launch.up.log_reader import open_logs

    found = open_logs(directory / "cluster" / "logs")
    if not found:
        raise Unavailable(
            f"no cluster has run on {directory}: start one with `boki up`, or name its directory with --data. "
            "`boki dev` and `boki start` write to their own terminals: `boki dev | tee dev.log` keeps a copy",
            retryable=False,
            folder=str(directory),
        )
    chosen = [one for one in found if node in ("", one.node)]
    if not chosen:
        names = ", ".join(one.node for one in found)
        raise InvalidArgument(f"there is no log of {node!r}; there are: {names}", field="node")
    return chosen


def _follow(directory: Path, node: str, nodes: list[NodeLog], screen: _Screen, matches: Any) -> None:
    from boki.launch.up.log_reader import merged_by_time, open_logs

    while True:
        known = {one.node for one in nodes}
        nodes += [one for one in open_logs(directory / "cluster" / "logs") if one.node not in known and not node]
        screen.show(merged_by_time(line for one in nodes for line in one.new() if matches(line)))
        time.sleep(_POLL_S)


class _Screen:
    """Writes lines to stdout."""

    def __init__(self, *, as_json: bool, width: int) -> None:
        """`width`: of the column of nodes; 0: there is none."""
        self._as_json = as_json
        self._width = width
        self._day = datetime.now(UTC).date()
        self._has_colour = has_colour(sys.stdout)

    def show(self, lines: Iterable[LogLine]) -> None:
        """Write the lines, and the date wherever it is another one than before (at first: than today's)."""
        for line in lines:
            if self._as_json:
                print_json(_facts(line))
                continue
            day = datetime.fromtimestamp(line.time_us / 1e6, UTC).date()
            if day != self._day:
                self._day = day
                self._write([f"{day.isoformat()} (UTC)"], "\x1b[2m")
            self._write(self._texts(line), next((code for least, code in _COLOURS if line.level >= least), ""))
        sys.stdout.flush()

    def _texts(self, line: LogLine) -> Sequence[str]:
        who = speaker("", line.who, line.invocation) if line.invocation else line.who
        texts = console_lines(line.time_us, who, line.level, line.text)
        if not self._width:
            return texts
        node = f"{printable(line.node):<{self._width}}"
        if who == line.node:  # said once is enough
            return [text.replace(f" {who} ", f" {node} ", 1) for text in texts]
        return [f"{clock} {node} {rest}" for clock, _, rest in (text.partition(" ") for text in texts)]

    def _write(self, texts: Sequence[str], colour: str) -> None:
        for text in texts:
            sys.stdout.write(f"{colour}{text}\x1b[0m\n" if colour and self._has_colour else f"{text}\n")


def _facts(line: LogLine) -> dict[str, Any]:
    if line.facts:
        return line.facts
    time_text = datetime.fromtimestamp(line.time_us / 1e6, UTC).isoformat(timespec="milliseconds")
    facts = {"time": time_text, "node": line.node, "level": level_name(line.level).lower(), "text": line.text}
    return facts | ({"function": line.who, "invocation": line.invocation} if line.invocation else {})
