"""Objects through a client: a gateway's views answer, with one request and no replay, and say what the log says."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from boki import InvalidArgument, TooLarge
from boki.api.http.port import HttpPort
from boki.client import BlockingClient, Client
from boki.libs.bokistore import ConflictError, Store, WrongShape
from boki.libs.bokistore.blocking import Store as BlockingStore
from boki.libs.bokistore.face.views import answer
from boki.libs.bokistore.far import Wanted
from boki.libs.bokistore.memory import Memory
from boki.libs.bokistore.queries import WHOLE, Count, FirstKeys, ItemsAt, KeysAt, Question, ValueAt
from tests.gateway.fake_backend import run, serving
from tests.libs.bokistore.interleaving import Process, logbook


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many requests clients have sent, by target."""
    counts: Counter[str] = Counter()
    send = HttpPort.send

    async def counted(self: HttpPort, request: Any) -> Any:
        counts[request.target] += 1
        return await send(self, request)

    monkeypatch.setattr(HttpPort, "send", counted)
    return counts


async def grow(store: Store) -> None:
    """An object and a map with a past that takes many reads to replay."""
    for number in range(40):
        await store.object("log").append("items", number)
    await store.map("users", partitions=4, indexes=["city"]).set_many(
        {f"user-{number}": {"city": "London" if number % 2 else "Paris"} for number in range(8)}
    )


def test_a_read_is_one_request(sent: Counter[str]) -> None:
    """Of an object or of a page of a map, whatever their past; later changes of others are seen."""

    async def scenario() -> None:
        async with serving() as (gateway, _, _), Client(gateway.url) as one, Client(gateway.url) as other:
            await grow(Store(one.logbook("b")))
            sent.clear()
            store = Store(other.logbook("b"))
            log = store.object("log")
            assert await log.get("items.-1") == 39
            assert (await log.length("items"), await log.keys(), await log.exists("none")) == (40, ["items"], False)
            assert sent == {"/store/b/views": 4}
            users = store.map("users", partitions=4, indexes=["city"])
            assert [key for key, _ in await users.scan(after="user-5")] == ["user-6", "user-7"]
            assert (await users.length(), len(await users.where("city", "London"))) == (8, 4)
            assert await store.objects() == ["log"]
            assert sent == {"/store/b/views": 10}
            await Store(one.logbook("b")).object("log").set("items", [])
            other.see(one.position)
            assert await log.get("items.-1", "empty") == "empty"

    run(scenario())


def test_what_is_changed_begins_with_the_gateways_view(sent: Counter[str]) -> None:
    """Updates and transactions do not replay either, and conflict as any others."""

    async def scenario() -> None:
        async with serving() as (gateway, _, _), Client(gateway.url) as one, Client(gateway.url) as other:
            near = Store(one.logbook("b"))
            await grow(near)
            sent.clear()
            store = Store(other.logbook("b"))
            assert await store.object("log").append("items", "x") == 41
            assert sent == {"/store/b/views": 1, "/logbook": 2}
            assert await asyncio.gather(*(store.counter("n").increment() for _ in range(5))) == [1, 2, 3, 4, 5]
            async with store.transaction() as txn:
                await txn.prefetch("log", "n")
                assert await txn.object("log").length("items") == 41
                await txn.counter("n").increment()
            assert await near.counter("n").value() == 6
            with pytest.raises(ConflictError):
                async with store.transaction() as txn:
                    await txn.counter("n").value()
                    await near.counter("n").increment()
                    await txn.object("log").set("n", 1)
            other.logbook("b").session.shared(Memory).forget()
            assert await store.counter("n").increment(key="once") == 8
            assert await store.counter("n").increment(key="once") == 8
            with pytest.raises(WrongShape):
                await store.object("log").get("items.first")

    run(scenario())


def test_what_is_too_much_for_one_answer_is_asked_in_parts(sent: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of a large map, and large objects that a transaction uses; as of one moment as before."""
    monkeypatch.setattr("boki.libs.bokistore.face.views.MAX_ANSWER_BYTES", 5_000)

    async def scenario() -> None:
        async with serving() as (gateway, _, _), Client(gateway.url) as one, Client(gateway.url) as other:
            near, store = Store(one.logbook("b")), Store(other.logbook("b"))
            names = [f"large:{number}" for number in range(6)]
            for name in names:
                await near.object(name).set("", "x" * 2_000)
                await near.map("m", partitions=16).set(name, "y" * 1_000)
            sent.clear()
            assert [key for key, _ in await store.map("m", partitions=16).scan()] == names
            async with store.transaction() as txn:
                await txn.prefetch(*names)
                assert [await txn.object(name).get() for name in names] == ["x" * 2_000] * 6
            assert sent["/store/b/views"] <= 12

    run(scenario())


def test_blocking_clients_too() -> None:
    """From a thread, with the same answers."""

    def work(url: str) -> Any:
        with BlockingClient(url) as client:
            store = BlockingStore(client.logbook("b"))
            return store.object("log").length("items"), store.counter("n").increment(), store.objects()

    async def scenario() -> None:
        async with serving() as (gateway, _, _), Client(gateway.url) as client:
            await grow(Store(client.logbook("b")))
            assert await asyncio.to_thread(work, gateway.url) == (40, 1, ["log", "n"])

    run(scenario())


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (Wanted(), InvalidArgument),
        (Wanted(objects=["a"] * 3_000), InvalidArgument),
        (Wanted(questions=[("big", WHOLE)] * 20), TooLarge),
        (Wanted(questions=[("n", KeysAt())]), WrongShape),
    ],
)
def test_what_a_gateway_does_not_answer(wanted: Wanted, error: type[Exception]) -> None:
    """Nothing, too much, and what has no answer."""
    process = Process(logbook())
    process.run(process.direct.change("big", _set("x" * 900_000)))
    process.run(process.direct.change("n", _set(1)))
    with pytest.raises(error):
        process.run(answer(process.reader, wanted))


def test_questions_are_answered_as_of_one_moment() -> None:
    """Also as of an earlier one; `MISSING` is told from null."""
    process = Process(logbook())
    for value in (None, {"b": [1, 2], "a": {"x": 1}}):
        process.run(process.direct.change("o", _set(value)))
    asked: list[Question] = [ItemsAt(("b",), 1), Count(), FirstKeys("a", 5), ValueAt(("none",)), ValueAt(("a", "x"))]
    now = process.run(answer(process.reader, Wanted([("o", question) for question in asked], ["o", "p"])))
    assert now.answers == [[[2]], [2], [["x"]], [], [1]]
    assert [held.value for held in now.objects] == [[{"b": [1, 2], "a": {"x": 1}}], []]
    before = process.run(answer(process.reader, Wanted([("o", WHOLE), ("p", WHOLE)], at=now.objects[0].last - 1)))
    assert before.answers == [[None], []]


def _set(value: Any) -> Any:
    from boki.libs.bokistore.json_values import encode
    from boki.libs.bokistore.updates import Set

    return Set((), encode(value))


def test_a_fork_in_a_book_that_was_deleted_is_read(sent: Counter[str]) -> None:
    """What it inherits lies in no record of its own, and is not taken for what was deleted, again and again."""

    async def scenario() -> None:
        async with serving() as (gateway, _, _), Client(gateway.url) as one, Client(gateway.url) as other:
            store = Store(one.logbook("b"))
            await store.object("a").set("n", 40)
            await store.fork("trial")
            await one.logbook("trial").delete()
            await store.fork("trial")
            fork = Store(other.logbook("trial"))
            sent.clear()
            async with asyncio.timeout(10):
                for _ in range(2):
                    async with fork.transaction() as txn:
                        assert await txn.object("a").get("n") == 40
                assert await fork.object("a").increment("n") == 41
            assert sent.total() <= 10

    run(scenario())
