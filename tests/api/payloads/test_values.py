"""Payloads and results: what an annotation accepts, and how a misfit is told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.api.payloads.values import codec_for, decode_any, encode_any
from boki.errors import ConfigError, InvalidArgument
from boki.protocol.calls import Payload


@dataclass
class Guest:
    name: str
    ages: list[int]


class Struct(msgspec.Struct, forbid_unknown_fields=True):
    guest: Guest
    score: Annotated[int, msgspec.Meta(ge=0, le=10)] = 0


class Point(NamedTuple):
    x: int
    y: int


class Colour(Enum):
    RED = "red"


class Options(TypedDict, total=False):
    depth: int


class Model(pydantic.BaseModel):
    name: str
    tags: list[Annotated[int, pydantic.Field(gt=0)]] = []


class Strange:
    def __repr__(self) -> str:
        return "Strange()"


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

FITTING: list[tuple[Any, Any, Payload]] = [
    (bytes, b"\x00\xff", Payload("bytes", b"\x00\xff")),
    (str, "tür", Payload("text", "tür".encode())),
    (int, 7, Payload("json", b"7")),
    (None, None, Payload("json", b"null")),
    (dict[str, list[float]], {"a": [1.5]}, Payload("json", b'{"a":[1.5]}')),
    (dict, {"a": 1}, Payload("json", b'{"a":1}')),
    (int | None, None, Payload("json", b"null")),
    (bytes | None, b"\xff", Payload("json", b'"/w=="')),
    (Guest, Guest("Ada", [1]), Payload("json", b'{"name":"Ada","ages":[1]}')),
    (list[Guest], [Guest("Ada", [])], Payload("json", b'[{"name":"Ada","ages":[]}]')),
    (Struct, Struct(Guest("A", [])), Payload("json", b'{"guest":{"name":"A","ages":[]},"score":0}')),
    (Point, Point(1, 2), Payload("json", b"[1,2]")),
    (Colour, Colour.RED, Payload("json", b'"red"')),
    (Options, {"depth": 1}, Payload("json", b'{"depth":1}')),
    (Literal["a", "b"], "a", Payload("json", b'"a"')),
    (datetime, datetime.fromisoformat("2024-01-02T03:04:05+00:00"), Payload("json", b'"2024-01-02T03:04:05Z"')),
    (Model, Model(name="A", tags=[1]), Payload("json", b'{"name":"A","tags":[1]}')),
    (list[Model] | None, [Model(name="A")], Payload("json", b'[{"name":"A","tags":[]}]')),
    (Any, {"a": [None]}, Payload("json", b'{"a":[null]}')),
    (Any, b"raw", Payload("bytes", b"raw")),
    (object, "text", Payload("text", b"text")),
]


@pytest.mark.parametrize(("annotation", "value", "payload"), FITTING, ids=lambda value: repr(value)[:40])
def test_a_fitting_value_travels(annotation: Any, value: Any, payload: Payload) -> None:
    """There and back, in the annotation's encoding."""
    codec = codec_for(annotation, "payload of f")
    assert codec.encode(value, "payload of f") == payload
    assert codec.decode(payload, "payload of f") == value


BAD_JSON: list[tuple[Any, bytes, str, str]] = [
    (int, b'"7"', "payload", "Expected `int`, got `str`"),
    (dict, b"{", "payload", "it ends at line 1, column 2 before it is complete"),
    (dict, b'{"a": NaN}', "payload", "NaN is not a value of JSON"),
    (str, b'"\xff"', "payload", "byte 1 is not UTF-8"),
    (list, b"[" * 100_000, "payload", "nested too deeply"),
    (Any, b"[" * 100_000, "payload", "nested too deeply"),
    (list[Model], b"[" * 100_000, "payload", "recursion"),
    (int, b"1" * 10_000, "payload", "out of range"),
    (Guest, b'{"name": "Ada"}', "payload", "missing required field `ages`"),
    (Guest, b'{"name": "Ada", "ages": [1, "2"]}', "payload.ages[1]", "Expected `int`, got `str`"),
    (Struct, b'{"guest": {"name": 1, "ages": []}}', "payload.guest.name", "Expected `str`, got `int`"),
    (Struct, b'{"guest": {"name": "A", "ages": []}, "score": 11}', "payload.score", "<= 10"),
    (Struct, b'{"guest": {"name": "A", "ages": []}, "skore": 1}', "payload", "unknown field `skore`"),
    (Model, b'{"name": 7}', "payload.name", "valid string"),
    (Model, b'{"name": "A", "tags": [1, 0]}', "payload.tags[1]", "greater than 0"),
    (list[Model], b'[{"name": "A"}, {}]', "payload[1].name", "Field required"),
    (str, b"7", "payload", "Expected `str`, got `int`"),
]


@pytest.mark.parametrize(("annotation", "data", "field", "words"), BAD_JSON, ids=lambda value: repr(value)[:40])
def test_a_misfit_names_its_field(annotation: Any, data: bytes, field: str, words: str) -> None:
    """The error says where in the payload, what was expected and what came."""
    codec = codec_for(annotation, "payload of f")
    with pytest.raises(InvalidArgument) as caught:
        codec.decode(Payload("json", data), "payload of f")
    assert caught.value.field == field
    assert "payload of f" in caught.value.message
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (bytes, "text"),
        (str, b"raw"),
        (str, 7),
        (int, "7"),
        (Guest, {"name": 1}),
        (Guest, Strange()),
        (Model, {"name": 1}),
    ],
)
def test_a_value_that_does_not_fit_is_not_sent(annotation: Any, value: Any) -> None:
    """Found where it is written, not by whoever reads it."""
    with pytest.raises(InvalidArgument, match="result of f"):
        codec_for(annotation, "result of f").encode(value, "result of f")


def test_text_stands_for_a_str() -> None:
    """Wherever it arrives: as text, or as JSON that may be a str."""
    text = Payload("text", b"red")
    assert codec_for(str, "p").decode(text, "p") == "red"
    assert codec_for(str, "p").decode(Payload("json", b'"red"'), "p") == "red"
    assert codec_for(str, "p").decode(Payload("bytes", b"red"), "p") == "red"
    assert codec_for(str | int, "p").decode(text, "p") == "red"
    assert codec_for(Colour, "p").decode(text, "p") is Colour.RED
    assert codec_for(Any, "p").decode(text, "p") == "red"
    assert codec_for(bytes, "p").decode(text, "p") == b"red"
    with pytest.raises(InvalidArgument, match="Expected `object`, got `str`"):
        codec_for(dict[str, int], "p").decode(Payload("text", b"a: 1"), "p")
    with pytest.raises(InvalidArgument, match="UTF-8"):
        codec_for(str, "p").decode(Payload("bytes", b"\xff"), "p")


@pytest.mark.parametrize("encoding", ["json", "text", "bytes"])
@pytest.mark.parametrize(
    ("annotation", "data", "value"),
    [
        (Guest, b'{"name": "Ada", "ages": [1]}', Guest("Ada", [1])),
        (Model, b'{"name": "Ada"}', Model(name="Ada")),
        (int, b" 7", 7),
        (dict[str, int] | str, b'{"a": 1}', {"a": 1}),
    ],
    ids=["dataclass", "pydantic", "int", "union"],
)
def test_json_means_one_thing_whatever_it_is_sent_as(annotation: Any, data: bytes, value: Any, encoding: Any) -> None:
    """A9: a content type that a tool made up changes nothing, unless the annotation has room for the text itself."""
    decoded = codec_for(annotation, "p").decode(Payload(encoding, data), "p")
    assert decoded == (data.decode() if (encoding, value) == ("text", {"a": 1}) else value)


@pytest.mark.parametrize("annotation", [int, Guest, Model, dict[str, int]])
def test_bytes_that_are_no_json_are_refused(annotation: Any) -> None:
    """The error says what to send. Nothing at all is null."""
    codec = codec_for(annotation, "payload of f")
    with pytest.raises(InvalidArgument, match="must be JSON, not raw bytes"):
        codec.decode(Payload("bytes", b"{7"), "payload of f")
    with pytest.raises(InvalidArgument):
        codec.decode(Payload("bytes", b""), "payload of f")
    assert codec_for(annotation | None, "payload of f").decode(Payload("bytes", b""), "payload of f") is None


@pytest.mark.parametrize("annotation", [Strange, complex, list[Strange], "Guest"])
def test_a_type_that_cannot_travel_is_refused(annotation: Any) -> None:
    """When the module is loaded, with what may be written instead."""
    with pytest.raises(ConfigError, match=r"cannot travel.*dataclass"):
        codec_for(annotation, "payload of f")


def test_schemas() -> None:
    """JSON has one; text and bytes have none."""
    assert codec_for(bytes, "p").schema is codec_for(str, "p").schema is None
    assert codec_for(int, "p").schema == {"type": "integer"}
    assert codec_for(Any, "p").schema == {}
    guest = codec_for(Guest, "p").schema
    assert guest is not None
    assert guest["$defs"]["Guest"]["required"] == ["name", "ages"]
    model = codec_for(Model, "p").schema
    assert model is not None
    assert model["required"] == ["name"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@given(json_values | st.binary())
def test_without_annotation_values_travel_by_what_they_are(value: Any) -> None:
    """bytes, str and JSON come back as they went."""
    assert decode_any(encode_any(value, "p"), "p") == value


def test_models_travel_by_name_too() -> None:
    """A caller that does not know the annotation sends what it has."""
    assert encode_any(Guest("A", []), "p") == Payload("json", b'{"name":"A","ages":[]}')
    assert encode_any(Model(name="A"), "p") == Payload("json", b'{"name":"A","tags":[]}')
    with pytest.raises(InvalidArgument, match="cannot be written as JSON"):
        encode_any(Strange(), "p")


def test_pydantic_is_not_imported_unless_it_is_used() -> None:
    """It costs a tenth of a second and is no dependency."""
    code = (
        "import sys, boki\n"
        "@boki.function\n"
        "async def f(ctx: boki.Context, x: dict[str, int]) -> list[int]: ...\n"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@dataclass(frozen=True)
class Inner:
    size: int
    unit: str = "mm"


@dataclass(slots=True)
class Slotted:
    name: str = "s"


@dataclass
class Outer:
    inner: Inner
    many: list[Inner]
    slotted: Slotted = field(default_factory=Slotted)
    note: str = "none"


def test_fields_that_were_left_out_come_back_with_their_defaults() -> None:
    """A function that returns what it was given returns all of it, nested, frozen and slotted dataclasses too."""
    codec = codec_for(Outer, "payload")
    value = codec.decode(Payload("json", b'{"inner":{"size":1},"many":[{"size":2}]}'), "payload")
    assert msgspec.json.decode(codec.encode(value, "result").data) == {
        "inner": {"size": 1, "unit": "mm"},
        "many": [{"size": 2, "unit": "mm"}],
        "slotted": {"name": "s"},
        "note": "none",
    }
    by_name = codec_for(dict[str, Inner], "payload")
    value = by_name.decode(Payload("json", b'{"a":{"size":3}}'), "payload")
    assert msgspec.json.decode(by_name.encode(value, "result").data) == {"a": {"size": 3, "unit": "mm"}}
