"""One body means one thing, whatever content type a tool made up for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from boki.gateway.server.http.bodies import describes_record, message_value
from boki.libs.bokiqueue import Message
from boki.libs.bokiqueue.face.consumers import item_of, payload_of, single_payload
from boki.protocol.calls import FunctionInfo
from tests.gateway.fake_backend import run, serving

_FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("content_type", "body", "value"),
    [
        ("application/json", b"7", 7),
        ("application/cloudevents+json", b'{"a":1}', {"a": 1}),
        ("text/plain; charset=utf-8", b'{"a":1}', '{"a":1}'),
        ("application/octet-stream", b'{"a":1}', b'{"a":1}'),
        (_FORM, b' {"a":1}', {"a": 1}),
        ("", b"[1]", [1]),
        (_FORM, b"7", b"7"),
        (_FORM, b"Ada", b"Ada"),
    ],
)
def test_a_message_is_what_its_content_type_says_or_else_json_if_it_is(
    content_type: str, body: bytes, value: object
) -> None:
    """A9: curl's own content type says nothing."""
    assert message_value(content_type, body) == value


@pytest.mark.parametrize(
    ("content_type", "body", "describes"),
    [
        ("application/json", b"{}", True),
        ("application/octet-stream", b"{}", False),
        ("text/plain", b"{}", False),
        (_FORM, b"hello", False),
        ("", b"[1]", False),
    ],
)
def test_a_record_is_described_by_json_alone(content_type: str, body: bytes, describes: bool) -> None:
    """Other bodies are its data; an object that could be either is refused."""
    assert describes_record(content_type, body) is describes


def test_what_curl_pushes_is_popped_as_json() -> None:
    """A9: through the gateway, and back."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            headers = {"Content-Type": _FORM}
            async with http.post("/queue/b/q", data=b'{"item":"tea"}', headers=headers) as response:
                assert response.status == 200
            async with http.post("/queue/b/q/pop") as response:
                ((message,),) = [(await response.json())["messages"]]
                assert message["json"] == {"item": "tea"}

    run(scenario())


_OBJECTS = {"type": "array", "items": {"$ref": "#/$defs/Order"}, "$defs": {"Order": {"type": "object"}}}
_STRINGS = {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
_ANY: dict[str, Any] = {"type": "array"}


def message(form: int, data: bytes) -> Message[Any]:
    """As much of a message as is looked at."""
    return cast("Message[Any]", SimpleNamespace(form=form, data=data))


@pytest.mark.parametrize(
    ("schema", "form", "data", "item"),
    [
        (_OBJECTS, 2, b'{"a":1}', b'{"a":1}'),
        (_OBJECTS, 1, b'{"a":1}', b'{"a":1}'),
        (_OBJECTS, 0, b'{"a":1}', b'{"a":1}'),
        (_OBJECTS, 0, b"\xff", None),
        (_STRINGS, 1, b'{"a":1}', b'"{\\"a\\":1}"'),
        (_STRINGS, 0, b'{"a":1}', None),
        (_ANY, 1, b"7", b'"7"'),
        ({"type": "array", "items": {"enum": ["red"]}}, 1, b"red", b'"red"'),
        ({"type": "array", "items": {"enum": [1]}}, 1, b"1", b"1"),
        ({"type": "array", "items": {"type": ["string", "null"]}}, 1, b"null", b'"null"'),
    ],
)
def test_items_of_a_batch_are_read_as_the_function_takes_them(
    schema: dict[str, Any], form: int, data: bytes, item: bytes | None
) -> None:
    """A9: text and bytes that are JSON are what they say, unless an item may be a string."""
    info = FunctionInfo(name="f", module="m", is_async=True, payload_schema=schema)
    assert item_of(message(form, data), info) == item
    if item is not None:
        assert payload_of([message(form, data)] * 2, info).data == b"[" + item + b"," + item + b"]"


@pytest.mark.parametrize(("data", "encoding"), [(b'{"a":1}', "text"), (b'"Ada"', "json")])
def test_a_text_consumer_takes_json_as_it_was_pushed(data: bytes, encoding: str) -> None:
    """As a text function does over HTTP; a JSON string is the text that it says."""
    info = FunctionInfo(name="f", module="m", is_async=True, payload_encoding="text")
    assert single_payload(message(2, data), info).encoding == encoding
