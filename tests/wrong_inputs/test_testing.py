"""What a new user gets wrong in tests of functions, and the whole message that comes back."""

from __future__ import annotations

from typing import Any

import pytest

import boki.testing
from boki.errors import InvalidArgument, WrongType
from boki.runtime.virtual_clock import Clock


async def remind(ctx: Any) -> None:
    """A function that is given as no list."""


NO_LIST = "functions must be a list of functions: write functions=[...]"
PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "function": ({"functions": remind}, NO_LIST),
    "name": ({"functions": "remind"}, NO_LIST),
    "log": ({"log": "x"}, "log must be a MemoryLog, not str"),
    "limits": ({"limits": 5}, "limits must be a Limits, not int"),
    "no limits": ({"limits": None}, "limits must be a Limits, not NoneType"),
    "request": ({"request": {"path": "/u"}}, "request must be a Request, not dict"),
}


@pytest.mark.parametrize("row", PARTS.values(), ids=list(PARTS))
async def test_what_no_context_can_be_made_of_is_refused_by_name(row: tuple[dict[str, Any], str]) -> None:
    """Of both kinds, and so by the marker of the plugin."""
    given, message = row
    with pytest.raises(WrongType) as caught:
        async with boki.testing.context(**given):
            pass
    assert caught.value.message == message
    with pytest.raises(WrongType) as caught, boki.testing.blocking_context(**given):
        pass
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("seconds", "message"),
    [("1", "seconds must be a number of seconds, not str"), (-1, "seconds must be at least 0, not -1")],
)
async def test_time_does_not_go_back(seconds: Any, message: str) -> None:
    """Nor by what is no number."""
    with pytest.raises(InvalidArgument) as caught:
        await Clock().advance(seconds)
    assert caught.value.message == message
