"""Views that a gateway holds for callers far from the log, such as `boki.Client`: one request instead of a replay.

A gateway keeps the views of the objects that were read through it. A client asks it questions of many objects at once,
which it answers as of one moment, and begins with its views where it must fold an object itself, as to change it.
The answer raises the client's positions like any other read, so what it reads later is never older.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from boki import TooLarge
from boki.libs.bokistore.json_values import MISSING, encode
from boki.libs.bokistore.queries import Question
from boki.libs.bokistore.views import View
from boki.libs.fold.steps import AskGateway, Steps

MAX_ASKED: Final = 2_048
"""Maximum number of questions and objects of one request."""

Asked = tuple[str, Question]


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked. `at`: as of this seqnum; -1: now."""

    questions: list[Asked] = []
    objects: list[str] = []
    at: int = -1


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A view of an object."""

    value: list[Any]
    """It, or nothing if the object does not exist."""
    last: int
    since: int
    version: int
    is_listed: bool


class Views(msgspec.Struct, frozen=True):
    """The answers, in the order of the questions, and the views of the objects."""

    seqnum: int
    """As of which all of it is."""
    answers: list[list[Any]]
    """Each an answer, or nothing where `MISSING` is the answer."""
    objects: list[Held]


_wanted: Final = msgspec.json.Encoder()
_views: Final = msgspec.json.Decoder(Views)


def ask(book: str, wanted: Wanted) -> Steps[Views]:
    """Ask the gateway."""
    data: bytes = yield AskGateway(f"/store/{book}/views", _wanted.encode(wanted))
    return _views.decode(data)


def view_of(held: Held) -> View:
    """The view that a gateway held."""
    value = held.value[0] if held.value else MISSING
    size_bytes = len(encode(value)) if held.value else 0
    return View(value, size_bytes, held.last, held.since, held.version, held.is_listed)


class FarViews:
    """Objects as of the moment of the first question, as the gateway sees them. They can only be read."""

    def __init__(self, book: str) -> None:
        self._book = book
        self._at = -1

    def prefetch(self, names: Sequence[str]) -> Steps[None]:  # noqa: ARG002
        """See `accesses.Access`: the questions are asked together anyway."""
        yield from ()

    def look(self, name: str, question: Question) -> Steps[Any]:
        """See `accesses.Access`."""
        [found] = yield from self.look_all([(name, question)])
        return found

    def look_all(self, questions: Sequence[Asked]) -> Steps[list[Any]]:
        """See `accesses.Access`."""
        answers: list[Any] = []
        for first in range(0, len(questions), MAX_ASKED):
            answers += yield from self._look_all(questions[first : first + MAX_ASKED])
        return answers

    def _look_all(self, questions: Sequence[Asked]) -> Steps[list[Any]]:
        try:
            views = yield from ask(self._book, Wanted(list(questions), at=self._at))
        except TooLarge:
            if len(questions) == 1:
                raise
            half = len(questions) // 2  # the answers are more than one request brings
            first = yield from self._look_all(questions[:half])
            return first + (yield from self._look_all(questions[half:]))
        self._at = views.seqnum
        return [found[0] if found else MISSING for found in views.answers]
