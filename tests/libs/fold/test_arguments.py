"""Argument checks of libraries: what passes, and what the refusal names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from boki import InvalidArgument
from boki.libs.fold.arguments import check_count, check_key, check_list, check_name, check_size, check_span


def test_what_is_right_comes_back() -> None:
    """Seconds as microseconds, all else as it is."""
    assert check_name("a.B_9-", "store") == "a.B_9-"
    assert check_key("any text ä", "key") == "any text ä"
    assert check_span(1.5, "delay_s") == 1_500_000
    assert check_count(3, "limit", 10) == 3
    assert check_list(["a", "b"], "tags") == ("a", "b")
    assert check_size(b"abc", "body", 3, "a body", "") == b"abc"


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: check_name("a b", "store"), "a store's name must be 1 to 100 characters of A-Z a-z 0-9 . _ -, not 'a b'"),
    (lambda: check_name("..", "id", "a workflow"), "a workflow's name must not be '..'"),
    (lambda: check_name(7, "store"), "a store's name must be"),
    (lambda: check_key(7, "key"), r"key must be a str, not int: write key=str\(...\)"),
    (lambda: check_key("", "key"), "key must be 1 to 100 characters"),
    (lambda: check_key("a\n", "key"), "no control characters"),
    (lambda: check_span("1", "delay_s"), "delay_s must be a number of seconds, not str"),
    (lambda: check_span(True, "delay_s"), "delay_s must be a number of seconds, not bool"),
    (lambda: check_span(-1, "delay_s"), r"delay_s must be 0 to 31,536,000 seconds \(a year\), not -1"),
    (lambda: check_span(float("nan"), "delay_s"), "not nan"),
    (lambda: check_span(9, "wait_s", most_s=5), "wait_s must be 0 to 5 seconds, not 9"),
    (lambda: check_span(10**400, "wait_s"), "not a number that is far too large"),
    (lambda: check_count(1.0, "limit", 10), "limit must be an int, not float"),
    (lambda: check_count(11, "limit", 10), "limit must be 1 to 10, not 11"),
    (lambda: check_list("ab", "tags"), r"tags must be a list, not one str: write tags=\['ab'\]"),
    (lambda: check_list(5, "tags"), "tags must be a list, not int"),  # type: ignore[arg-type]
    (lambda: check_size(b"abcd", "body", 3, "a body", "send a reference"), "at most 3 bytes, not 4: send a reference"),
]


@pytest.mark.parametrize(("check", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_is_named_with_a_remedy(check: Callable[[], Any], message: str) -> None:
    """Each refusal says the field or thing, the limit, and the value."""
    with pytest.raises(InvalidArgument, match=message) as raised:
        check()
    assert raised.value.details["field"]
