"""Drafts: what a transaction has read of an object and wants to make of it. Pure.

A draft keeps everything that the transaction has done with the object, in order, with its outcome. That is the read
set at its exact grain: the path, the length, the scan that was asked for. So when others have changed the object
meanwhile, the same actions are tried on the new version; if each comes to the same result, nothing that the transaction
has seen is wrong, and the draft continues from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from boki import BokiError, TooLarge
from boki.libs.bokistore.json_values import is_same
from boki.libs.bokistore.refusals import WrongShape, of_object
from boki.libs.bokistore.updates import Changed, Update, apply
from boki.libs.bokistore.views import View

Query = Callable[[Any], Any]
"""What is asked of a value: pure, and its answer is JSON, or `MISSING`. It may raise `WrongShape`."""


class _Looked(msgspec.Struct, frozen=True):
    query: Query
    result: Any


class _Changed(msgspec.Struct, frozen=True):
    update: Update
    result: Any


class _Versioned(msgspec.Struct, frozen=True):
    version: int


class _Marked(msgspec.Struct, frozen=True):
    number: int


class _WentBack(msgspec.Struct, frozen=True):
    number: int


_Action = _Looked | _Changed | _Versioned | _Marked | _WentBack


class Draft:
    """One object within a transaction. `base`: the version that it began with."""

    def __init__(self, base: View, name: str = "") -> None:
        self.base = base
        self.name = name
        self.value = base.value
        self.size_bytes = base.size_bytes
        self.updates: list[Update] = []
        """What is to be committed."""
        self._actions: list[_Action] = []
        self._marks: dict[int, tuple[Any, int, int]] = {}

    def look(self, query: Query) -> Any:
        """The answer of a query, with the transaction's own writes."""
        result = _answer(query, self.value)
        self._actions.append(_Looked(query, result))
        return _raised(result, self.name)

    def version(self) -> int:
        """The version that the draft has begun with; a newer one is a conflict from now on."""
        self._actions.append(_Versioned(self.base.version))
        return self.base.version

    def change(self, update: Update) -> Any:
        """The result of an update; `WrongShape` or `TooLarge` if it does not fit, and nothing is changed."""
        result = self._apply(update)
        self._actions.append(_Changed(update, result))
        return _raised(result, self.name)

    def _apply(self, update: Update) -> Any:
        try:
            changed: Changed = apply(self.value, self.size_bytes, [update])
        except (WrongShape, TooLarge) as error:
            return error
        self.value, self.size_bytes = changed.value, changed.size_bytes
        self.updates.append(update)
        return changed.results[0]

    def mark(self, number: int) -> None:
        """Remember this moment."""
        self._marks[number] = (self.value, self.size_bytes, len(self.updates))
        self._actions.append(_Marked(number))

    def go_back(self, number: int) -> None:
        """Undo what was changed since that moment, or since the beginning; what was seen stays seen."""
        start = (self.base.value, self.base.size_bytes, 0)
        self.value, self.size_bytes, count = self._marks.get(number, start)
        del self.updates[count:]
        self._actions.append(_WentBack(number))

    def on(self, base: View) -> Draft | None:
        """The same actions on another version of the object; None if one of them comes to another result there."""
        again = Draft(base, self.name)
        for action in self._actions:
            match action:
                case _Looked(query, result):
                    if not _is_same(_answer(query, again.value), result):
                        return None
                    again._actions.append(action)
                case _Changed(update, result):
                    if not _is_same(again._apply(update), result):
                        return None
                    again._actions.append(action)
                case _Versioned(version):
                    if base.version != version:
                        return None
                    again._actions.append(action)
                case _Marked(number):
                    again.mark(number)
                case _WentBack(number):
                    again.go_back(number)
        return again


def answer_on(query: Query, view: View) -> Any:
    """The answer of a query on a version of the object, or why there is none."""
    return _answer(query, view.value)


def result_on(update: Update, view: View) -> Any:
    """The result of an update on a version of the object, or why it does not fit."""
    return Draft(view)._apply(update)  # noqa: SLF001 - a draft that nothing is kept of


def is_same_outcome(one: Any, other: Any) -> bool:
    """Whether two answers or results are equal, as far as a transaction can tell."""
    return _is_same(one, other)


def _answer(query: Query, value: Any) -> Any:
    try:
        return query(value)
    except WrongShape as error:
        return error


def _raised(result: Any, name: str) -> Any:
    if isinstance(result, BokiError):
        raise of_object(result, name)
    return result


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, BokiError) or isinstance(other, BokiError):
        return type(one) is type(other)
    return is_same(one, other)
