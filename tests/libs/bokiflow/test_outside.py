"""What clients of workflows send is what gateways read."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from boki import Client, InvalidArgument, Response
from boki.extending import Attribute, Function, InvocationState
from boki.libs.bokiflow import workflow
from boki.libs.bokiflow.attributes import parse_attribute
from boki.libs.bokiflow.client import FlowClient
from boki.libs.bokiflow.face.shapes import state_shape
from boki.libs.bokiflow.outside import pairs_of, result_of_body


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


def test_an_empty_id_is_no_wish_for_a_new_one() -> None:
    """It is refused before anything is sent: a program whose id is missing would start another workflow each time."""

    async def scenario() -> None:
        async with Client("http://127.0.0.1:1") as client:
            flows = FlowClient(client)
            one = flows.handle("travel", "trip")
            attempts: list[Coroutine[Any, Any, object]] = [
                flows.start("travel", id=""),
                one.fork(id=""),
                one.update("pay", id=""),
            ]
            for attempt in attempts:
                with pytest.raises(InvalidArgument, match="id must be"):
                    await attempt

    asyncio.run(scenario())


@workflow
async def answer() -> Response:
    return Response("gone", status=410, headers={"X-Why": "old"})


@pytest.mark.parametrize("known_as", [answer, "answer"])
@pytest.mark.parametrize("content", ["gone", {"left": 0}, b"\xff", None])
def test_a_response_arrives_as_it_was_returned(known_as: Any, content: Any) -> None:
    """The result of a workflow may be a whole answer, with its status and headers; it arrived as None."""
    made = Response(content, status=410, headers={"X-Why": "old"})
    state = InvocationState(
        id="0" * 32,
        function="answer",
        book="answer",
        state="done",
        accepted_us=1,
        due_us=1,
        result=Function.of(answer).encode_result(made),
    )
    body = msgspec.json.decode(msgspec.json.encode(state_shape(state)))
    found = result_of_body(known_as, body)
    assert (found.body, found.status, found.header("X-Why")) == (content, 410, "old")
