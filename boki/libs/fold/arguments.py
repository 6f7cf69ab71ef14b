"""Argument checks that libraries share. What is refused says the limit, the value, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Final, TypeVar

from boki import BokiError, InvalidArgument, TooLarge, WrongType

T = TypeVar("T")

MAX_SECONDS: Final = 365 * 24 * 3_600.0
"""A year: the longest delay, lease and time to live."""
MAX_KEY_CHARS: Final = 100
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
UNFIT: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and lone surrogates, which UTF-8 cannot say."""


def check_name(name: object, field: str, thing: str = "") -> str:
    """`name`, if it fits into tags and URLs. `thing`: what has the name, with an article; by default "a" `field`."""
    thing = thing or f"a {field}"
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidArgument(
            f"{thing}'s name must be 1 to 100 characters of A-Z a-z 0-9 . _ -, not {name!r:.60}", field=field
        )
    if name in {".", ".."}:
        raise InvalidArgument(
            f"{thing}'s name must not be {name!r}, which URLs cannot hold: choose another name", field=field
        )
    return name


def check_key(key: object, field: str, most_chars: int = MAX_KEY_CHARS) -> str:
    """`key`, if it is text of a reasonable length."""
    if not isinstance(key, str):
        raise WrongType(f"{field} must be a str, not {type(key).__name__}: write {field}=str(...)", field=field)
    if not 0 < len(key) <= most_chars or UNFIT.search(key):
        raise InvalidArgument(
            f"{field} must be 1 to {most_chars} characters, no control characters, and be text: {key!r:.60}",
            field=field,
        )
    return key


def check_span(value: object, field: str, *, least_s: float = 0.0, most_s: float = MAX_SECONDS) -> int:
    """A span of time in microseconds, from seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongType(f"{field} must be a number of seconds, not {type(value).__name__}", field=field)
    if not least_s <= value <= most_s:
        year = " (a year)" if most_s == MAX_SECONDS else ""
        raise InvalidArgument(
            f"{field} must be {least_s:g} to {most_s:,.15g} seconds{year}, not {shown(value)}", field=field
        )
    return round(value * 1e6)


def check_list(values: Iterable[T], field: str) -> tuple[T, ...]:
    """`values` as a tuple. A lone str is refused where a list is due, and not split into its letters."""
    if isinstance(values, str):
        raise WrongType(f"{field} must be a list, not one str: write {field}=[{values!r:.60}]", field=field)
    if not isinstance(values, Iterable):
        raise WrongType(f"{field} must be a list, not {type(values).__name__}: write {field}=[...]", field=field)
    return tuple(values)


def check_count(value: object, field: str, most: int, *, least: int = 1) -> int:
    """A whole number."""
    if type(value) is not int:
        raise WrongType(f"{field} must be an int, not {type(value).__name__}", field=field)
    if not least <= value <= most:
        raise InvalidArgument(f"{field} must be {least:,} to {most:,}, not {shown(value)}", field=field)
    return value


def check_size(data: bytes, field: str, most_bytes: int, thing: str, instead: str) -> bytes:
    """`data`, if it is small enough. `thing` names what holds it, `instead` says what to do with what is larger."""
    if len(data) > most_bytes:
        raise TooLarge(
            f"{thing} may have at most {most_bytes:,} bytes, not {len(data):,}: {instead}",
            field=field,
            limit=most_bytes,
        )
    return data


def shown(number: object) -> str:
    """A number for a message: one of thousands of digits is not spelled.

    >>> shown(12345), shown(1 << 70), shown(0.25)
    ('12,345', 'a number that is far too large', '0.25')
    """
    if isinstance(number, int):
        return f"{number:,}" if abs(number) < 1 << 64 else "a number that is far too large"
    return f"{number:,.15g}" if isinstance(number, float) and isfinite(number) else str(number)


def of_append(error: BokiError, field: str, told: str) -> BokiError:
    """An error of an append, in words of a caller who appended nothing. `told`: what to say of the {limit} of one."""
    if not isinstance(error, TooLarge) or error.details.get("field") != "records":
        return error
    limit = error.details["limit"]
    return TooLarge(told.format(limit=f"{limit:,} bytes"), field=field, limit=limit)


def few_of(names: Sequence[object], most: int = 10) -> str:
    """A few names for a message, and how many more there are.

    >>> few_of("abcd", 3)
    'a, b, c and 1 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
