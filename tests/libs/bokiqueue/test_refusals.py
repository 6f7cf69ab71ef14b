"""What cannot be is refused with an error of Boki, whatever it is."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

import boki.testing
from boki import InvalidArgument, KeyReused, LogBook, WrongType
from boki.libs.bokiqueue import Outbox, Queue, QueueFull
from boki.libs.bokiqueue.messages import encode_body
from tests.libs.bokiqueue.running import asynchronous

HUGE = 10**5000


async def push_in_a_block(queue: Queue[Any], **options: Any) -> None:
    Outbox(queue.logbook).push(queue, "x", **options)


@asynchronous
async def test_values_of_the_wrong_size_or_kind_are_refused_by_name() -> None:
    """Numbers that no float holds and nobody can print, lists that are none, times that a queue does not look at."""
    async with boki.testing.context() as ctx:
        queue: Queue[Any] = Queue(ctx.logbook, "q")
        await queue.create()
        for field, refused in (
            ("delay_s", queue.push("x", delay_s=10**400)),
            ("delay_s", queue.push("x", delay_s=HUGE)),
            ("ttl_s", queue.push("x", ttl_s=float("nan"))),
            ("ttl_s", queue.push("x", delay_s=10, ttl_s=5)),
            ("ttl_s", queue.push_many(["x"], delay_s=10, ttl_s=10)),
            ("ttl_s", push_in_a_block(queue, delay_s=10, ttl_s=10)),
            ("handle", queue.redrive("0" * 5000 + "-1")),
            ("handle", queue.purge("0-" + "1" * 5000)),
            ("receipt", queue.ack("0-0-" + "1" * 5000)),
            ("count", queue.pop_many(HUGE)),
            ("count", queue.pop_many(-HUGE)),
            ("start_time_s", queue.create_group("g", start_time_s=HUGE)),
            ("group_keys", queue.push_many([1, 2], group_keys=(key for key in "ab"))),  # type: ignore[arg-type]
            ("group_keys", queue.push_many([1, 2], group_keys={"a": 1, "b": 2})),  # type: ignore[arg-type]
            ("group_keys", queue.push_many([1, 2], group_keys="ab")),
            ("wait_s", queue.push("x", wait_s=-5)),
            ("wait_s", queue.push("x", wait_s="x")),  # type: ignore[arg-type]
            ("body", queue.push("\ud800")),
            ("body", queue.push({"a": "\ud800"})),
            ("body", queue.push(float("nan"))),
            ("body", queue.push({"a": [1, {"b": float("inf")}]})),
        ):
            with pytest.raises((InvalidArgument, WrongType)) as error:
                await refused
            assert error.value.details["field"] == field
        assert (await queue.stats()).pushed == 0
        assert await queue.push("x", delay_s=10, ttl_s=10.1)


def test_none_is_null_and_nothing_else_is() -> None:
    """What looks like null is not refused for it."""
    for value in (None, [None, 1.5], {"null": "null"}, {"a": {"b": [0.5, None, True]}}):
        assert b"null" in encode_body(value)[1]


@asynchronous
async def test_keys_have_characters_and_not_bytes() -> None:
    """As many as are promised, also beside a queue's long name; another key is another push."""
    async with boki.testing.context() as ctx:
        queue: Queue[Any] = Queue(ctx.logbook, "q" * 100)
        first = await queue.push(1, key="\U0001f600" * 100)
        assert await queue.push(1, key="\U0001f600" * 100) == first
        assert await queue.push(1, key="\U0001f600" * 99 + "x") != first


@pytest.mark.parametrize("shards", [1, 3])
@asynchronous
async def test_a_push_that_is_repeated_into_a_full_queue_is_told_its_first_ids(shards: int) -> None:
    """At once, also where it would wait for room. What was not pushed before is refused, and not pushed by asking."""
    async with boki.testing.context() as ctx:
        queue: Queue[Any] = Queue(ctx.logbook, "q")
        await queue.create(shards=shards, max_length=3)
        one, more = await queue.push("one", key="k"), await queue.push_many(["two", "three"], key="l")
        assert await queue.push("one", key="k") == one
        assert await queue.push("one", key="k", wait_s=3_600) == one
        assert await queue.push_many(["two", "three"], key="l") == more
        with pytest.raises(KeyReused):
            await queue.push_many(["two", "three"], key="k")
        for _ in range(2):
            with pytest.raises(QueueFull):
                await queue.push("four", key="m")
        assert (await queue.stats()).depth == 3
        assert await queue.pop() is not None
        assert await queue.push("four", key="m") not in (one, *more)


@asynchronous
async def test_a_refused_push_under_a_key_takes_no_room_in_the_log() -> None:
    """Only its key is asked for: what the log refuses stays on its disks until a trim passes it."""
    async with boki.testing.context() as ctx:
        queue: Queue[Any] = Queue(ctx.logbook, "q")
        await queue.create(max_length=1)
        first = await queue.push("x", key="k")
        sizes: list[int] = []
        append_many = LogBook.append_many

        async def measured(book: LogBook, records: Any, **options: Any) -> Any:
            sizes.append(sum(len(data) for data, *_ in records))
            return await append_many(book, records, **options)

        with patch.object(LogBook, "append_many", measured):
            with pytest.raises(QueueFull):
                await queue.push("x" * 100_000, key="l")
            assert await queue.push("x", key="k") == first
        assert sizes == [0, 0]
