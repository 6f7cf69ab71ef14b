"""The planner over a system in memory: what lies between two offsets is up to them alone, and no gap is passed over."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest

from boki.api.log_calls import records_of
from boki.errors import InvalidArgument, Trimmed, Unavailable
from boki.log.ids import make_seqnum
from boki.log.limits import Limits
from boki.log.operations import ListBooks, Operation, Read
from boki.spark import gaps
from boki.spark.offsets import Offset
from boki.spark.options import read_options
from boki.spark.planning import Planner
from boki.spark.ranges import Task
from boki.spark.reading import _pages
from tests.spark.memory_gateway import MemoryGateway, MemorySystem, once

Rows = list[tuple[str, int]]


@pytest.fixture(autouse=True)
def _warn_anew() -> Iterator[None]:
    """Each gap is told once in a process; here, once in a test."""
    gaps._warn.cache_clear()
    yield


class Stream:
    """What Spark does with a stream: a batch is logged before it is run, and may be run again."""

    def __init__(self, system: MemorySystem, **options: str) -> None:
        self.system = system
        self.options = read_options(options, is_stream=True)
        self.at = Offset()
        self.batches: list[tuple[Offset, Offset]] = []

    def planner(self) -> Planner:
        return Planner(self.options, self.system.gateway())

    def plan(self, limit: int | None = None) -> bool:
        """The next batch, if there is one. Its offsets go through a checkpoint."""
        planner = self.planner()
        end = planner.step(self.at, planner.tail(), limit)
        if end == self.at:
            return False
        end = Offset.from_json(end.to_json())
        self.batches.append((self.at, end))
        self.at = end
        return True

    def run(self, number: int = -1) -> Rows:
        """Run a batch, from its offsets alone; whoever reads it finds each record once."""
        start, end = self.batches[number]
        planner = self.planner()
        planner.tail()
        return read(self.system.gateway(), planner.tasks(start, end), **self.given)

    @property
    def given(self) -> dict[str, str]:
        tag = {"tag": self.options.tag} if self.options.tag else {}
        return {"onTrimmed": self.options.on_trimmed} | tag


def read(gateway: MemoryGateway, tasks: list[Task], **options: str) -> Rows:
    """The rows of tasks, read as executors read them."""
    given = read_options({"book": "*"} | options, is_stream=True)
    found: Rows = []
    for task in tasks:
        for segment in task.segments:
            for page in _pages(gateway, segment, given):
                found += [(segment.book, record.seqnum) for record in records_of(page)]
    assert len(found) == len(set(found)), "a record is read once"
    return sorted(found)


def batch(system: MemorySystem, **options: str) -> Rows:
    """A batch read, planned and read."""
    planner = Planner(read_options(options, is_stream=False), system.gateway())
    tail = planner.tail()
    rest = {name: value for name, value in options.items() if name in {"tag", "onTrimmed"}}
    return read(system.gateway(), planner.tasks(Offset(), tail), **rest)


def rows(book: str, *seqnums: int) -> Rows:
    return [(book, seqnum) for seqnum in seqnums]


# a batch that is run again


def test_a_batch_of_a_prefix_has_the_same_books_when_it_is_run_again() -> None:
    """Books that come after it was planned, in this term or in a later one, are of later batches."""
    system = MemorySystem(logs=2)
    stream = Stream(system, book="a*")
    first = rows("a1", *system.append("a1", b"1", b"2"))
    assert stream.plan()
    assert stream.run() == first
    later = rows("a2", *system.append("a2", b"3")) + rows("a1", *system.append("a1", b"4"))
    system.new_term(3)
    later += rows("a3", *system.append("a3", b"5"))
    assert stream.run() == first
    assert stream.plan()
    assert stream.run() == sorted(later)
    assert not stream.plan()


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("how", ["trim", "delete", "retention"])
def test_a_book_of_a_prefix_that_is_gone_when_the_batch_is_run_again_is_missed(how: str, is_first: bool) -> None:
    """It is in no list any more: the offset knows it. With other rows than before, the batch is not run."""
    system = MemorySystem()
    stream = Stream(system, book="a*")
    if not is_first:
        system.append("a1", b"0")
        assert stream.plan()
    gone = system.append("a1", b"1", b"2")
    system.append("a2", b"3")
    assert stream.plan()
    expected = stream.run()
    assert ("a1", gone[0]) in expected
    match how:
        case "trim":
            system.trim("a1")
        case "delete":
            system.delete("a1")
        case _:
            system.trim("a1", gone[1] + 1)
    with pytest.raises(Trimmed, match=rf"book 'a1': records with {gone[0]} <= seqnum < \d+ were trimmed"):
        stream.run()


@pytest.mark.parametrize("book", ["a1", "a1,a2", "a*"])
def test_the_first_batch_is_run_again_with_what_it_had_or_not_at_all(book: str) -> None:
    """What was trimmed before the query is nothing to it; what is trimmed between two runs of a batch is a gap."""
    system = MemorySystem()
    seqnums = system.append("a1", *[b"x"] * 10)
    other = system.append("a2", b"y")
    system.trim("a1", seqnums[3])
    stream = Stream(system, book=book)
    assert stream.plan()
    expected = rows("a1", *seqnums[3:]) + (rows("a2", *other) if book != "a1" else [])
    assert stream.run() == expected
    system.trim("a1", seqnums[3])  # once more, for nothing
    assert stream.run() == expected
    system.trim("a1", seqnums[5])
    with pytest.raises(Trimmed, match=f"records with {seqnums[3]} <= seqnum < {seqnums[5]} were trimmed"):
        stream.run()


@pytest.mark.parametrize("seed", range(40))
def test_batches_cover_all_records_once_and_never_change(seed: int) -> None:
    """Appends, new books, new terms and steps of any size: every batch has the same rows whenever it is run, no more
    than the limit, and together they have all records of the books that are meant.
    """
    draw = random.Random(seed)
    system = MemorySystem(logs=draw.randint(1, 3))
    meant = draw.choice(["b*", "b0,b1,b2", "b1", "*"])
    limit = draw.choice([None, 1, 3, 10])
    stream = Stream(system, book=meant)
    seen: list[Rows] = []
    for _ in range(30):
        action = draw.random()
        if action < 0.5:
            system.append(draw.choice(["b0", "b1", "b2", "b3", "c"]), *[b"x"] * draw.randint(1, 5))
        elif action < 0.6:
            system.new_term(draw.randint(1, 3))
        elif action < 0.8 and stream.plan(limit):
            seen.append(stream.run())
        elif seen:
            number = draw.randrange(len(seen))
            assert stream.run(number) == seen[number]
    while stream.plan(limit):
        seen.append(stream.run())
    assert [stream.run(number) for number in range(len(seen))] == seen
    assert all(seen)
    assert limit is None or max(map(len, seen), default=0) <= limit
    names = [name for name in ("b0", "b1", "b2", "b3", "c") if stream.options.books.takes(name)]
    everything = [(name, record.seqnum) for name in names for record in system.records(name)]
    assert sorted(row for rows in seen for row in rows) == sorted(everything)


@pytest.mark.parametrize("count", [10, 300])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_a_batch_that_comes_again_is_shared_out_as_before(count: int, is_first: bool, seed: int) -> None:
    """Whatever its books, and others, get meanwhile: a sink knows its rows by their partition."""
    rng = random.Random(seed)
    system = MemorySystem()
    stream = Stream(system, book="a*", partitions="4")
    for name in (names := [f"a{number:03}" for number in range(count)]):
        system.append(name, *[b"first"] * rng.randint(1, 20))
    assert stream.plan()
    if not is_first:
        for name in rng.sample(names, 3):
            system.append(name, *[b"news"] * rng.randint(1, 50))
        assert stream.plan()
    start, end = stream.batches[-1]

    def shares() -> list[list[tuple[str, int, int]]]:
        tasks = stream.planner().tasks(start, end)
        return [[(segment.book, segment.start, segment.stop) for segment in task.segments] for task in tasks]

    before = shares()
    for name in [*rng.sample(names, count // 2), "a-new"]:
        system.append(name, *[b"later"] * rng.randint(1, 400))
    assert shares() == before


def test_steps_through_what_was_trimmed_before_the_query_are_no_gap() -> None:
    """A book whose beginning is gone stands beside another one that is read from its beginning, in small steps."""
    system = MemorySystem()
    whole, cut = [], []
    for _ in range(20):
        whole += system.append("whole", b"x")
        cut += system.append("cut", b"y")
    system.trim("cut", cut[15])
    for book in ("cut,whole", "*"):
        stream = Stream(system, book=book)
        found: Rows = []
        while stream.plan(4):
            found += stream.run()
        assert sorted(found) == rows("cut", *cut[15:]) + rows("whole", *whole)


def test_whatever_is_asked_after_the_tail_sees_all_below_it() -> None:
    """The list of books is asked for with the positions of the tail: an index that is behind waits for them."""
    system = MemorySystem(logs=3)
    system.append("a", b"1")
    gateway = system.gateway()
    planner = Planner(read_options({"book": "*"}, is_stream=True), gateway)
    tail = planner.tail()
    positions = dict(gateway.positions)
    assert set(positions) == {0, 1, 2}
    asked_with: list[dict[int, int]] = []
    gateway.before.append(lambda operation: asked_with.append(dict(gateway.positions)))
    planner.step(Offset(), tail, None)
    assert isinstance(gateway.asked[-2], ListBooks)
    assert all(seen[log] >= position for seen in asked_with for log, position in positions.items())


# gaps


def test_records_that_were_trimmed_before_a_stream_came_to_them() -> None:
    """Nothing is left of them, and nothing new comes: it is told all the same, at the next look."""
    for book in ("a", "a*"):
        system = MemorySystem()
        stream = Stream(system, book=book)
        seqnums = system.append("a", b"1")
        assert stream.plan()
        lost = system.append("a", b"2", b"3")
        system.trim("a", lost[-1] + 1)
        with pytest.raises(Trimmed, match=f"records with {seqnums[-1] + 1} <= seqnum < {lost[-1] + 1} were trimmed"):
            stream.plan()


def test_a_trim_of_what_was_read_is_no_gap() -> None:
    """Retention and trims to the last record that was read take nothing from a stream."""
    for book in ("a", "a*"):
        system = MemorySystem()
        stream = Stream(system, book=book)
        seqnums = system.append("a", b"1", b"2")
        assert stream.plan()
        system.append("b", b"x")
        system.trim("a", seqnums[-1] + 1)
        assert not stream.plan()
        more = system.append("a", b"3")
        assert stream.plan()
        assert stream.run() == rows("a", *more)


@pytest.mark.parametrize("tag", ["", "t"])
@pytest.mark.parametrize("size", [10, 100])
def test_a_gap_is_named_or_skipped_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: int, tag: str
) -> None:
    """Of small batches, which are not probed, and of large ones; of a book and of a tag."""
    monkeypatch.setattr("boki.spark.planning.RECORDS_A_TASK", 50)
    system = MemorySystem()
    given = {"tag": tag} if tag else {}
    failing = Stream(system, book="a", **given)
    skipping = Stream(system, book="a", onTrimmed="skip", **given)
    system.append("a", b"1", tags=["t"])
    assert failing.plan()
    assert skipping.plan()
    lost = system.append("a", b"2", b"3", tags=["t"])
    system.append("other", *[b"x"] * size)
    kept = system.append("a", b"4", tags=["t"])
    system.trim("a", kept[0], tag or None)
    gap = rf"book 'a': records with {lost[0]} <= seqnum < {kept[0]} were trimmed"
    with pytest.raises(Trimmed, match=gap):
        failing.plan()
    failing.batches.append((failing.at, skipping.planner().tail()))  # and the tasks of a batch that was planned before
    with pytest.raises(Trimmed, match=gap):
        failing.run()
    with caplog.at_level(logging.WARNING, "boki.spark"):
        assert skipping.plan()
        assert skipping.run() == rows("a", *kept)
    assert gap.split(":")[1][:30] in caplog.text
    assert "are skipped" in caplog.text


def test_a_gap_in_one_of_very_many_books_is_found() -> None:
    """Books that are too many to be asked for one by one look for themselves, and those that are gone are missed."""
    system = MemorySystem()
    names = [f"m{number:03}" for number in range(300)]
    stream = Stream(system, book="m*")
    for name in names:
        system.append(name, b"x")
    assert stream.plan()
    assert len(stream.run()) == 300
    seqnums = {name: system.append(name, b"1", b"2") for name in names}
    assert stream.plan()
    assert len(stream.run()) == 600
    system.trim("m007", seqnums["m007"][1])
    with pytest.raises(Trimmed, match="book 'm007'"):
        stream.run()


def test_a_batch_read_never_fails_for_what_was_trimmed_before_it() -> None:
    """Whatever was trimmed, of books or tags, few books or many, in whichever term."""
    system = MemorySystem(logs=2)
    old = system.append("a", *[b"x"] * 5, tags=["t"])
    system.new_term(3)
    new = system.append("a", *[b"y"] * 5, tags=["t"])
    system.append("b", b"z", tags=["t"])
    system.trim("a", new[2])
    system.trim("a", new[3], "t")
    system.trim("b")
    assert old
    assert batch(system, book="a") == rows("a", *new[3:])
    assert batch(system, book="a,b", tag="t") == rows("a", *new[3:])
    assert batch(system, book="*") == rows("a", *new[3:])
    for number in range(300):
        name = f"m{number}"
        system.append(name, b"1", b"2", tags=["t", "u"])
        system.trim(name, system.append(name, b"3", tags=["t"])[0], "t" if number % 2 else None)
    assert len(batch(system, book="m*")) == 600
    assert len(batch(system, book="m*", tag="t")) == 300


def test_a_read_that_says_where_it_starts_is_told_what_is_gone_from_there() -> None:
    """Batch or stream: `start` is a claim to what lies behind it, unless the gap is skipped. A time is none."""
    system = MemorySystem()
    seqnums = system.append("a", *[b"x"] * 9)
    system.trim("a", seqnums[5])
    gap = f"records with {seqnums[2]} <= seqnum < {seqnums[5]} were trimmed"
    with pytest.raises(Trimmed, match=gap):
        batch(system, book="a", start=str(seqnums[2]))
    with pytest.raises(Trimmed, match=gap):
        Stream(system, book="a", start=str(seqnums[2])).plan()
    assert batch(system, book="a", start=str(seqnums[2]), onTrimmed="skip") == rows("a", *seqnums[5:])
    assert batch(system, book="a", start=str(seqnums[6])) == rows("a", *seqnums[6:])
    assert batch(system, book="a", start="2001-01-01") == rows("a", *seqnums[5:])


@pytest.mark.parametrize("left", [2, 0])
@pytest.mark.parametrize("number", range(1, 6))
def test_trims_while_a_batch_read_is_planned_are_not_passed_over(
    caplog: pytest.LogCaptureFixture, number: int, left: int
) -> None:
    """Before any question of the planner, or after all: the read fails, or says what it skips. Before the first
    question nothing was promised.
    """
    for on_trimmed in ("fail", "skip"):
        system = MemorySystem()
        system.append("a", *[b"x"] * 3)
        system.new_term(1)
        seqnums = system.append("a", *[b"y"] * 3)
        before = seqnums[-1] + 1 - left
        gateway = system.gateway()
        planner = Planner(read_options({"book": "a", "onTrimmed": on_trimmed}, is_stream=False), gateway)
        tail = planner.tail()
        trim = once(lambda: system.trim("a", before), lambda _: len(gateway.asked) == asked + number)  # noqa: B023
        asked = len(gateway.asked)
        gateway.before.append(trim)
        caplog.clear()
        if on_trimmed == "fail" and number > 1:
            with pytest.raises(Trimmed, match="book 'a'"):
                read(gateway, planner.tasks(Offset(), tail))
        else:
            found = read(gateway, planner.tasks(Offset(), tail), onTrimmed=on_trimmed)
            assert found == rows("a", *seqnums[len(seqnums) - left :])
            assert (f"seqnum < {before} were trimmed" in caplog.text) == (number > 1)


@pytest.mark.parametrize(("before", "fails"), [(5, False), (20, False), (25, True)])
def test_trims_while_a_task_reads_are_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, before: int, fails: bool
) -> None:
    """Between two pages, of what is read or of what is not."""
    monkeypatch.setattr("boki.spark.reading._PAGE_RECORDS", 10)
    system = MemorySystem()
    seqnums = system.append("a", *[b"x"] * 40)
    gateway = system.gateway()
    planner = Planner(read_options({"book": "a"}, is_stream=False), gateway)
    tasks = planner.tasks(Offset(), planner.tail())

    def is_third_page(operation: Operation) -> bool:
        return isinstance(operation, Read) and operation.start == seqnums[20]

    gateway.before.append(once(lambda: system.trim("a", seqnums[before]), is_third_page))
    if fails:
        with pytest.raises(Trimmed, match=f"{seqnums[20]} <= seqnum < {seqnums[25]}"):
            read(gateway, tasks)
    else:
        assert read(gateway, tasks) == rows("a", *seqnums)


# which books


@pytest.mark.parametrize(
    ("book", "expected"),
    [
        ("*", {"a", "ab", "spar"}),
        ("s*", {"spar"}),
        ("spark:*", {"spark:sinks"}),
        ("i*", set()),
        ("ingest:fl*", {"ingest:flights"}),
        ("boki:c*", {"boki:calls"}),
        ("spark:sinks,a", {"a", "spark:sinks"}),
        ("a,a,ab", {"a", "ab"}),
    ],
)
def test_a_prefix_does_not_take_what_the_system_writes_itself(book: str, expected: set[str]) -> None:
    """A stream over all books would else feed itself: its sinks, and the progress of its pipeline."""
    system = MemorySystem()
    for name in ("a", "ab", "spar", "spark:sinks", "ingest:flights", "boki:calls"):
        system.append(name, b"x", is_runtime=True)
    assert {name for name, _ in batch(system, book=book)} == expected
    stream = Stream(system, book=book)
    stream.plan()
    assert stream.run() == batch(system, book=book) if expected else not stream.batches


# the checkpoint, and the log's shape


def test_a_checkpoint_of_another_system_is_refused() -> None:
    """Its offsets lie ahead of this log's end: it would wait forever, or read from the midst."""
    system = MemorySystem(logs=2)
    planner = Planner(read_options({"book": "a"}, is_stream=True), system.gateway())
    tail = planner.tail()
    for offset in (tail, Offset(), Offset(below=make_seqnum(0, 1, 5))):
        planner.check_reached(offset, tail)
    for offset in (
        Offset((tail.logs[0] + 1, tail.logs[1])),
        Offset(tail.logs[:1]),
        Offset((make_seqnum(2, 0, 0),)),
        Offset(below=make_seqnum(1, 0, 1)),
    ):
        with pytest.raises(InvalidArgument, match="the checkpoint is ahead of the log"):
            planner.check_reached(offset, tail)


def test_a_log_that_changes_its_shape_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a deadline, whatever the number of tries."""
    monkeypatch.setattr("boki.spark.gateway._RETRY_S", 0.25)
    system = MemorySystem(logs=2)
    gateway = system.gateway()
    gateway.before.append(lambda _: system.new_term(2))
    planner = Planner(read_options({"book": "a"}, is_stream=True), gateway)
    with pytest.raises(Unavailable, match="changes its shape"):
        planner.tail()


def test_old_checkpoints_are_read_and_bad_ones_refused() -> None:
    """Offsets without books are those of earlier versions; what is kept with them goes through JSON unchanged."""
    full = Offset((5, 7), books=(("a", 3), ("b", 0)), origin=(1, 2), reads="a,b, tag t")
    assert Offset.from_json(full.to_json()) == full
    assert Offset.from_json({"below": "7"}) == Offset(below=7)
    assert Offset.from_json({"logs": {"0": "3"}}) == Offset((3,))
    for bad in (
        {"logs": {"0": "3"}, "books": ["a"]},
        {"logs": {"0": "3"}, "books": {"a": "x"}},
        {"logs": {"0": "3"}, "origin": {"1": "3"}},
        {"logs": {"0": "3"}, "more": 1},
        {"below": "-1"},
    ):
        with pytest.raises(InvalidArgument, match="the checkpoint holds no offset"):
            Offset.from_json(bad)


def test_pages_are_as_small_as_the_system_wants_them() -> None:
    """A system may be set to smaller pages than usual: it says so once, and all is read all the same."""
    system = MemorySystem(limits=Limits(page_records=7))
    seqnums = system.append("a", *[b"x"] * 20)
    gateway = system.gateway()
    planner = Planner(read_options({"book": "a"}, is_stream=False), gateway)
    assert read(gateway, planner.tasks(Offset(), planner.tail())) == rows("a", *seqnums)
    limits = [operation.limit for operation in gateway.asked if isinstance(operation, Read) and operation.limit > 1]
    assert limits == [10_000, 7, 7, 7]
