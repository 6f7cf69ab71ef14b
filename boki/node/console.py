"""What an engine's functions print, and how its calls fail, as log records: the node's one handler gives them form."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from boki.host.call_lines import CallLines
from boki.host.lines import FACTS, SPEAKER, speaker
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
