"""Messages that are pushed together: what is a list of them, and how many of them a record holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from boki import WrongType
from boki.libs.bokiqueue.refusals import MAX_BATCH, check_count

RECORD_BYTES: Final = 900_000
"""Messages of a push are put into records of about this size."""


def listed(bodies: Iterable[Any]) -> list[Any]:
    """The bodies of a push, as a list."""
    if isinstance(bodies, (str, bytes, bytearray, memoryview, dict)) or not isinstance(bodies, Iterable):
        raise WrongType(f"bodies must be a list, not {type(bodies).__name__}: write push(body) for one", field="bodies")
    found = list(bodies)
    check_count(len(found), "bodies")
    return found


def fitting(places: list[int], encoded: list[tuple[int, bytes]]) -> Iterable[list[int]]:
    """The places in runs that a record holds."""
    start = size = 0
    for at, place in enumerate(places):
        size += len(encoded[place][1]) + 8
        if at > start and (size > RECORD_BYTES or at - start == MAX_BATCH):
            yield places[start:at]
            start, size = at, len(encoded[place][1]) + 8
    yield places[start:]
