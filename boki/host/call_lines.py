"""One line for each call and each refusal, so that people who watch see what the system does with requests.

A busy system has more calls than people can read, and each line costs time: beyond `max_lines` a second they are told
together, in one line. Calls that went well cannot crowd out those that did not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from boki.errors import BokiError, CallCancelled, FunctionFailed
from boki.host.line_budget import LineBudget
from boki.host.lines import speaker
from boki.protocol.calls import Call, Outcome

MAX_LINES: Final = 20
"""Lines a second for calls that went well, and as many for all others."""
_MESSAGE_CHARS: Final = 300
_NO_PROBLEMS: Final = frozenset({"ok", "suspended", CallCancelled.code})
"""A caller that leaves, or wants the head of a stream only, is no problem of the system."""

Write = Callable[[bool, str, str, Mapping[str, Any]], None]
"""Writes a line: whether it reports a problem, who says it, the text, and the facts for programs."""


class CallLines:
    """Told of each end of a call and of each refused request. Used from the event loop's thread only."""

    def __init__(self, write: Write, *, who: str, max_lines: int = MAX_LINES, only_problems: bool = False) -> None:
        """`who` says what belongs to no call. `only_problems`: neither calls that went well, nor functions that
        failed, because their workers have said why.
        """
        self._write = write
        self._who = who
        self._only_problems = only_problems
        self._good = LineBudget(max_lines, self._tell_good)
        self._bad = LineBudget(max_lines, self._tell_bad)
        self._slowest_us = 0
        self._codes: Counter[str] = Counter()

    def ended(self, call: Call, outcome: Outcome, elapsed_us: int) -> None:
        """A call has ended."""
        failure = outcome.failure
        if failure is None:
            if self._only_problems:
                return
            if self._good.admit():
                self._call(call, "ok" if outcome.suspended is None else "suspended", elapsed_us, "")
            else:
                self._slowest_us = max(self._slowest_us, elapsed_us)
        elif self._only_problems and failure.code == FunctionFailed.code:
            return
        elif self._bad.admit():
            # An exception is summed up below its traceback. What is no exception was said in full by the worker.
            is_told = failure.code == FunctionFailed.code and "traceback" not in failure.details
            self._call(call, failure.code, elapsed_us, "" if is_told else failure.message)
        else:
            self._codes[failure.code] += 1

    def refused(self, request: str, error: BokiError) -> None:
        """A request was refused before it became a call."""
        if self._bad.admit():
            text = f"{request[:_MESSAGE_CHARS]} was refused: {error.code}: {_first_line(error.message)}"
            self._write(True, self._who, text, {"request": request, "outcome": error.code})
        else:
            self._codes[error.code] += 1

    def close(self) -> None:
        """Tell what is left to tell."""
        self._good.close()
        self._bad.close()

    def _call(self, call: Call, code: str, elapsed_us: int, message: str) -> None:
        facts = {
            "function": call.function,
            "invocation": call.id,
            "outcome": code,
            "duration_ms": round(elapsed_us / 1000, 3),
        }
        reason = f": {_first_line(message)}" if message else ""
        who = speaker("", call.function, call.id)
        self._write(code not in _NO_PROBLEMS, who, f"{code} in {_duration(elapsed_us)}{reason}", facts)

    def _tell_good(self, count: int) -> None:
        text = f"{count:,} more calls ok in the last second, the slowest in {_duration(self._slowest_us)}"
        self._write(False, self._who, text, {"outcome": "ok", "count": count})
        self._slowest_us = 0

    def _tell_bad(self, count: int) -> None:
        codes = ", ".join(f"{number:,} {code}" for code, number in self._codes.most_common())
        text = f"{count:,} more calls and requests failed in the last second: {codes}"
        is_problem = not self._codes.keys() <= _NO_PROBLEMS
        self._write(is_problem, self._who, text, {"count": count, "outcomes": dict(self._codes)})
        self._codes.clear()


def _duration(elapsed_us: int) -> str:
    """A time as people read it.

    >>> _duration(734), _duration(12_345), _duration(2_345_678)
    ('0.73 ms', '12.3 ms', '2.35 s')
    """
    if elapsed_us < 10_000:
        return f"{elapsed_us / 1e3:.2f} ms"
    return f"{elapsed_us / 1e3:.1f} ms" if elapsed_us < 1_000_000 else f"{elapsed_us / 1e6:.3g} s"


def _first_line(message: str) -> str:
    line, *more = message.split("\n", 1)
    return f"{line[:_MESSAGE_CHARS]} …" if more or len(line) > _MESSAGE_CHARS else line
