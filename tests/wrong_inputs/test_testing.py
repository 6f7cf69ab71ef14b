"""What a new user gets wrong in tests of functions, and the whole message that comes back."""

from __future__ import annotations

from typing import Any

import pytest

import boki.testing
from boki.errors import InvalidArgument, WrongType
from boki.testing.virtual_clock import Clock


async def remind(ctx: Any) -> None:
    """A function that is given as no list."""


NO_LIST = "functions must be a list of functions: write functions=[...]"
PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "function": ({"functions": remind}, NO_LIST),
    "name": ({"functions": "remind"}, NO_LIST),
    "names": (
        {"functions": ["w"]},
        "functions[0] is the name 'w': give the functions themselves, without quotes, as in functions=[greet, remind]",
    ),
    "module": (
        {"functions": [boki.testing]},
        (
            "functions[0] is the module 'boki.testing': give the functions themselves, without quotes, as in "
            "functions=[greet, remind]"
        ),
    ),
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


async def test_a_context_that_was_not_opened_says_so() -> None:
    """By whatever is asked of it first: an attribute, as a function would, or the other kind of `with`."""
    said = "boki.testing.context() must be opened first: write `async with boki.testing.context() as ctx:`"
    unopened: Any = boki.testing.context()
    for mistake in (lambda: unopened.logbook, lambda: unopened.__enter__()):
        with pytest.raises((AttributeError, TypeError)) as caught:
            mistake()
        assert str(caught.value) == said
    blocking: Any = boki.testing.blocking_context()
    said = "boki.testing.blocking_context() must be opened first: write `with boki.testing.blocking_context() as ctx:`"
    with pytest.raises(AttributeError) as missing:
        _ = blocking.clock
    with pytest.raises(TypeError) as caught_type:
        async with blocking:
            pass
    assert [str(missing.value), str(caught_type.value)] == [said, said]
