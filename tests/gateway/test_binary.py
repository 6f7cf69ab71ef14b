"""The binary endpoint: the same operations as a worker's, held to the same rules, whatever bytes come."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boki.api.http.exchange import LOG_CONTENT_TYPE
from boki.errors import ConnectionLost, InvalidArgument
from boki.gateway.server.http.binary import decode_request
from boki.log.chunk import Group, encode_chunk
from boki.log.limits import Limits
from boki.log.operations import (
    Append,
    Appended,
    Books,
    Done,
    Failure,
    Found,
    Get,
    ListBooks,
    Operation,
    Read,
    Reply,
    Request,
    SetAuxdata,
    SetRetention,
    Sync,
    TrimBook,
)
from boki.log.record import Expect
from tests.gateway.fake_backend import refused, run, serving

HEADERS = {"Content-Type": LOG_CONTENT_TYPE}


async def ask(
    http: aiohttp.ClientSession, operation: Operation, timeout_us: int = 5_000_000, position: int = 0
) -> Reply:
    """The reply to one operation."""
    request = Request(7, {0: position} if position else {}, timeout_us, operation)
    async with http.post("/logbook", data=msgspec.msgpack.encode(request), headers=HEADERS) as response:
        assert (response.status, response.headers["Content-Type"]) == (200, LOG_CONTENT_TYPE)
        reply = msgspec.msgpack.decode(await response.read(), type=Reply)
        assert reply.id == 7
        return reply


def chunk(book: str = "b", data: bytes = b"x", tags: tuple[str, ...] = ("t",), **group: Any) -> bytes:
    return encode_chunk(book, [Group([(data, tags)], **group)])


def test_every_operation_is_carried_out_and_raises_the_position() -> None:
    """Append, reads, trims and all else, as from a worker."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            appended = await ask(http, Append("b", chunk()))
            assert isinstance(appended.answer, Appended)
            seqnum = appended.answer.first_seqnum
            assert appended.positions[0] > 0
            kinds: list[tuple[Operation, type]] = [
                (Read("b", "t"), Found),
                (Get("b", seqnum), Found),
                (SetAuxdata("b", seqnum, b"a"), Done),
                (Sync("b"), Done),
                (ListBooks(), Books),
                (SetRetention("b", 5.0), Done),
                (TrimBook("b", seqnum + 1), Done),
                (Get("b", seqnum), Failure),
            ]
            for operation, kind in kinds:
                reply = await ask(http, operation, position=appended.positions[0])
                assert isinstance(reply.answer, kind), reply
                assert reply.positions[0] >= appended.positions[0]

    run(scenario())


def test_rejected_groups_are_told_in_the_answer() -> None:
    """A failed condition is no failure of the request: others may share it."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            reply = await ask(http, Append("b", chunk(when=(Expect("t", 5),))))
            assert isinstance(reply.answer, Appended)
            (rejected,) = reply.answer.rejected
            assert (rejected.tag, rejected.actual_seqnum) == ("t", 0)

    run(scenario())


def test_what_the_log_raises_is_the_answer() -> None:
    """With its outcome, so that the client raises the very same."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            backend.failures.append(ConnectionLost("broken", retry_after_s=5))
            reply = await ask(http, Append("b", chunk()))
            assert isinstance(reply.answer, Failure)
            assert (reply.answer.code, reply.answer.outcome) == ("connection_lost", "unknown")
            assert reply.answer.details == {"retry_after_s": 5}

    run(scenario())


LIMITS = Limits(record_bytes=100, request_bytes=2000, tag_bytes=20, tags_per_record=2, page_records=10)

BAD: list[tuple[Operation, str]] = [
    (Append("b", chunk("other")), "invalid_argument"),
    (Append("b", b""), "invalid_argument"),
    (Append("b", b"BC" + bytes(100)), "invalid_argument"),
    (Append("b", chunk()[:-1]), "invalid_argument"),
    (Append("b", chunk() + b"x"), "invalid_argument"),
    (Append("b", chunk(data=bytes(101))), "too_large"),
    (Append("b", chunk(tags=("a", "b", "c"))), "too_large"),
    (Append("b", chunk(tags=("x" * 21,))), "too_large"),
    (Append("b", chunk(tags=("\x01kforged",))), "invalid_argument"),
    (Append("boki:calls", chunk("boki:calls")), "invalid_argument"),
    (Append("no name", chunk("no name")), "invalid_argument"),
    (Read("b", ""), "invalid_argument"),
    (Read("b", limit=11), "too_large"),
    (Read("b", start=-1), "invalid_argument"),
    (Get("b", -1), "invalid_argument"),
    (TrimBook("boki:calls", 5), "invalid_argument"),
    (TrimBook("b", 5, "t", True), "invalid_argument"),
    (SetRetention("b", -1.0), "invalid_argument"),
    (ListBooks(limit=0), "invalid_argument"),
]


@pytest.mark.parametrize(("operation", "code"), BAD, ids=lambda value: repr(value)[:40])
def test_operations_that_break_a_rule_are_refused(operation: Operation, code: str) -> None:
    """A stranger's bytes are held to what a worker's are; nothing reaches the log."""

    async def scenario() -> None:
        async with serving(limits=LIMITS) as (_, backend, http):
            before = len(backend.operations)
            reply = await ask(http, operation)
            assert isinstance(reply.answer, Failure), reply
            assert (reply.answer.code, reply.answer.outcome) == (code, "not_applied")
            assert len(backend.operations) == before

    run(scenario())


def test_positions_of_no_term_are_refused() -> None:
    """Of one that does not exist; what is no number of a position at all is not even read."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            for position in (-1, 1 << 63):
                with pytest.raises(AssertionError, match="400"):
                    await ask(http, Read("b"), position=position)
            reply = await ask(http, Read("b"), position=5 << 43)
            assert isinstance(reply.answer, Failure)
            assert reply.answer.code == "invalid_argument"

    run(scenario())


def test_bodies_that_are_no_request_are_400() -> None:
    """So are other content types, and requests without time."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            good = Request(1, {}, 1000, Read("b"))
            for body in (b"", b"\x00", b"{}", msgspec.json.encode(good), msgspec.msgpack.encode([1, 2, 3])):
                async with http.post("/logbook", data=body, headers=HEADERS) as response:
                    await refused(response, 400, "invalid_argument")
            async with http.post("/logbook", data=msgspec.msgpack.encode(good)) as response:
                assert (await refused(response, 400, "invalid_argument"))["details"]["field"] == "Content-Type"
            for timeout_us in (0, -5, 1 << 60):
                body = msgspec.msgpack.encode(Request(1, {}, timeout_us, Read("b")))
                async with http.post("/logbook", data=body, headers=HEADERS) as response:
                    assert (await refused(response, 400, "invalid_argument"))["details"]["field"] == "timeout_us"

    run(scenario())


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_no_bytes_make_more_than_an_error(body: bytes) -> None:
    """Whatever comes is a request or `InvalidArgument`."""
    try:
        assert isinstance(decode_request(body), Request)
    except InvalidArgument as error:
        assert error.outcome == "not_applied"


def test_a_chunk_may_be_as_large_as_a_request_and_no_larger() -> None:
    """The envelope is not counted against the caller, and a body beyond it is not read."""

    async def scenario() -> None:
        async with serving(limits=LIMITS) as (_, _backend, http):
            groups = [Group([(bytes(100), ())]) for _ in range(16)]
            reply = await ask(http, Append("b", encode_chunk("b", groups)))
            assert isinstance(reply.answer, Appended)
            reply = await ask(http, Append("b", encode_chunk("b", groups + groups)))
            assert isinstance(reply.answer, Failure)
            assert reply.answer.code == "too_large"
            async with http.post("/logbook", data=bytes(100_000), headers=HEADERS) as response:
                await refused(response, 413, "too_large")

    run(scenario())


def test_a_wait_ends_before_its_caller_gives_up() -> None:
    """An empty answer is an answer: the deadline is not one."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            poll = asyncio.create_task(ask(http, Read("b", wait_us=1 << 50), timeout_us=5_000_000))
            await backend.until_waiting()
            read, _, timeout_s = backend.operations[-1]
            assert isinstance(read, Read)
            assert (read.wait_us, timeout_s) == (4_900_000, 5.0)
            backend.expire_waits()
            assert isinstance((await poll).answer, Found)

    run(scenario())


def test_a_drain_ends_polls() -> None:
    """As a refusal, which the client repeats elsewhere."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            poll = asyncio.create_task(ask(http, Read("b", wait_us=5_000_000), timeout_us=50_000_000))
            await backend.until_waiting()
            gateway.drain()
            answer = (await poll).answer
            assert isinstance(answer, Failure)
            assert (answer.code, answer.outcome, answer.retryable) == ("unavailable", "not_applied", True)

    run(scenario())
