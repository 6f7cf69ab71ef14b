"""What a workflow did, as spans and as a picture: nothing is lost, and each line fits."""

import asyncio

import msgspec
import pytest

import boki.testing
from boki.extending import Failure, encode_any
from boki.libs.bokiflow import flow, workflow
from boki.libs.bokiflow.face.drawing import draw, span_text
from boki.libs.bokiflow.records import (
    Beat,
    Began,
    CancelRequested,
    Done,
    Entry,
    Fact,
    Fired,
    Intended,
    Marked,
    Result,
    Retrying,
    Signalled,
    journal_tag,
)
from boki.libs.bokiflow.replaying import read_history
from boki.libs.bokiflow.timeline import Span, Timeline

BEGAN = 1_600_000_000_000_000
FAILURE = Failure("function_failed", "charge: CardDeclined: the bank has refused", "failed", retryable=False)


@workflow
async def napping(seconds: float) -> float:
    await flow.sleep(seconds)
    return seconds


@workflow
async def side_by_side(seconds: list[float]) -> list[float]:
    return await asyncio.gather(*(flow.call(napping, each) for each in seconds))


@pytest.mark.parametrize("seconds", [[0.0, 0.0], [60.0, 3600.0], [3600.0, 60.0]])
async def test_calls_side_by_side_began_together(seconds: list[float], boki_context: boki.testing.Context) -> None:
    """The second one to end seemed to have begun when the first one had ended."""
    handle = await side_by_side.start(boki_context, seconds)
    assert await handle.result() == seconds
    history = await read_history(boki_context.logbook, journal_tag(handle.invocation_id))
    found = Timeline(history.began_us)
    for entry in history.entries:
        found.add(entry)
    spans = found.spans()
    assert [span.n for span in spans] == [0, 1]
    assert {span.from_us for span in spans} == {history.began_us}


def after(seconds: float) -> int:
    return BEGAN + round(seconds * 1e6)


def timeline(*facts: tuple[float, Fact]) -> Timeline:
    found = Timeline(BEGAN)
    for seconds, fact in facts:
        found.add(Entry(1, 0, 0, after(seconds), fact))
    return found


def done(n: int, name: str, began_s: float, *, attempts: int = 1, failure: Failure | None = None) -> Done:
    result = Result(None, failure) if failure else Result(encode_any(n, "n"))
    return Done(n, name, b"", result, after(began_s), attempts)


def test_spans_of_every_kind() -> None:
    """Steps, calls, timers, decisions and messages, in the order of their beginning."""
    found = timeline(
        (1, done(0, "book", 0)),
        (1, Marked("patch two rooms", encode_any(True, "decision"))),
        (11, Fired(1)),
        (12, done(2, "call payment", 11, attempts=3, failure=FAILURE)),
    ).spans([(after(5), Signalled("approve", encode_any("yes", "payload"))), (after(13), CancelRequested("too late"))])
    assert [(span.kind, span.name, span.state, span.from_us - BEGAN, span.until_us - BEGAN) for span in found] == [
        ("step", "book", "done", 0, 1_000_000),
        ("timer", "timer", "done", 1_000_000, 11_000_000),
        ("decision", "patch two rooms", "done", 1_000_000, 1_000_000),
        ("message", "signal approve", "done", 5_000_000, 5_000_000),
        ("call", "call payment", "failed", 11_000_000, 12_000_000),
        ("message", "cancel", "done", 13_000_000, 13_000_000),
    ]
    assert (found[3].value, found[4].attempts, found[4].error, found[5].value) == (
        "yes",
        3,
        "charge: CardDeclined: the bank has refused",
        "too late",
    )


def test_what_has_not_ended() -> None:
    """A step between two attempts, one that said how far it is, and one that may run only once; then their ends."""
    open_ones = timeline(
        (0, Began()),
        (1, Retrying(0, 2, after(9), after(0), FAILURE)),
        (2, Beat(1, encode_any({"page": 7}, "details"))),
        (3, Intended(2, "launch", b"")),
    )
    assert [(span.name, span.state, span.attempts, span.value) for span in open_ones.spans()] == [
        ("step 0", "retrying", 2, ""),
        ("step 1", "open", 0, '{"page":7}'),
        ("launch", "open", 1, ""),
    ]
    for n, name in enumerate(("charge", "crawl", "launch")):
        open_ones.add(Entry(1, 0, 0, after(10), done(n, name, n)))
    assert [(span.name, span.state) for span in open_ones.spans()] == [
        ("charge", "done"),
        ("crawl", "done"),
        ("launch", "done"),
    ]


def test_waits_and_errors_of_a_step_that_has_ended() -> None:
    """It is drawn as what it was: attempts, and waits between them, each with the error in front of it."""
    declined = msgspec.structs.replace(FAILURE, message="charge: CardDeclined: again")
    found = timeline(
        (1, Retrying(0, 1, after(4), after(0), FAILURE, "charge")),
        (6, Retrying(0, 2, after(9), after(0), declined, "charge")),
        (10, done(0, "charge", 0, attempts=3)),
    ).spans()
    assert [(wait.from_us, wait.until_us, wait.attempts) for wait in found[0].waits] == [
        (after(1), after(4), 1),
        (after(6), after(9), 2),
    ]
    assert [line.text for line in draw(found, BEGAN, after(10), 60)] == [
        " #          ├─────────── 10 s ────────────┤      took  tries",
        " 0  charge  ━━━╌╌╌╌╌╌╌╌╌━━━━━━╌╌╌╌╌╌╌╌╌━━━━      10 s      3",
        "      try 1: charge: CardDeclined: the bank has refused",
        "      try 2: charge: CardDeclined: again",
    ]


def test_a_step_that_was_cut_off_for_good() -> None:
    """It has neither a value nor a failure, and is not shown as done."""
    (span,) = timeline((1, Done(0, "launch", b"", Result()))).spans()
    assert span.state == "unknown"


@pytest.mark.parametrize("columns", [60, 80, 132])
def test_no_line_is_longer_than_the_screen(columns: int) -> None:
    """Whatever stands in it: long names, long errors, thousands of steps."""
    spans = [
        Span(
            kind="step", name="s" * n, n=n * 100, from_us=after(n), until_us=after(n + 1), attempts=n, error="why " * n
        )
        for n in range(1, 40)
    ]
    lines = draw(spans, BEGAN, after(50), columns)
    assert len(lines) > len(spans)
    assert max(len(line.text) for line in lines) <= columns


def test_the_picture_needs_no_colours() -> None:
    """Work, waiting, failures and what has not ended have characters of their own, where they happened."""
    spans = [
        Span(kind="step", name="book", n=0, from_us=after(0), until_us=after(25)),
        Span(kind="timer", name="timer", n=1, from_us=after(25), until_us=after(50)),
        Span(
            kind="step", name="pay", n=2, state="failed", from_us=after(50), until_us=after(75), attempts=2, error="no"
        ),
        Span(kind="step", name="ship", n=3, state="retrying", from_us=after(75), until_us=after(80)),
        Span(kind="message", name="signal a", from_us=after(50), until_us=after(50), value="yes"),
    ]
    assert [line.text for line in draw(spans, BEGAN, after(100), 60)] == [
        " #            ├────────── 100 s ──────────┤      took  tries",
        " 0  book      ━━━━━━━━                           25 s",
        " 1  timer            ········                    25 s",
        " 2  pay                     ━━━━━━━✗             25 s      2",
        "      no",
        " 3  ship                           ━╌╌╌╌╌╌>      25 s",
        "    signal a                ◆",
        "      yes",
    ]


def test_a_workflow_that_did_nothing_is_not_drawn() -> None:
    """There is no axis of nothing."""
    assert draw([], BEGAN, BEGAN, 80) == []


def test_spans_are_told_in_eight_characters() -> None:
    """Whatever their unit."""
    for exponent in range(16):
        for factor in (1, 3, 9.99):
            assert len(span_text(round(factor * 10**exponent))) <= 8
