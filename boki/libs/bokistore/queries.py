"""Questions to an object, as values: so a transaction can ask them again, and a gateway can answer them for others.

A question is called with the value of an object, which is `MISSING` if there is none. It raises `WrongShape` if the
value has no answer. Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec

from boki.libs.bokistore.json_values import MISSING
from boki.libs.bokistore.paths import Segments, show
from boki.libs.bokistore.refusals import WrongShape, of_object
from boki.libs.bokistore.updates import look_up


class _Question(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    path: Segments = ()


class ValueAt(_Question, frozen=True, tag=1):
    """The value at the path, or `MISSING`."""

    def __call__(self, value: Any) -> Any:
        """The answer."""
        return look_up(value, self.path)


class IsThere(_Question, frozen=True, tag=2):
    """Whether there is a value at the path."""

    def __call__(self, value: Any) -> bool:
        """The answer."""
        return look_up(value, self.path) is not MISSING


class LengthAt(_Question, frozen=True, tag=3):
    """The number of items of the array or object at the path; 0 if there is nothing."""

    def __call__(self, value: Any) -> int:
        """The answer."""
        found = look_up(value, self.path)
        if found is MISSING:
            return 0
        if not isinstance(found, (dict, list)):
            raise WrongShape(f"{show(self.path)} is neither an object nor an array")
        return len(found)


class KeysAt(_Question, frozen=True, tag=4):
    """The keys of the object at the path; none if there is nothing."""

    def __call__(self, value: Any) -> list[str]:
        """The answer."""
        found = look_up(value, self.path)
        if found is MISSING:
            return []
        if not isinstance(found, dict):
            raise WrongShape(f"{show(self.path)} is no object, so it has no keys")
        return list(found)


class ItemsAt(_Question, frozen=True, tag=5):
    """The items of the array at the path, from `start` on and below `stop`; none if there is nothing."""

    start: int = 0
    stop: int | None = None

    def __call__(self, value: Any) -> list[Any]:
        """The answer."""
        found = look_up(value, self.path)
        if found is MISSING:
            return []
        if not isinstance(found, list):
            raise WrongShape(f"{show(self.path)} is no array, so it has no items")
        return found[self.start : self.stop]


class NumberAt(_Question, frozen=True, tag=6):
    """The number at the path; 0 if there is nothing."""

    def __call__(self, value: Any) -> int | float:
        """The answer."""
        found = look_up(value, self.path)
        if found is MISSING:
            return 0
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise WrongShape(f"{show(self.path)} is no number")
        return found


class Scan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=7):
    """The first items of an object in the order of their keys, as pairs; none if it is no object.

    Their keys begin with `prefix`, are at least `start`, below `stop`, and above `after`.
    """

    prefix: str
    start: str
    stop: str | None
    after: str | None
    limit: int

    def __call__(self, value: Any) -> list[list[Any]]:
        """The answer."""
        if not isinstance(value, dict):
            return []
        prefix, start, stop, after = self.prefix, self.start, self.stop, self.after
        keys = sorted(
            key
            for key in value
            if key.startswith(prefix)
            and key >= start
            and (stop is None or key < stop)
            and (after is None or key > after)
        )
        return [[key, value[key]] for key in keys[: self.limit]]


class FirstKeys(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=8):
    """The first keys, in order, of the object that stands at a key; none if there is no such object."""

    at: str
    limit: int

    def __call__(self, value: Any) -> list[str]:
        """The answer."""
        found = look_up(value, (self.at,)) if isinstance(value, dict) else MISSING
        return sorted(found)[: self.limit] if isinstance(found, dict) else []


class Count(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=9):
    """The number of keys of an object; 0 if it is none."""

    def __call__(self, value: Any) -> int:
        """The answer."""
        return len(value) if isinstance(value, dict) else 0


class IsEmpty(_Question, frozen=True, tag=10):
    """Whether an object without keys is at the path."""

    def __call__(self, value: Any) -> bool:
        """The answer."""
        found = look_up(value, self.path)
        return isinstance(found, dict) and not found


Question = ValueAt | IsThere | LengthAt | KeysAt | ItemsAt | NumberAt | Scan | FirstKeys | Count | IsEmpty
WHOLE = ValueAt()
"""The whole object."""


def answer_of(name: str, question: Question, value: Any) -> Any:
    """What the object of that name answers; a `WrongShape` names it."""
    try:
        return question(value)
    except WrongShape as error:
        raise of_object(error, name) from None
