"""Defaults of dataclasses: what was not sent is in what is sent on, wherever the dataclass stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import pytest

from boki.api.payloads.defaults import filler_for
from boki.api.payloads.values import codec_for
from boki.protocol.calls import Payload

T = TypeVar("T")


@dataclass
class Plain:
    a: int
    b: str = "x"


@dataclass(frozen=True)
class Frozen:
    a: int
    b: str = "x"


@dataclass(slots=True)
class Slotted:
    a: int
    b: str = "x"


@dataclass
class Made:
    a: int
    b: list[str] = field(default_factory=lambda: ["x"])
    c: Plain | None = None


@dataclass(slots=True)
class Heir(Plain):
    c: int = 1


@dataclass
class Tree:
    children: list[Tree] = field(default_factory=list)
    size: int = 0


@dataclass
class Box(Generic[T]):
    held: T
    b: str = "x"


@dataclass
class Settled:
    a: int
    b: str = ""

    def __post_init__(self) -> None:
        self.b = self.b or f"b of {self.a}"


@dataclass
class Counted:
    a: int
    seen: int = field(default=0, init=False)


class Pair(NamedTuple):
    first: Plain
    second: int


class Holder(msgspec.Struct):
    plain: Plain


X = '{"a":1,"b":"x"}'
SENT: list[tuple[Any, str, str]] = [
    (Plain, '{"a":1}', X),
    (Plain, '{"a":1,"b":"y"}', '{"a":1,"b":"y"}'),
    (Frozen, '{"a":1}', X),
    (Slotted, '{"a":1}', X),
    (Made, '{"a":1,"c":{"a":1}}', '{"a":1,"c":' + X + ',"b":["x"]}'),
    (Heir, '{"a":1}', '{"a":1,"b":"x","c":1}'),
    (Tree, '{"children":[{}]}', '{"children":[{"children":[],"size":0}],"size":0}'),
    (Box[Plain], '{"held":{"a":1}}', '{"held":' + X + ',"b":"x"}'),
    (Settled, '{"a":1}', '{"a":1,"b":"b of 1"}'),
    (Counted, '{"a":1}', '{"a":1,"seen":0}'),
    (Pair, '[{"a":1},2]', f"[{X},2]"),
    (Holder, '{"plain":{"a":1}}', '{"plain":' + X + "}"),
    (dict[str, list[Plain]], '{"k":[{"a":1}]}', '{"k":[' + X + "]}"),
    (set[Frozen], '[{"a":1}]', f"[{X}]"),
    (tuple[Plain, ...] | None, '[{"a":1}]', f"[{X}]"),
]


@pytest.mark.parametrize(("annotation", "came", "goes"), SENT, ids=[f"{row[0]}-{row[1]}"[-40:] for row in SENT])
def test_a_value_goes_on_with_its_defaults(annotation: Any, came: str, goes: str) -> None:
    """What a function takes and returns again has every field that `__init__` would have set."""
    codec = codec_for(annotation, "payload of f")
    value = codec.decode(Payload("json", came.encode()), "payload of f")
    assert msgspec.json.decode(codec.encode(value, "result of f").data) == msgspec.json.decode(goes)


@pytest.mark.parametrize("annotation", [int, dict[str, Any], list[Slotted], Pair | None, Holder])
def test_only_types_that_can_miss_a_default_are_looked_through(annotation: Any) -> None:
    """Values of all others are left as they were decoded, at no cost."""
    assert (filler_for(annotation) is None) is (annotation not in (Pair | None, Holder))
