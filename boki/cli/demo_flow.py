"""`boki demo flow`: the screen on which a machine dies at line after line, and what is said in the end."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import typer

from boki.cli.terminal import count_text, errors, print_table, results
from boki.config.loading import DevConfig
from boki.config.up import UpConfig
from boki.demo.flow_act import KILLS, SOURCE, Scene, Survived, TripFound, kill_at_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHOWN_KILLS: Final = 6
_COLOURS: Final = {"runs": "green", "starts": "yellow", "was killed": "bold red"}
_FIRST, _LAST = "async def take_room(", "# looking back"
_MARK: Final = "☠"


def show_workflows(functions: Path, seed: int, *, is_cluster: bool) -> None:
    """Run the demo on its screen, and judge. Raises `typer.Exit` with 1 if anything is there twice, or in part."""
    source = functions / SOURCE
    lines = source.read_text(encoding="utf-8").splitlines()
    screen = _Screen(lines)
    with tempfile.TemporaryDirectory(prefix="boki-demo-") as name:
        folder = Path(name) / "functions"
        folder.mkdir()
        data = Path(name) / "data"
        config: DevConfig | UpConfig = DevConfig(data=data, functions=folder, port=0, reload=False)
        if is_cluster:
            config = UpConfig(data=data, functions=folder, port=0)
        with screen:
            survived = asyncio.run(kill_at_lines(config, source, Random(seed), screen.draw))
    _tell(survived)
    if not survived.matches:
        errors().print(f"[bold red]The demo failed[/] (seed {seed}).")
        raise typer.Exit(1)
    results().print(
        f"[bold green]Each trip ended once: a room, a seat and a payment, or nothing.[/] Repeat it by --seed {seed}."
    )


class _Screen:
    """Source code with the lines at which the machine died, and the trips; nothing where nobody looks."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        first = next(number for number, line in enumerate(lines, 1) if line.startswith(_FIRST)) - 1
        last = next(number for number, line in enumerate(lines, 1) if line.startswith(_LAST))
        self._shown = range(first, last - 2)
        self._live = None
        if errors().is_terminal:
            from rich.live import Live

            self._live = Live(console=errors(), auto_refresh=False, transient=True)

    def __enter__(self) -> None:
        if self._live is not None:
            self._live.start()

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def draw(self, scene: Scene) -> None:
        """Show what exists now."""
        if self._live is not None:
            self._live.update(self._drawn(scene), refresh=True)

    def _drawn(self, scene: Scene) -> RenderableType:
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        colour = _COLOURS[scene.machine]
        head = Text.assemble("The machine ", (scene.machine, colour), f"; killed {len(scene.kills)} of {KILLS} times")
        deaths = Text("\n").join(
            Text.assemble((f"{_MARK} ", "red"), (f"{kill.line:>4} ", "dim"), self._lines[kill.line - 1].strip())
            for kill in scene.kills[-_SHOWN_KILLS:]
        )
        trips = Text("\n").join(
            Text(f"{trip.traveller:<8} {trip.hotel} by {trip.flight:<20} {scene.states.get(trip.traveller, '')}")
            for trip in scene.trips
        )
        parts: list[RenderableType] = [head, Panel(self._code(scene), title=SOURCE, title_align="left"), trips]
        if scene.kills:
            parts.append(Panel(deaths, title="died here", title_align="left", border_style="red"))
        return Group(*parts)

    def _code(self, scene: Scene) -> RenderableType:
        """The workflow, and how often the machine died at each of its lines."""
        from rich.syntax import Syntax
        from rich.table import Table

        died = Counter(kill.line for kill in scene.kills)
        grid = Table.grid(padding=(0, 1))
        for number in self._shown:
            mark = _MARK * died[number] if died[number] < 4 else f"{_MARK}{died[number]}"
            code = Syntax(self._lines[number - 1], "python", background_color="default")
            grid.add_row(f"[red]{mark:>3}[/]", f"[dim]{number}[/]", code)
        return grid


def _tell(survived: Survived) -> None:
    print_table(
        ["traveller", "hotel", "flight", "outcome", "paid>", "once"],
        [_row(trip) for trip in survived.trips],
        title="Trips, and what is in the purses",
    )
    kills, begun = survived.scene.kills, survived.scene.begun
    where = ", ".join(f"{kill.function}:{kill.line}" for kill in kills)
    results().print(f"[bold]Killed with SIGKILL {count_text(len(kills), 'time')}[/], in {SOURCE} at {where}.")
    results().print(
        f"The workflow began {begun['reserve_together']} times for {count_text(len(survived.trips), 'trip')}, and its "
        f"transaction {begun['_take_all']} times: a room, a seat and a payment in one append."
    )
    for wrong in survived.wrong_counts:
        results().print(f"[bold red]{wrong}[/]")


def _row(trip: TripFound) -> list[str]:
    paid = f"{trip.paid_cents / 100:,.2f}" if trip.purse_cents else "-"
    outcome = "reserved" if trip.state == "done" else trip.error or trip.state
    wanted = trip.trip
    return [wanted.traveller, wanted.hotel, wanted.flight, outcome, paid, "yes" if trip.is_right else "NO"]
