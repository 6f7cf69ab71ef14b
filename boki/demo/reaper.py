"""Stops a worker process at a chosen line of its functions, where `boki demo flow` kills the whole machine.

The demo appends `watch_lines(...)` to a copy of the functions. A plan says after how many lines the process stops; what
happens is noted in a file: each function that begins, and the line at which the process stalls.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

_FOREVER_S: Final = 3_600.0


class Plan(msgspec.Struct, frozen=True):
    """After how many lines the process stops."""

    lines: int


class Note(msgspec.Struct, frozen=True):
    """A function began, or the process stopped in it: then `is_end`. `line` counts from 1."""

    function: str
    line: int
    is_end: bool


Tracer = Callable[[FrameType, str, Any], Any]


class Reaper:
    """Counts the lines of one file that this process runs; `note` is told, `stop` is called at the last of them."""

    def __init__(self, file: str, lines: int, note: Callable[[Note], None], stop: Callable[[], None]) -> None:
        self._file = file
        self._left = lines
        self._note = note
        self._stop = stop

    def on_call(self, frame: FrameType, event: str, _argument: Any) -> Tracer | None:
        """A tracer of Python's: a function is called, or continues."""
        code = frame.f_code
        if code.co_filename != self._file or code.co_name.startswith("<"):
            return None
        if event == "call" and frame.f_lineno == code.co_firstlineno:
            self._note(Note(code.co_name, frame.f_lineno, is_end=False))
        return self._on_line

    def _on_line(self, frame: FrameType, event: str, _argument: Any) -> Tracer:
        if event == "line" and self._left > 0:
            self._left -= 1
            if not self._left:
                self._note(Note(frame.f_code.co_name, frame.f_lineno, is_end=True))
                self._stop()
        return self._on_line


def watch_lines(file: str, plan: str, notes: str) -> None:
    """Follow the plan, if there is one, in the thread that calls this."""
    try:
        wanted = msgspec.json.decode(Path(plan).read_bytes(), type=Plan)
    except FileNotFoundError:
        return

    def write(note: Note) -> None:
        descriptor = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, msgspec.json.encode(note) + b"\n")
        os.close(descriptor)

    sys.settrace(Reaper(file, wanted.lines, write, lambda: time.sleep(_FOREVER_S)).on_call)


def notes_in(path: Path, start: int = 0) -> list[Note]:
    """What was noted, from the `start`-th on."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [msgspec.json.decode(line, type=Note) for line in lines[start:-1]]
