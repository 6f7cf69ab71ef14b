"""What `boki up` shows: one screen that says who is alive on a terminal, lines elsewhere, JSON objects for programs."""

from __future__ import annotations

import collections
import errno
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from boki.cli.terminal import Nowhere, bytes_text, results, table_lines
from boki.config.loading import LogFormat
from boki.host.clock import now_us
from boki.host.lines import console_lines, json_line
from boki.launch.up.core import SupervisorCore
from boki.launch.up.health import leader_of, sentences
from boki.launch.up.identity import resident_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_SHOWN_EVENTS = 5
_PROBLEMS = {"exited", "failed", "killed", "unwritable"}
_COLOURS = {"running": "green", "waiting": "yellow", "stopping": "yellow", "stopped": "dim"}


class UpScreen:
    """Told what happens and what the cluster says of itself; `refresh` draws it. It starts no thread."""

    def __init__(self, log_format: LogFormat, core: SupervisorCore, facts: Mapping[str, str]) -> None:
        """`facts`: lines above the table, such as where the data is."""
        self.is_ready = False
        self.status: Mapping[str, Any] | None = None
        """What the gateway's `/status` said last."""
        self._as_json = log_format == "json"
        self._core = core
        self._facts = facts
        self._events: collections.deque[str] = collections.deque(maxlen=_SHOWN_EVENTS)
        self._live: Live | None = None

    @property
    def is_live(self) -> bool:
        """Whether somebody looks at a screen that is drawn again and again."""
        return self._live is not None

    def start(self) -> None:
        """Begin to show."""
        if not self._as_json and results().is_terminal:
            from rich.live import Live

            self._live = Live(self._drawn(), console=results(), auto_refresh=False, transient=False)
            self._say(self._live.start)
        elif not self._as_json:
            for name, value in self._facts.items():
                self._line(f"{name}: {value}")

    def stop(self) -> None:
        """Leave the screen as it is."""
        if self._live is not None:
            self.refresh()
            if self._live is not None:
                self._say(self._live.stop)
            self._live = None

    def refresh(self) -> None:
        """Draw the screen as things are now; does nothing where there is none."""
        if self._live is not None:
            self._say(partial(self._live.update, self._drawn(), refresh=True))

    def event(self, event: str, text: str, facts: Mapping[str, Any]) -> None:
        """Something happened. Lines that say only what was asked for are left out where people read."""
        level = logging.WARNING if event in _PROBLEMS else logging.INFO
        if self._as_json:
            self._line(json_line(now_us(), level, event, text, facts))
            return
        line = "\n".join(console_lines(now_us(), "boki", level, text))
        if self._live is None:
            self._line(line)
        elif event != "started" or facts.get("restarts"):
            self._events.append(line)
            self.refresh()

    def _line(self, text: str) -> None:
        self._say(lambda: print(text, file=sys.stdout, flush=True))

    def _say(self, say: Callable[[], None]) -> None:
        """A terminal that is closed, or a pipe that nobody reads any more, decides nothing about the cluster: what is
        said from then on goes nowhere. A file on a full disk takes later lines again.
        """
        try:
            say()
        except (OSError, ValueError, SystemExit) as error:  # rich ends the process where a pipe is broken
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                return
            sys.stdout = Nowhere()
            self._live = None

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        state = "stopping" if self._core.is_stopping else "ready" if self.is_ready else "starting"
        head = Text.assemble(("Boki ", "bold"), (state, "bold green" if state == "ready" else "bold yellow"))
        if term := leader_of(self.status or {}).get("term"):
            head.append(f", term {term}")
        lines = [
            Text(f"  {name:<10} {value}", no_wrap=True, overflow="ellipsis") for name, value in self._facts.items()
        ]
        table = Text("\n").join(table_lines(_COLUMNS, rows(self._core), results().width))
        for state, colour in _COLOURS.items():
            table.highlight_words([state], colour)
        said = [Text(text, style="yellow") for text in sentences(self.status)] if self.status else []
        hint = Text("Ctrl-C stops it; `boki status` says more.", style="dim")
        return Group(
            head, *lines, table, *said, *(Text(event, style="dim", overflow="ellipsis") for event in self._events), hint
        )


_COLUMNS: Sequence[str] = ("role", "node", "state", "pid>", "restarts>", "memory>")


def rows(core: SupervisorCore) -> list[tuple[str, ...]]:
    """The table's cells: what the supervisor knows of each process."""
    found: list[tuple[str, ...]] = []
    for node, row in core.rows.items():
        memory = bytes_text(resident_bytes(row.pid)) if row.pid else ""
        pid = str(row.pid) if row.pid else ""
        found.append((row.process.role, node, row.state.value, pid, str(row.restarts), memory))
    return found
