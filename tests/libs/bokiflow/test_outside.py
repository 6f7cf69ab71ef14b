"""What clients of workflows send is what gateways read."""

from __future__ import annotations

import pytest

from boki.extending import Attribute
from boki.libs.bokiflow.attributes import parse_attribute
from boki.libs.bokiflow.outside import pairs_of


@pytest.mark.parametrize(
    "value",
    [
        "Ada",
        "",
        "007",
        "true",
        "C:\\temp",
        "it's",
        "'",
        '"',
        'say "it\'s"',
        "é=1",
        True,
        False,
        -3,
        1 << 62,
        0.1,
        1e22,
        3.0,
    ],
)
def test_an_attribute_arrives_as_it_was_given(value: Attribute) -> None:
    """With its type, and every character of a text."""
    (pair,) = pairs_of({"name": value})
    name, found = parse_attribute(pair)
    assert (name, found, type(found)) == ("name", value, type(value))
