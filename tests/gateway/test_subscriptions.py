"""Subscriptions as server-sent events: order, resuming, heartbeats, trims, and readers that do not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from boki.errors import CorruptData, Unavailable
from boki.gateway.config import Timeouts
from boki.gateway.core import STREAM_BYTES, Budget
from boki.gateway.server.http import subscriptions
from boki.gateway.server.http.subscriptions import FIRST_PAGES, PAGE_BYTES
from boki.log.limits import MIB, Limits
from boki.log.metalog import Positions
from boki.log.operations import Answer, Operation, Read
from boki.log.record import Record
from tests.gateway.fake_backend import FakeBackend, refused, run, serving, stream_ended, turns_until
from tests.gateway.strangers import Raw

PATH = "/logbook/b/subscribe"


class Events:
    """The events of a response, one after the other. Comments are events that are called "comment"."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        self._content = response.content

    async def next(self) -> dict[str, Any]:
        """The next event; {} at the end."""
        event: dict[str, Any] = {}
        while line := (await self._content.readline()).decode():
            if line == "\n":
                return event
            name, _, value = line.rstrip("\n").partition(": ")
            event[name or "comment"] = json.loads(value) if name == "data" else value
        return {}

    async def texts(self, count: int) -> list[str]:
        """The texts of the next records."""
        found: list[str] = []
        while len(found) < count:
            event = await self.next()
            if "comment" not in event:
                assert event["id"] == event["data"]["seqnum"]
                found.append(event["data"]["text"])
        return found


async def append(http: aiohttp.ClientSession, text: str, *tags: str) -> str:
    async with http.post("/logbook/b/append", json={"text": text, "tags": tags}) as response:
        seqnum: str = (await response.json())["seqnum"]
        return seqnum


def test_a_subscriber_gets_what_is_there_and_what_comes() -> None:
    """In order, each record once, with its seqnum as the event's id."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            for n in range(3):
                await append(http, str(n))
            async with http.get(PATH) as response:
                events = Events(response)
                assert await events.texts(3) == ["0", "1", "2"]
                await backend.until_waiting()
                await append(http, "3")
                assert await events.texts(1) == ["3"]

    run(scenario())


def test_a_tag_filters_and_now_starts_at_the_end() -> None:
    """Only records of the tag, and only those after the subscription began."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            await append(http, "old", "t")
            async with http.get(f"{PATH}?tag=t") as tagged, http.get(f"{PATH}?start=now") as new:
                await backend.until_waiting(2)
                await append(http, "no")
                await append(http, "yes", "t")
                assert await Events(tagged).texts(2) == ["old", "yes"]
                assert await Events(new).texts(2) == ["no", "yes"]

    run(scenario())


class SlowTail(FakeBackend):
    """A log that looks for its tail for as long as others have time to append."""

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        if isinstance(operation, Read) and operation.fresh:
            before = self.change_count
            for _ in range(1_000):
                if self.change_count > before:
                    break
                await asyncio.sleep(0)
        return await super().request(operation, positions, timeout_s)


def test_what_is_appended_after_the_first_byte_of_a_stream_from_now_on_is_delivered() -> None:
    """ "Now" lies before the first byte leaves, however slowly the tail is found (found.md, part 3, number 4)."""

    async def scenario() -> None:
        async with serving(SlowTail()) as (_, _backend, http):
            await append(http, "old", "t")
            for query in ("?start=now", "?start=now&tag=t"):
                async with http.get(PATH + query) as response:
                    events = Events(response)
                    assert await events.next() == {"comment": "boki"}
                    await append(http, "new", "t")
                    await append(http, "newer", "t")
                    assert await events.texts(2) == ["new", "newer"]

    run(scenario())


def test_a_stream_that_cannot_find_now_is_refused_with_a_status() -> None:
    """Nothing has been sent by then, so the error is an ordinary answer."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            backend.failures.append(Unavailable("no engine"))
            async with http.get(f"{PATH}?start=now") as response:
                await refused(response, 503, "unavailable")
            assert gateway.core.bytes_in_flight == 0

    run(scenario())


def test_streams_that_begin_at_once_leave_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """900 of them on records of 1 MiB held the loop for 17 s: one page is encoded in a turn, few are read at once."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        turn = 0
        encoded: list[int] = []

        def count_turn() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count_turn)

        def events(records: Sequence[Record]) -> tuple[bytes, int]:
            encoded.append(turn)
            return encode(records)

        encode = subscriptions._events
        monkeypatch.setattr(subscriptions, "_events", events)
        backend = Crowded()
        async with serving(backend) as (gateway, _, http):
            await append(http, "x" * 200_000)
            count_turn()
            readers = [await Raw.open(gateway.port, limit=1024) for _ in range(30)]
            for raw in readers:
                await raw.send(f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await turns_until(lambda: len(encoded) == len(readers))
            assert len(set(encoded)) == len(encoded)
            assert backend.most_reads <= FIRST_PAGES
            for raw in readers:
                await raw.close()

    run(scenario())


class Crowded(FakeBackend):
    """It says how many reads that do not wait were under way at once."""

    reads = most_reads = 0

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        is_first = isinstance(operation, Read) and not operation.wait_us
        self.reads += is_first
        self.most_reads = max(self.most_reads, self.reads)
        try:
            return await super().request(operation, positions, timeout_s)
        finally:
            self.reads -= is_first


def test_a_reader_that_comes_back_goes_on_where_it_was() -> None:
    """`Last-Event-ID` counts more than `start`, as browsers send both."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            seqnums = [await append(http, str(n)) for n in range(5)]
            async with http.get(f"{PATH}?start={seqnums[3]}") as response:
                assert await Events(response).texts(2) == ["3", "4"]
            async with http.get(f"{PATH}?start=0", headers={"Last-Event-ID": seqnums[1]}) as response:
                assert await Events(response).texts(3) == ["2", "3", "4"]

    run(scenario())


def test_without_records_there_are_heartbeats() -> None:
    """So that reader and proxies know that the connection lives."""

    async def scenario() -> None:
        async with serving() as (_, backend, http), http.get(PATH) as response:
            events = Events(response)
            assert await events.next() == {"comment": "boki"}
            for _ in range(3):
                await backend.until_waiting()
                backend.expire_waits()
                assert await events.next() == {"comment": "still here"}
            read = backend.operations[-1][0]
            assert isinstance(read, Read)
            assert read.wait_us == 15_000_000

    run(scenario())


def test_records_that_were_trimmed_unread_are_told_once() -> None:
    """The event's id lies before the next record, so that a reader that reconnects continues there."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            seqnums = [await append(http, str(n)) for n in range(4)]
            async with http.post("/logbook/b/trim", json={"before": seqnums[2]}) as response:
                assert response.status == 200
            async with http.get(f"{PATH}?start={seqnums[0]}") as response:
                events = Events(response)
                await events.next()
                event = await events.next()
                assert (event["event"], event["data"]["code"]) == ("trimmed", "trimmed")
                assert event["data"]["details"]["next_seqnum"] == seqnums[2]
                assert await events.next() == {}
            async with http.get(PATH, headers={"Last-Event-ID": event["id"]}) as response:
                assert await Events(response).texts(2) == ["2", "3"]
            async with http.get(f"{PATH}?start={seqnums[0]}&on_trimmed=skip") as response:
                assert await Events(response).texts(2) == ["2", "3"]

    run(scenario())


def test_an_error_on_the_way_is_the_last_event() -> None:
    """The status is sent already, so the error is an event, and the reader comes back if it likes."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            backend.failures.append(CorruptData("gone"))
            async with http.get(PATH) as response:
                events = Events(response)
                await events.next()
                event = await events.next()
                assert (event["event"], event["data"]["code"]) == ("error", "corrupt_data")
                assert await events.next() == {}

    run(scenario())


@pytest.mark.parametrize(
    ("query", "headers", "field"),
    [
        ("?start=tomorrow", {}, "start"),
        ("?on_trimmed=ignore", {}, "on_trimmed"),
        ("?tag=", {}, "tags"),
        ("?limit=5", {}, "limit"),
        ("", {"Last-Event-ID": "x"}, "Last-Event-ID"),
        ("", {"Boki-Position": "x"}, "Boki-Position"),
    ],
)
def test_bad_arguments_are_400_before_the_stream_begins(query: str, headers: dict[str, str], field: str) -> None:
    """They are ordinary answers, not events."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http), http.get(PATH + query, headers=headers) as response:
            assert (await refused(response, 400, "invalid_argument"))["details"]["field"] == field

    run(scenario())


def test_subscriptions_are_bounded_and_give_back_their_place() -> None:
    """Beyond the bound 429; a reader that has left is noticed with the next heartbeat."""

    async def scenario() -> None:
        async with serving(budget=Budget(streams=1)) as (gateway, backend, http):
            ended = stream_ended(gateway.core)
            async with http.get(PATH) as response:
                await backend.until_waiting()
                async with http.get(PATH) as second:
                    await refused(second, 429, "overloaded")
                response.close()
            over = asyncio.create_task(ended.wait())
            while not over.done():
                waiting = asyncio.create_task(backend.until_waiting())
                await asyncio.wait((over, waiting), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                backend.expire_waits()
            async with http.get(PATH) as response:
                assert response.status == 200

    run(scenario())


def test_a_reader_that_does_not_read_costs_a_page_and_is_cut_off() -> None:
    """Nothing is read from the log for somebody who does not take it."""

    async def scenario() -> None:
        limits = Limits(page_bytes=MIB)
        backend = FakeBackend(limits)
        async with serving(backend, limits=limits, timeouts=Timeouts(reader_s=0.2)) as (gateway, _, http):
            for _ in range(40):
                async with http.post("/logbook/b/append", data=bytes(MIB)) as response:
                    assert response.status == 200
            ended = stream_ended(gateway.core)
            before = len(backend.operations)
            raw = await Raw.open(gateway.port, limit=1024)
            await raw.send(f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            async with asyncio.timeout(20):
                await ended.wait()
            assert len(backend.operations) - before < 20
            await raw.close()

    run(scenario())


def test_a_drain_ends_subscriptions_so_that_readers_go_elsewhere() -> None:
    """With an event that says why; the gateway is idle then."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http), http.get(PATH) as response:
            events = Events(response)
            await events.next()
            await backend.until_waiting()
            gateway.drain()
            event = await events.next()
            assert (event["event"], event["data"]["code"], event["data"]["retryable"]) == ("error", "unavailable", True)
            assert await events.next() == {}
            assert gateway.core.is_idle
            async with http.get(PATH) as second:
                await refused(second, 503, "unavailable")

    run(scenario())


def test_what_stalled_readers_hold_is_counted_and_about_a_page_each() -> None:
    """However large the book is; it is given back when they leave."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            for _ in range(24):
                async with http.post("/logbook/b/append_many", json={"records": [{"text": "x" * 9000}] * 100}) as added:
                    assert added.status == 200
            readers = [await Raw.open(gateway.port, limit=1024) for _ in range(3)]
            for raw in readers:
                await raw.send(f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            most = 3 * (PAGE_BYTES + STREAM_BYTES)
            await turns_until(lambda: gateway.core.stream_bytes > most - 3 * 10_000)
            assert gateway.core.stream_bytes <= most
            async with http.get("/status") as response:
                assert (await response.json())["gateway"]["bytes_in_flight"] == gateway.core.stream_bytes
            reads = [read for read, _, _ in backend.operations if isinstance(read, Read) and read.book == "b"]
            assert max(read.limit for read in reads) <= PAGE_BYTES // 9000
            for raw in readers:
                await raw.close()
            await turns_until(lambda: gateway.core.bytes_in_flight == 0)

    run(scenario())


def test_pages_of_large_and_small_records_lose_none() -> None:
    """What does not fit into a page comes with the next one."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            sizes = [1] * 60 + [400_000] * 5 + [1] * 90 + [100_000] * 10
            for start in range(0, len(sizes), 2):
                records = [{"text": "x" * size} for size in sizes[start : start + 2]]
                async with http.post("/logbook/b/append_many", json={"records": records}) as response:
                    assert response.status == 200
            async with http.get(PATH, read_bufsize=1 << 20) as response:
                assert [len(text) for text in await Events(response).texts(len(sizes))] == sizes

    run(scenario())


def test_beyond_the_budget_a_stream_ends_and_says_so() -> None:
    """As an event if it is open already, as a 429 if not; calls have room of their own."""

    async def scenario() -> None:
        async with serving(budget=Budget(stream_bytes=STREAM_BYTES + 1000)) as (gateway, backend, http):
            async with http.get(PATH) as response:
                await backend.until_waiting()
                async with http.get(PATH) as second:
                    await refused(second, 429, "overloaded")
                await append(http, "x" * 2000)
                events = Events(response)
                await events.next()
                event = await events.next()
                assert (event["event"], event["data"]["code"]) == ("error", "overloaded")
            assert gateway.core.bytes_in_flight == 0

    run(scenario())
