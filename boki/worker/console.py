"""What a function prints, logs and raises, as lines that carry its name and invocation id.

`sys.stdout`, `sys.stderr` and the root logger of a worker are replaced. Which call a line belongs to is known by a
context variable, so that calls side by side in one loop, and the threads that `asyncio.to_thread` makes, are told
apart; a thread that knows of no call speaks for the one call of a blocking worker, else for the module.
"""

from __future__ import annotations

import io
import logging
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Literal

from boki.api.tracebacks import shorten, traceback_text
from boki.log.limits import KIB
from boki.worker.frames import ConsoleLine

MAX_LINE_CHARS: Final = 16 * KIB
"""A longer line is broken into several."""

Stream = Literal["stdout", "stderr"]
Emit = Callable[[ConsoleLine], None]


class Speaker:
    """Who a line comes from: a call, or the module outside of calls. Keeps the line that is not finished yet."""

    __slots__ = ("function", "invocation", "module", "unfinished")

    def __init__(self, module: str, function: str = "", invocation: str = "") -> None:
        self.module = module
        self.function = function
        self.invocation = invocation
        self.unfinished: dict[Stream, str] = {}


SPEAKER: Final[ContextVar[Speaker]] = ContextVar("boki_speaker")
"""The call that this code runs for."""


class Console:
    """Turns what a process says into `ConsoleLine`s. `emit` is called in the thread that said it."""

    def __init__(self, module: str, emit: Emit) -> None:
        self.fallback = Speaker(module)
        """Who speaks where `SPEAKER` is not set."""
        self._emit = emit

    def install(self, log_level: int) -> None:
        """From now on this process prints and logs here, log records from that level on."""
        sys.stdout = CapturedStream("stdout", logging.INFO, self)
        sys.stderr = CapturedStream("stderr", logging.WARNING, self)
        root = logging.getLogger()
        root.handlers[:] = [ConsoleHandler(self)]
        root.setLevel(log_level)

    def write(self, stream: Stream, level: int, text: str) -> None:
        """Printed text: whole lines go out, the rest waits for its end of line."""
        speaker = SPEAKER.get(self.fallback)
        *lines, rest = (speaker.unfinished.pop(stream, "") + text).split("\n")
        for line in lines:
            self._print(speaker, stream, level, line)
        while len(rest) > MAX_LINE_CHARS:
            self._print(speaker, stream, level, rest[:MAX_LINE_CHARS])
            rest = rest[MAX_LINE_CHARS:]
        if rest:
            speaker.unfinished[stream] = rest

    def finish(self, speaker: Speaker) -> None:
        """The call is over: its unfinished lines end here."""
        if speaker.unfinished:
            for stream, text in speaker.unfinished.items():
                self._print(speaker, stream, logging.INFO if stream == "stdout" else logging.WARNING, text)
            speaker.unfinished.clear()

    def _print(self, speaker: Speaker, stream: Stream, level: int, text: str) -> None:
        for start in range(0, len(text) or 1, MAX_LINE_CHARS):
            self._say(speaker, stream, level, "", text[start : start + MAX_LINE_CHARS])

    def log(self, record: logging.LogRecord, text: str) -> None:
        """One log record."""
        speaker = SPEAKER.get(self.fallback)
        told = Speaker(
            speaker.module,
            str(getattr(record, "function", speaker.function)),
            str(getattr(record, "invocation", speaker.invocation)),
        )
        self._say(told, "log", record.levelno, record.name, shorten(text))

    def error(self, speaker: Speaker, error: BaseException) -> None:
        """An exception that a function did not catch."""
        self._say(speaker, "error", logging.ERROR, "", traceback_text(error))

    def refused(self, speaker: Speaker, why: str) -> None:
        """What a function returned cannot be the result of its call."""
        self._say(speaker, "error", logging.ERROR, "", shorten(why))

    def _say(
        self, speaker: Speaker, stream: Stream | Literal["log", "error"], level: int, logger: str, text: str
    ) -> None:
        text = text.encode(errors="replace").decode()  # lone surrogates do not travel
        now_us = time.time_ns() // 1000
        self._emit(
            ConsoleLine(speaker.module, speaker.function, speaker.invocation, stream, level, logger, text, now_us)
        )


class CapturedStream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of a worker."""

    def __init__(self, stream: Stream, level: int, console: Console) -> None:
        super().__init__()
        self._stream: Stream = stream
        self._level = level
        self._console = console
        self.buffer = _CapturedBytes(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Text is kept as text."""
        return "utf-8"

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str, /) -> int:
        """See `io.TextIOBase.write`."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._console.write(self._stream, self._level, text)
        return len(text)

    def fileno(self) -> int:
        """The process's own descriptor, for those who must have one: what is written there is not captured."""
        return 1 if self._stream == "stdout" else 2


class _CapturedBytes(io.RawIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, text: CapturedStream) -> None:
        super().__init__()
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        self._text.write(bytes(data).decode(errors="replace"))
        return len(data)


class ConsoleHandler(logging.Handler):
    """The root logger's handler in a worker."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.setFormatter(_UserFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        try:
            self._console.log(record, self.format(record))
        except Exception:  # noqa: BLE001 - a log call must not raise into the function
            self.handleError(record)


class _UserFormatter(logging.Formatter):
    """What `ctx.log.exception` adds to its text is as readable as the traceback of an uncaught exception."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name that `logging` gives it
        return traceback_text(ei[1]) if ei[1] is not None else super().formatException(ei)
