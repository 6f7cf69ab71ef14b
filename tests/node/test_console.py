"""What a node of a cluster writes: its own events, its functions' lines, and calls that did not go well."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from boki.config.loading import LogFormat
from boki.errors import DeadlineExceeded
from boki.log.operations import Failure
from boki.node.console import log_function_line, log_to, problem_lines
from boki.protocol.calls import Call, Outcome, Payload
from boki.worker.frames import ConsoleLine

TIME_US = 1_795_388_699_451_000
INVOCATION = "269101f6d5a14d27a9c1d2b3e4f50617"
LINES = [
    ConsoleLine("work", "boom", INVOCATION, "log", logging.WARNING, "boki.function.boom", "about to fail: xx", TIME_US),
    ConsoleLine("work", "boom", INVOCATION, "log", logging.DEBUG, "boki.function.boom", "detail", TIME_US),
    ConsoleLine(
        "work", "boom", INVOCATION, "error", logging.ERROR, "", "Traceback:\n  work.py\nKeyError: 'xx'", TIME_US
    ),
]


@contextmanager
def own_logging() -> Iterator[None]:
    """Loggers without a handler, and as they were afterwards."""
    loggers = [logging.getLogger(), logging.getLogger("boki")]
    before = [(logger, list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:  # a `boki dev` of another test in this process has left its own
        logger.handlers.clear()
        logger.propagate = True
    try:
        yield
    finally:
        for logger, handlers, level, propagate in before:
            logger.handlers[:] = handlers
            logger.propagate = propagate
            logger.setLevel(level)


def said(log_format: LogFormat) -> list[str]:
    out = io.StringIO()
    with own_logging():
        say(out, log_format)
    return out.getvalue().splitlines()


def say(out: io.StringIO, log_format: LogFormat) -> None:
    log_to(out, log_format, "engine-2")
    for line in LINES:
        log_function_line(line)
    logging.getLogger("boki.node").info("%s: at work", "engine-2")
    timed_out = Outcome(None, Failure.of(DeadlineExceeded("it did not end within 5 s")))

    async def end_call() -> None:
        calls = problem_lines("engine-2")
        calls.ended(Call(INVOCATION, "slow", Payload("json", b"1"), "", 1), timed_out, 5_000_000)
        calls.close()

    asyncio.run(end_call())


def test_a_nodes_log_reads_like_the_console_of_dev() -> None:
    """No representation of a struct, no escaped line feed, each line with its own level (found.md, A2)."""
    lines = said("console")
    assert lines[:6] == [
        "23:04:59.451 engine-2 INFO 2026-11-22 (UTC)",
        "23:04:59.451 boom[269101f6] WARNING about to fail: xx",
        "23:04:59.451 boom[269101f6] DEBUG detail",
        "23:04:59.451 boom[269101f6] ERROR Traceback:",
        "23:04:59.451 boom[269101f6] ERROR   work.py",
        "23:04:59.451 boom[269101f6] ERROR KeyError: 'xx'",
    ]
    own = [line.partition(" ")[2] for line in lines[6:] if "(UTC)" not in line]
    assert own == [
        "engine-2 INFO at work",
        "slow[269101f6] WARNING deadline_exceeded in 5 s: it did not end within 5 s",
    ]


def test_a_nodes_json_log_names_module_function_and_invocation() -> None:
    """One object a line, with fields that a program can select by."""
    found = [json.loads(line) for line in said("json")]
    assert found[2] == {
        "time": "2026-11-22T23:04:59.451000+00:00",
        "level": "error",
        "event": "error",
        "text": "Traceback:\n  work.py\nKeyError: 'xx'",
        "node": "engine-2",
        "module": "work",
        "function": "boom",
        "invocation": INVOCATION,
        "logger": "",
    }
    assert (found[3]["event"], found[3]["node"], found[3]["text"]) == ("log", "engine-2", "at work")
    assert (found[4]["event"], found[4]["function"], found[4]["outcome"]) == ("call", "slow", "deadline_exceeded")
