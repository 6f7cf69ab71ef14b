"""Attributes of workflows: what users give them to find them by. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Final

from boki import InvalidArgument
from boki.extending import Attribute

MAX_ATTRIBUTES: Final = 16
MAX_VALUE_CHARS: Final = 100
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,49}")
_MAX_INT: Final = 1 << 63


def check_attributes(given: Mapping[str, Attribute] | None) -> dict[str, Attribute]:
    """The attributes, if lists can show them and filter by them: 16 at most, of text, numbers and booleans."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidArgument("attributes must be a mapping of names to values", field="attributes")
    if len(given) > MAX_ATTRIBUTES:
        raise InvalidArgument(
            f"a workflow has at most {MAX_ATTRIBUTES} attributes, not {len(given)}: keep the rest in its payload",
            field="attributes",
        )
    for name, value in given.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidArgument(
                f"an attribute's name is a letter and up to 49 characters of A-Z a-z 0-9 . _ -, not {name!r:.60}",
                field="attributes",
            )
        _check_value(name, value)
    return dict(given)


def _check_value(name: str, value: object) -> None:
    is_fit = isinstance(value, bool) or (
        (isinstance(value, str) and len(value) <= MAX_VALUE_CHARS and value.isprintable())
        or (isinstance(value, int) and -_MAX_INT <= value < _MAX_INT)
        or (isinstance(value, float) and isfinite(value))
    )
    if not is_fit:
        raise InvalidArgument(
            f"attribute {name} must be a bool, an int, a float, or text of at most {MAX_VALUE_CHARS} printable "
            f"characters, not {value!r:.60}",
            field="attributes",
        )


def parse_attribute(text: str) -> tuple[str, Attribute]:
    """An attribute as it is typed: `name=value`. A number or true/false is one unless it stands in quotes.

    >>> parse_attribute("customer=Ada"), parse_attribute("count=3"), parse_attribute("zip='007'")
    (('customer', 'Ada'), ('count', 3), ('zip', '007'))
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgument(f"an attribute is written name=value, not {text!r:.60}", field="attributes")
    found = _typed(value)
    check_attributes({name: found})
    return name, found


def _typed(value: str) -> Attribute:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    if value in ("true", "false"):
        return value == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
