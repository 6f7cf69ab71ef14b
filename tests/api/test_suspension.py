"""What a body may say when it raises `Suspend`, and the ids that stand for names."""

from __future__ import annotations

from typing import Any

import pytest

from boki.api.suspension import MAX_NOTE_CHARS, MAX_WAKES, Suspend, WakeOn, invocation_id_of
from boki.errors import InvalidArgument, TooLarge, WrongType
from boki.protocol.calls import Suspension


def test_what_it_waits_for_is_taken_as_it_is() -> None:
    """A time, records, or both."""
    assert Suspend(5).suspension == Suspension(5)
    on = WakeOn("book", "!inbox", 0)
    assert Suspend(wakes=[on], note="news").suspension == Suspension(0, (on,), "news")
    assert not isinstance(Suspend(5), Exception)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({}, InvalidArgument, "with neither the call would never run again"),
        ({"wake_us": -1}, InvalidArgument, "wake_us must"),
        ({"wake_us": 1.5}, WrongType, "wake_us must be an int"),
        ({"wakes": [("b", "t", 1)]}, WrongType, "holds WakeOn.*, not tuple"),
        ({"wakes": [WakeOn("", "t", 1)]}, InvalidArgument, "book"),
        ({"wakes": [WakeOn("b", "", 1)]}, InvalidArgument, "a tag must not be empty"),
        ({"wakes": [WakeOn("b", "t" * 10_000, 1)]}, TooLarge, "bytes of UTF-8"),
        ({"wakes": [WakeOn("b", "t", -1)]}, InvalidArgument, "min_seqnum"),
        ({"wakes": [WakeOn("b", "t", 1)] * (MAX_WAKES + 1)}, InvalidArgument, "at most 16 tags, not 17"),
        ({"wake_us": 1, "note": "x" * (MAX_NOTE_CHARS + 1)}, InvalidArgument, "201 characters; the limit is 200"),
    ],
)
def test_what_cannot_be_waited_for_is_refused_by_name(
    arguments: dict[str, Any], kind: type[Exception], words: str
) -> None:
    """In the line that says it."""
    with pytest.raises(kind, match=words):
        Suspend(**arguments)


def test_ids_stand_for_names_and_no_two_lists_of_names_share_one() -> None:
    """The same everywhere and always: they are on disks."""
    assert invocation_id_of("travel", "trip-17") == "bb3eb5c08e1fb3eade8d806e0abe069f"
    lists = [("a", "b"), ("ab",), ("ab", ""), ("", "ab"), ("b", "a"), ()]
    assert len({invocation_id_of(*names) for names in lists}) == len(lists)
