"""What a node writes: what happens to it, what its functions print, and how its calls fail.

All are log records, and the node's one handler gives them form: lines for people, or one JSON object a line.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, TextIO

from boki.config.loading import LogFormat
from boki.host.call_lines import CallLines
from boki.host.lines import FACTS, SPEAKER, DayLine, console_lines, json_line, speaker
from boki.worker.frames import ConsoleLine

FUNCTION_LINE: Final = "boki_line"
"""Attribute of a record: the `ConsoleLine` that it stands for."""
_MAX_CALL_LINES: Final = 1
"""A second: what callers do wrong must not push everything else out of a log of bounded size."""

_log = logging.getLogger("boki.functions")


def log_function_line(line: ConsoleLine) -> None:
    """Log something that a function printed, logged or raised. Its level was decided where it was said."""
    text = f"{speaker(line.module, line.function, line.invocation)} {line.text}"
    record = logging.LogRecord(_log.name, line.level, __file__, 0, text, None, None)
    setattr(record, FUNCTION_LINE, line)
    _log.handle(record)


def problem_lines(node: str) -> CallLines:
    """What logs calls that did not go well: timeouts, refusals, lost workers."""
    return CallLines(_log_call, who=node, max_lines=_MAX_CALL_LINES, only_problems=True)


def _log_call(is_problem: bool, who: str, text: str, facts: Mapping[str, Any]) -> None:
    level = logging.WARNING if is_problem else logging.INFO
    _log.log(level, "%s", text, extra={SPEAKER: who, FACTS: facts})


def log_to(stream: TextIO, log_format: LogFormat, node: str) -> None:
    """Write what Boki and functions say, in the same form as `boki dev`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JsonLines(node) if log_format == "json" else _Lines(node))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])  # of libraries, too
    logging.getLogger("boki").setLevel(logging.INFO)


class _Lines(logging.Formatter):
    """For people. A line tells the date whenever it has changed, because a log is read days later."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node
        self._day = DayLine()

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line: ConsoleLine | None = getattr(record, FUNCTION_LINE, None)
        time_us = round(record.created * 1e6) if line is None else line.time_us
        day = self._day.before(time_us)
        lines = console_lines(time_us, self._node, logging.INFO, day) if day else []
        if line is not None:
            who, text = speaker(line.module, line.function, line.invocation), line.text
        else:
            who = getattr(record, SPEAKER, self._node)
            text = super().format(record).removeprefix(f"{self._node}: ")
        return "\n".join(lines + console_lines(time_us, who, record.levelno, text))


class _JsonLines(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line: ConsoleLine | None = getattr(record, FUNCTION_LINE, None)
        if line is not None:
            return function_json(line, node=self._node)
        facts: dict[str, Any] = {"node": self._node, "logger": record.name, **getattr(record, FACTS, {})}
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        event = "call" if hasattr(record, FACTS) else "log"
        text = record.getMessage().removeprefix(f"{self._node}: ")
        return json_line(round(record.created * 1e6), record.levelno, event, text, facts)


def function_json(line: ConsoleLine, **facts: Any) -> str:
    """Something that a function printed, logged or raised, for programs."""
    facts |= {
        "module": line.module,
        "function": line.function,
        "invocation": line.invocation,
        "logger": line.logger,
    }
    return json_line(line.time_us, line.level, line.stream, line.text, facts)
