"""One line for each call, as long as they are few."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from boki.errors import CallCancelled, FunctionFailed, NoSuchFunction, Overloaded
from boki.host import line_budget
from boki.host.call_lines import CallLines
from boki.log.operations import Failure
from boki.protocol.calls import Call, Outcome, Payload, Suspension

CALL = Call("269101f6d5a1", "greet", Payload("json", b"1"), "", 1)
OK = Outcome(Payload("json", b"1"), None)
ASLEEP = Outcome(None, None, {}, Suspension(5))
RAISED = Outcome(None, Failure.of(FunctionFailed("greet: KeyError: 'x'\nmore", traceback="Traceback …")))
UNWRITABLE = Outcome(None, Failure.of(FunctionFailed("the result of greet cannot be written as JSON")))
LEFT = Outcome(None, Failure.of(CallCancelled("nobody waits for it any more", outcome="unknown")))
OVERLOADED = Outcome(None, Failure.of(Overloaded("too many")))


class Written:
    """The lines, each as a problem or not, and what programs are told."""

    def __init__(self) -> None:
        self.lines: list[tuple[bool, str]] = []
        self.facts: list[Mapping[str, Any]] = []

    def __call__(self, is_problem: bool, who: str, text: str, facts: Mapping[str, Any]) -> None:
        self.lines.append((is_problem, f"{who} {text}"))
        self.facts.append(facts)


def test_each_call_and_each_refusal_has_a_line() -> None:
    """Function, outcome, time, and of a failure the first line of its message."""

    async def scenario() -> None:
        written = Written()
        lines = CallLines(written, who="boki")
        lines.ended(CALL, OK, 3210)
        lines.ended(CALL, ASLEEP, 1_000)
        lines.ended(CALL, RAISED, 12_345)
        lines.refused("POST /function/nope", NoSuchFunction("there is no function 'nope'"))
        lines.close()
        assert written.lines == [
            (False, "greet[269101f6] ok in 3.21 ms"),
            (False, "greet[269101f6] suspended in 1.00 ms"),
            (True, "greet[269101f6] function_failed in 12.3 ms: greet: KeyError: 'x' …"),
            (True, "boki POST /function/nope was refused: no_such_function: there is no function 'nope'"),
        ]
        assert written.facts[0] == {
            "function": "greet",
            "invocation": "269101f6d5a1",
            "outcome": "ok",
            "duration_ms": 3.21,
        }

    asyncio.run(scenario())


def test_what_the_worker_has_said_is_not_said_again() -> None:
    """A result that cannot be written is told on the console with its reason; the line of the call has its time."""

    async def scenario() -> None:
        written = Written()
        for only_problems in (False, True):
            lines = CallLines(written, who="boki", only_problems=only_problems)
            lines.ended(CALL, UNWRITABLE, 1000)
            lines.close()
        assert written.lines == [(True, "greet[269101f6] function_failed in 1.00 ms")]

    asyncio.run(scenario())


def test_a_caller_that_leaves_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that wanted the head of a stream, above all: it is told, and alarms nobody, however many they are."""
    monkeypatch.setattr(line_budget, "WINDOW_S", 60.0)

    async def scenario() -> None:
        written = Written()
        lines = CallLines(written, who="boki", max_lines=1)
        for _ in range(3):
            lines.ended(CALL, LEFT, 1000)
        lines.close()
        assert written.lines == [
            (False, "greet[269101f6] call_cancelled in 1.00 ms: nobody waits for it any more"),
            (False, "boki 2 more calls and requests failed in the last second: 2 call_cancelled"),
        ]

    asyncio.run(scenario())


def test_many_calls_share_a_line_and_do_not_hide_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy system prints is bounded: the rest of a second is one line for each kind."""
    monkeypatch.setattr(line_budget, "WINDOW_S", 60.0)

    async def scenario() -> None:
        written = Written()
        lines = CallLines(written, who="boki", max_lines=2)
        for elapsed_us in range(1000, 10_000, 1000):
            lines.ended(CALL, OK, elapsed_us)
        for outcome in (OVERLOADED, RAISED, OVERLOADED, RAISED, OVERLOADED):
            lines.ended(CALL, outcome, 1000)
        lines.close()
        assert len(written.lines) == 2 + 2 + 2
        assert written.lines[-2:] == [
            (False, "boki 7 more calls ok in the last second, the slowest in 9.00 ms"),
            (True, "boki 3 more calls and requests failed in the last second: 2 overloaded, 1 function_failed"),
        ]

    asyncio.run(scenario())


def test_a_log_of_problems_leaves_out_what_is_told_elsewhere() -> None:
    """A node's log has a traceback for each exception of a function; timeouts and refusals would leave no trace."""

    async def scenario() -> None:
        written = Written()
        lines = CallLines(written, who="engine-1", only_problems=True)
        for outcome in (OK, RAISED, OVERLOADED):
            lines.ended(CALL, outcome, 1000)
        lines.close()
        assert written.lines == [(True, "greet[269101f6] overloaded in 1.00 ms: too many")]

    asyncio.run(scenario())
