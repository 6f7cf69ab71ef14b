"""What a workflow did, as spans of time: from its journal and its inbox, for people. Pure.

The journal says when a step or a call began and ended, and when a timer was over. Messages are moments. What has not
ended is a span up to now, as far as the journal knows of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any, Final, Literal, assert_never

import msgspec

from boki.extending import Failure, Payload, result_of
from boki.libs.bokiflow.gates.records import Admission
from boki.libs.bokiflow.locks.state import Freed, Wanted
from boki.libs.bokiflow.records import (
    Answered,
    Beat,
    Began,
    CancelRequested,
    Continued,
    Done,
    Ended,
    Entry,
    Fact,
    Fired,
    Intended,
    Marked,
    Note,
    Paused,
    Resolved,
    Result,
    Resumed,
    Retrying,
    Rewound,
    Signalled,
    Updated,
)

Kind = Literal["step", "call", "lock", "timer", "decision", "message"]
SpanState = Literal["done", "failed", "unknown", "retrying", "open"]


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """A step waited for its next attempt, in another run than the one that had made the attempt before it."""

    from_us: int
    until_us: int
    """When the next attempt was due."""
    attempts: int
    """Number of those that had been made."""
    error: str
    """What the last one of them ended with."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a workflow did or was told. Times are the workflow's, in microseconds since the epoch."""

    kind: Kind
    name: str
    n: int = -1
    """The number of the command, in the order of their starts; -1: it is a message."""
    state: SpanState = "done"
    from_us: int
    until_us: int
    """When it ended; of one that has not ended, when it was last heard of."""
    next_us: int = 0
    """When the next attempt is due."""
    attempts: int = 0
    error: str = ""
    """What it ended with, or its last attempt."""
    value: str = ""
    """What it ended with, cut to a few words."""
    waits: tuple[Wait, ...] = ()
    """Between its attempts, those that are on record: of short ones, and of many errors, only the last is."""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in ("open", "retrying")

    @property
    def is_moment(self) -> bool:
        """Whether it takes no time."""
        return self.kind in ("decision", "message")


class Timeline:
    """The spans of one workflow, record by record."""

    def __init__(self, began_us: int) -> None:
        """`began_us`: when the workflow began, by its first record."""
        self.began_us = began_us
        self._last_us = began_us
        self._ended: list[Span] = []
        self._open: dict[int, Span] = {}
        self._begun = _Begun()

    def add(self, entry: Entry) -> Span | None:
        """Take in the next record of the journal; the span that it is about, if there is one."""
        span = self._span(entry.fact, entry.at_us)
        if span is not None:
            before = self._open.pop(span.n, None)
            if before is not None and not span.is_open:
                span = msgspec.structs.replace(span, waits=before.waits)
            if span.is_open:
                self._open[span.n] = span
            else:
                self._ended.append(span)
                self._begun.add(span.n, span.from_us)
        self._last_us = entry.at_us
        return span

    def spans(self, notes: Iterable[tuple[int, Note]] = ()) -> list[Span]:
        """All of them, in the order of their beginning. `notes`: the messages, each with the time of its record."""
        found = [*self._ended, *self._open.values(), *(span_of_note(note, time_us) for time_us, note in notes)]
        return sorted(found, key=lambda span: (span.from_us, span.n if span.n >= 0 else _BEHIND))

    def _span(self, fact: Fact, at_us: int) -> Span | None:
        match fact:
            case Done():
                return _of_done(fact, self._last_us, at_us)
            case Fired():
                began_us = min(self._last_us, at_us, self._begun.first_us(fact.n, at_us))
                return Span(kind="timer", name="timer", n=fact.n, from_us=began_us, until_us=at_us)
            case Marked():
                value = shortly(fact.value)
                return Span(kind="decision", name=fact.name, from_us=at_us, until_us=at_us, value=value)
            case Intended():
                return self._known(fact.n, at_us, name=fact.name, attempts=1)
            case Retrying():
                return self._waiting(fact, at_us)
            case Beat():
                return self._known(fact.n, at_us, value=shortly(fact.details))
            case Rewound():
                return Span(kind="decision", name=f"rewind to {fact.n}", from_us=at_us, until_us=at_us)
            case Began() | Continued() | Ended():
                return None
            case _:
                assert_never(fact)

    def _waiting(self, fact: Retrying, at_us: int) -> Span:
        error = _error(fact.failure)
        span = self._known(
            fact.n,
            at_us,
            state="retrying",
            from_us=fact.began_us,
            next_us=fact.next_us,
            attempts=fact.attempts,
            error=error,
        )
        wait = Wait(from_us=at_us, until_us=fact.next_us, attempts=fact.attempts, error=error)
        earlier = tuple(one for one in span.waits if one.attempts < fact.attempts)
        return msgspec.structs.replace(span, name=fact.name or span.name, waits=(*earlier, wait)[-_MOST_WAITS:])

    def _known(self, n: int, at_us: int, **fields: Any) -> Span:
        """A step that has not ended, with what is new of it."""
        span = self._open.get(n) or Span(
            kind="step", name=f"step {n}", n=n, state="open", from_us=self._last_us, until_us=at_us
        )
        return msgspec.structs.replace(span, until_us=at_us, **fields)


class _Begun:
    """When commands began that have ended, as far as no later command began as early: by number, and so by time."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._times_us: list[int] = []

    def add(self, n: int, from_us: int) -> None:
        """Command `n` has ended, which began then."""
        end = bisect_left(self._numbers, n)
        if end < len(self._numbers) and self._times_us[end] <= from_us:
            return
        start = bisect_left(self._times_us, from_us, hi=end)
        stop = end + (end < len(self._numbers) and self._numbers[end] == n)
        self._numbers[start:stop], self._times_us[start:stop] = [n], [from_us]

    def first_us(self, n: int, default: int) -> int:
        """When the first command with a higher number began."""
        place = bisect_right(self._numbers, n)
        return self._times_us[place] if place < len(self._numbers) else default


_BEHIND: Final = 1 << 62
"""Behind the numbers of commands."""
_MOST_WAITS: Final = 20
"""Of a step, the last ones."""


def _of_done(fact: Done, last_us: int, at_us: int) -> Span:
    result = fact.result
    state: SpanState = "done"
    if result.failure is not None:
        state = "failed"
    elif result.value is None and not fact.began_us:
        state = "unknown"
    return Span(
        kind="lock" if fact.name.startswith(("lock ", "unlock ")) else "call" if " " in fact.name else "step",
        name=fact.name,
        n=fact.n,
        state=state,
        from_us=fact.began_us or last_us,
        until_us=at_us,
        attempts=fact.attempts,
        error=_error(result.failure),
        value=_ended_with(result),
    )


def span_of_note(note: Note, time_us: int) -> Span:
    """A message, at the time of its record."""
    name, error, value = "", "", ""
    match note:
        case Signalled():
            name, value = f"signal {note.name}", shortly(note.payload)
        case Updated():
            name, value = f"update {note.name}", shortly(note.payload)
        case Answered():
            name, error, value = "answer", _error(note.result.failure), _ended_with(note.result)
        case Resolved():
            name, error, value = f"promise {note.name}", _error(note.result.failure), _ended_with(note.result)
        case CancelRequested():
            name, value = "cancel", note.reason
        case Paused():
            name, value = "pause", note.reason
        case Resumed():
            name = "resume"
        case Admission():
            name, value = "limit", _decision(note)
        case Wanted() | Freed():
            name, value = f"queue of lock {note.key}", note.granted and "granted"
        case _:
            assert_never(note)
    return Span(kind="message", name=name, from_us=time_us, until_us=time_us, error=error, value=value)


def _decision(note: Admission) -> str:
    reasons = [why for _, why in (*note.refused, *note.cancelled)]
    return "; ".join([*(["let begin"] if note.admitted else []), *dict.fromkeys(reasons)])


def _ended_with(result: Result) -> str:
    return "" if result.value is None else shortly(result.value)


def _error(failure: Failure | None) -> str:
    if failure is None:
        return ""
    message = failure.error().message
    return message or failure.code


_VALUE_CHARS: Final = 200


def shortly(payload: Payload) -> str:
    """A value for people, cut."""
    try:
        value = result_of(payload, "value")
    except Exception:  # noqa: BLE001 - it is only shown
        value = payload.data
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=repr).decode()
    return text if len(text) <= _VALUE_CHARS else text[: _VALUE_CHARS - 1] + "…"
