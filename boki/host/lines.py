"""The one format of what functions and nodes say, in `boki dev` and in the logs of a cluster.

For people a line has the time (UTC), who says it, the level and the text; a text of several lines becomes several such
lines, so that each can be searched for and merged by time::

    23:04:59.451 boom[269101f6] ERROR KeyError: 'xx'

For programs it is one JSON object a line. Texts come from functions and from strangers, so nothing in them can move the
cursor of an operator's terminal or begin a line that looks like another one's.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

SPEAKER: Final = "boki_speaker"
"""Attribute of a log record: the function or call that it is about, if it is not the node's own."""
FACTS: Final = "boki_facts"
"""Attribute of a log record: fields for programs."""
_ID_DIGITS: Final = 8
_LEVELS: Final = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
_DAY_TEXT: Final = "{} (UTC)"
# Control characters, and what makes a text run backwards: all of them but the tab.
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LINE: Final = re.compile(
    r"(\d\d):(\d\d):(\d\d)\.(\d{3}) ([^\s\[]+)(?:\[([^\s\]]*)\])? (DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL) ?(.*)",
    re.DOTALL,
)
_OTHER_NAMES: Final = {"WARN": "WARNING", "FATAL": "CRITICAL"}  # those of ZooKeeper
_DAY: Final = re.compile(r"(\d{4}-\d\d-\d\d) \(UTC\)")


def printable(text: str) -> str:
    r"""The text with escapes in place of control characters, line feeds among them.

    >>> print(printable("\x1b[2J\x1b[31mred\r\n"))
    \x1b[2J\x1b[31mred\r\n
    """
    return _UNPRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def level_name(level: int) -> str:
    """The nearest level at or below that has a name.

    >>> level_name(logging.WARNING), level_name(35), level_name(1)
    ('WARNING', 'WARNING', 'DEBUG')
    """
    return logging.getLevelName(next((known for known in _LEVELS if level >= known), logging.DEBUG))


def speaker(module: str, function: str, invocation: str) -> str:
    """Who says something that comes from a function: the call, or the module outside of calls.

    >>> speaker("work", "boom", "269101f6d5"), speaker("work", "", "")
    ('boom[269101f6]', 'work')
    """
    return f"{function}[{invocation[:_ID_DIGITS]}]" if function else module


def console_lines(time_us: int, who: str, level: int, text: str) -> list[str]:
    r"""The lines for people.

    >>> console_lines(1_795_388_699_451_000, "boom[269101f6]", logging.ERROR, "no\nyes")
    ['23:04:59.451 boom[269101f6] ERROR no', '23:04:59.451 boom[269101f6] ERROR yes']
    """
    clock = datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%H:%M:%S.%f")[:-3]
    head = printable(f"{clock} {who} {level_name(level)}")
    return [f"{head} {printable(line)}" for line in text.rstrip("\r\n").split("\n")]


def json_line(time_us: int, level: int, event: str, text: str, facts: Mapping[str, Any]) -> str:
    """The line for programs. `event` is a name that does not change; `facts` are further fields."""
    time = datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="microseconds")
    fields = {"time": time, "level": level_name(level).lower(), "event": event, "text": text, **facts}
    line = json.dumps(fields, ensure_ascii=False, default=str)
    # JSON lets some control characters stand as they are. They only occur inside of strings.
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", line)


class DayLine:
    """Says when a day has begun: lines have no date."""

    def __init__(self, today: date | None = None) -> None:
        """`today`: what readers know already."""
        self._today = today

    def before(self, time_us: int) -> str:
        """The text of the line that must come before one of that time; empty if there need be none."""
        day = datetime.fromtimestamp(time_us / 1e6, UTC).date()
        if self._today is not None and day <= self._today:
            return ""
        self._today = day
        return _DAY_TEXT.format(day.isoformat())


@dataclass(frozen=True, slots=True)
class ReadLine:
    """A line for people, as a program reads it. `time_of_day_us` is since midnight."""

    time_of_day_us: int
    who: str
    invocation: str
    level: int
    text: str


def day_of(text: str) -> date | None:
    """The day that begins with the line of this text, if it is one of those that say so.

    >>> day_of("2026-11-22 (UTC)"), day_of("on 2026-11-22 (UTC)")
    (datetime.date(2026, 11, 22), None)
    """
    found = _DAY.fullmatch(text)
    return date.fromisoformat(found[1]) if found else None


def read_console_line(line: str) -> ReadLine | None:
    """What a line for people says; None if it is not one of ours.

    >>> read_console_line("23:04:59.451 boom[269101f6] ERROR no").invocation
    '269101f6'
    """
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    hours, minutes, seconds, milliseconds = map(int, found.group(1, 2, 3, 4))
    of_day_us = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + milliseconds * 1000
    level = logging.getLevelNamesMapping()[_OTHER_NAMES.get(found[7], found[7])]
    return ReadLine(of_day_us, found[5], found[6] or "", level, found[8])
