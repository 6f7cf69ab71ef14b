"""Reads what the nodes of a cluster have written: the last lines of all, merged by time, and new ones as they come.

A log is `NODE.log`, and before it `NODE.log.1`, into which the supervisor moves what was there when the file had grown
too large. A reader that follows sees that move by the older file, which is another one then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from boki.host.lines import day_of, read_console_line
from boki.launch.up.logs import older

_FIRST_BYTES: Final = 128 << 10
_DAY_US: Final = 86_400_000_000
_DISORDER_US: Final = 60_000_000
"""Lines of one file are out of order by less than that, so a larger step back in time is another day."""
_EPOCH: Final = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a node's log. `facts`: all fields of a JSON line, else what the line says."""

    time_us: int
    node: str
    who: str
    invocation: str
    level: int
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


Matches = Callable[[LogLine], bool]


class NodeLog:
    """The log of one node."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.node = file.name.removesuffix(".log")
        self._offset = 0
        self._older_mark = 0
        self._unfinished = b""
        self._last = LogLine(0, self.node, self.node, "", logging.INFO, "")
        self._day: int | None = None

    def last(self, count: int, matches: Matches) -> list[LogLine]:
        """The last lines that match, at most `count` of them. `new` continues after them."""
        previous, current = _read(older(self.file)), _read(self.file)
        self._older_mark = _mark(older(self.file))
        self._offset = len(current)
        cut = current.rfind(b"\n") + 1
        self._unfinished = current[cut:]
        whole = previous + current[:cut]
        size_bytes = _FIRST_BYTES
        while True:
            is_all = size_bytes >= len(whole)
            texts = whole[-size_bytes:].decode(errors="replace").split("\n")[0 if is_all else 1 :]
            dated = self._dated([text for text in texts if text.strip()])
            found = [line for line in dated if matches(line) and day_of(line.text) is None]
            if is_all or len(found) >= count:
                return found[-count:] if count else []
            size_bytes *= 4

    def new(self) -> list[LogLine]:
        """The whole lines that were written since the last look."""
        data = self._unread()
        if self._day is None:
            self._day = self._changed_us() // _DAY_US
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        told = [self._next(text) for line in lines if (text := line.decode(errors="replace")).strip()]
        return [line for line in told if day_of(line.text) is None]

    def _unread(self) -> bytes:
        data = b""
        try:
            size_bytes = self.file.stat().st_size
        except FileNotFoundError:
            return b""
        mark = _mark(older(self.file))
        if size_bytes < self._offset or (mark != self._older_mark and size_bytes < _size(older(self.file))):
            data = _read(older(self.file), self._offset)
            self._older_mark, self._offset = mark, 0
        found = _read(self.file, self._offset)
        self._offset += len(found)
        return data + found

    def _dated(self, texts: list[str]) -> list[LogLine]:
        """The lines with their days. From the first line that has a date on, days are known; before it, and where none
        has one, they are counted back from there or from the last change of the file.
        """
        self._last = replace(self._last, time_us=0, who=self.node, invocation="", level=logging.INFO)
        self._day = None
        lines = [self._next(text) for text in texts]
        first = next((at for at, line in enumerate(lines) if line.time_us >= _DAY_US), len(lines))
        anchor_us = lines[first].time_us if first < len(lines) else self._changed_us()
        for at in range(first - 1, -1, -1):
            day_us = anchor_us // _DAY_US * _DAY_US
            time_us = day_us + lines[at].time_us
            if time_us > anchor_us + _DISORDER_US:
                time_us -= _DAY_US
            lines[at] = replace(lines[at], time_us=time_us)
            anchor_us = min(anchor_us, time_us)
        if lines:
            self._last = lines[-1]
            self._day = self._last.time_us // _DAY_US
        return lines

    def _changed_us(self) -> int:
        try:
            return self.file.stat().st_mtime_ns // 1000
        except FileNotFoundError:
            return _DAY_US

    def _next(self, text: str) -> LogLine:
        """The line; one that has no time belongs to the one before it. Without a known day, times are of an unknown
        day.
        """
        line = self._json(text) if text.startswith("{") else None
        line = line or self._console(text)
        self._last = line
        return line

    def _json(self, text: str) -> LogLine | None:
        try:
            facts = json.loads(text)
            time = datetime.fromisoformat(facts["time"])
            level = logging.getLevelNamesMapping().get(str(facts["level"]).upper(), logging.INFO)
        except (ValueError, TypeError, KeyError):
            return None
        time_us = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        self._day = time_us // _DAY_US
        who = str(facts.get("function") or facts.get("module") or self.node)
        invocation = str(facts.get("invocation", ""))
        said = str(facts.get("text", ""))
        if "traceback" in facts:
            said += f"\n{facts['traceback']}"
        return LogLine(time_us, self.node, who, invocation, level, said, {**facts, "node": self.node})

    def _console(self, text: str) -> LogLine:
        read = read_console_line(text)
        if read is None:
            return replace(self._last, node=self.node, text=text, facts={})
        if (day := day_of(read.text)) is not None:
            self._day = day.toordinal() - _EPOCH
        elif self._day is not None and self._last.time_us % _DAY_US > read.time_of_day_us + _DAY_US // 2:
            self._day += 1
        time_us = read.time_of_day_us + (self._day or 0) * _DAY_US
        return LogLine(time_us, self.node, read.who, read.invocation, read.level, read.text)


def open_logs(folder: Path) -> list[NodeLog]:
    """The logs of all processes of a cluster, by name."""
    return [NodeLog(file) for file in sorted(folder.glob("*.log"))]


def last_of(nodes: Sequence[NodeLog], count: int, matches: Matches) -> list[LogLine]:
    """The last lines of all nodes together that match."""
    merged = merged_by_time(line for node in nodes for line in node.last(count, matches))
    return merged[-count:] if count else []


def merged_by_time(lines: Iterable[LogLine]) -> list[LogLine]:
    """The lines in the order of their times; those of one node stay in the order in which it wrote them."""
    return sorted(lines, key=lambda line: line.time_us)


def _read(file: Path, offset: int = 0) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            return stream.read()
    except FileNotFoundError:
        return b""


def _mark(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
