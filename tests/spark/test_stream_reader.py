"""The streaming reader as Spark calls it, over a system in memory: what a checkpoint keeps is enough to continue."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import boki.spark.reading
import boki.spark.source
from boki.errors import InvalidArgument, NotFound
from boki.log.operations import ListBooks, Read
from boki.spark.options import read_options
from boki.spark.source import BatchReader, StreamReader
from tests.spark.memory_gateway import MemoryGateway, MemorySystem

SCHEMA = StructType([StructField("seqnum", LongType()), StructField("data", BinaryType())])


class Driver:
    """Spark's driver: a reader that is gone when the query ends, and what is in its checkpoint."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, system: MemorySystem, **options: str) -> None:
        self.system = system
        self.gateways: list[MemoryGateway] = []
        self.options = read_options(options, is_stream=True)
        self.logged: list[dict[str, Any]] = []
        """The ends of batches that were begun."""
        self.committed: dict[str, Any] | None = None

        def gateway(*_: object, **__: object) -> MemoryGateway:
            self.gateways.append(system.gateway())
            return self.gateways[-1]

        monkeypatch.setattr(boki.spark.source, "Gateway", gateway)
        monkeypatch.setattr(boki.spark.reading, "Gateway", gateway)
        self.restart()

    def restart(self) -> None:
        """The query begins, or begins again from its checkpoint."""
        self.reader = StreamReader(self.options, SCHEMA)

    @property
    def start(self) -> dict[str, Any]:
        """Where the next batch starts. Before the first commit Spark asks the reader, after a restart again."""
        if self.committed is not None:
            return self.committed
        assert self.reader.initialOffset() == self.reader.initialOffset()
        return self.reader.initialOffset()

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Log the next batch, if there is one."""
        end = self.reader.latestOffset(self.start, limit or ReadAllAvailable())
        if end != self.start:
            self.logged.append(end)
        return end != self.start

    def run(self) -> list[bytes]:
        """The rows of the batch that was logged last."""
        partitions = self.reader.partitions(self.start, self.logged[-1])
        assert partitions, "Spark asks for one, if only for nothing"
        batches = [batch for one in partitions for batch in self.reader.read(pickle.loads(pickle.dumps(one)))]
        return [data for batch in batches for data in batch.column("data").to_pylist()]

    def commit(self) -> None:
        """The batch is done."""
        self.committed = self.logged[-1]


def test_a_stream_of_what_comes_begins_where_it_was_first_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed before its first batch is done, and while it was down more came: nothing is lost between."""
    system = MemorySystem(logs=2)
    system.append("a", b"before")
    driver = Driver(monkeypatch, system, book="a", start="latest")
    assert driver.plan(), "the place is kept, though there is nothing yet"
    assert driver.run() == []
    system.append("a", b"1")
    driver.restart()
    assert driver.run() == []
    driver.commit()
    assert driver.plan()
    assert driver.run() == [b"1"]
    driver.commit()
    assert not driver.plan()


def test_the_first_batch_of_what_comes_is_the_same_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had records when it was killed: it has them again, though the log has gone on."""
    system = MemorySystem()
    system.append("a", b"before")
    driver = Driver(monkeypatch, system, book="a*", start="latest")
    assert driver.start
    system.append("a", b"1")
    assert driver.plan()
    assert driver.run() == [b"1"]
    system.append("a", b"2")
    system.append("a2", b"3")
    driver.restart()
    assert driver.run() == [b"1"]
    driver.commit()
    assert driver.plan()
    assert sorted(driver.run()) == [b"2", b"3"]


def test_what_is_available_now_ends_there_and_is_asked_of_an_index_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plan has connections of its own: whichever engine answers, it has come as far as the target."""
    system = MemorySystem(logs=2)
    for number in range(6):
        system.append(f"a{number % 2}", b"%d" % number)
    driver = Driver(monkeypatch, system, book="a*")
    driver.reader.prepareForTriggerAvailableNow()
    system.append("a1", b"late")
    found = []
    while driver.plan(ReadMaxRows(2)):
        planning = driver.gateways[-1]
        questions = [operation for operation in planning.asked if isinstance(operation, Read | ListBooks)]
        fresh = [isinstance(question, Read) and question.fresh for question in questions]
        assert True in fresh
        assert not isinstance(questions[fresh.index(True)], ListBooks)
        found += driver.run()
        driver.commit()
    assert sorted(found) == [b"%d" % number for number in range(6)]
    assert all(gateway.is_closed for gateway in driver.gateways)


def test_a_checkpoint_of_another_system_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data was wiped, or the gateway is another one: to wait would be forever."""
    system = MemorySystem()
    system.append("a", *[b"x"] * 10)
    driver = Driver(monkeypatch, system, book="a")
    assert driver.plan()
    other = MemorySystem()
    other.append("a", b"y")
    again = Driver(monkeypatch, other, book="a")
    again.logged = driver.logged
    with pytest.raises(InvalidArgument, match="the checkpoint is ahead of the log"):
        again.run()
    again.commit()
    with pytest.raises(InvalidArgument, match="the checkpoint is ahead of the log"):
        again.plan()


def test_a_checkpoint_is_of_its_books_and_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    """With others the query would pass over what came before, in silence; their order, and where it starts, may change.
    A checkpoint of an earlier version does not say what it is of, and continues.
    """
    system = MemorySystem()
    system.append("a", b"1")
    system.append("b", b"never read")
    driver = Driver(monkeypatch, system, book="a,c")
    system.append("c", b"2")
    assert driver.plan()
    assert sorted(driver.run()) == [b"1", b"2"]
    changes = [{"book": "a,b,c"}, {"book": "a"}, {"book": "*"}, {"book": "a,c", "tag": "t"}]
    for others in changes:
        again = Driver(monkeypatch, system, **others)
        again.logged = driver.logged
        with pytest.raises(
            InvalidArgument, match=f"is of a query that reads a,c, and this one reads {re.escape(others['book'])}"
        ):
            again.reader.partitions(driver.start, driver.logged[-1])
        again.commit()
        with pytest.raises(InvalidArgument, match="a new checkpoint, or the options book and tag as they were"):
            again.plan()
    driver.commit()
    system.append("a", b"3")
    same = Driver(monkeypatch, system, book="c, a", start="1")
    old = {name: value for name, value in driver.logged[-1].items() if name != "reads"}
    for committed in (driver.committed, old):
        same.committed = committed
        assert same.plan()
        assert same.run() == [b"3"]
        assert same.logged[-1]["reads"] == "a,c"
        same.commit()
        assert not same.plan()


def test_very_many_books_are_named_in_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each offset says what a query reads: whatever the number of books, it stays small."""
    system = MemorySystem()
    names = [f"book-{number:04}" for number in range(200)]
    for name in names:
        system.append(name, b"x")
    reads = [
        Driver(monkeypatch, system, book=",".join(some)).start["reads"] for some in (names, names[1:], names[::-1])
    ]
    assert max(map(len, reads)) < 200
    assert reads[0] == reads[2] != reads[1]


def test_a_read_of_nothing_has_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A book that is empty, and a prefix of no book; a book that never was is refused."""
    system = MemorySystem()
    Driver(monkeypatch, system, book="a")
    system.append("a", b"x")
    system.trim("a")
    for book in ("a", "no*"):
        (partition,) = BatchReader(read_options({"book": book}, is_stream=False), SCHEMA).partitions()
        assert pickle.loads(pickle.dumps(partition)).task.segments == ()
    with pytest.raises(NotFound, match="there is no book 'no'"):
        BatchReader(read_options({"book": "a,no"}, is_stream=False), SCHEMA).partitions()
