"""The progress book: what it says is what was noted, in records, reads and space that are bounded."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from uuid import uuid4

import pytest

from boki.errors import ConfigError, Unavailable
from boki.log.limits import DEFAULT_LIMITS
from boki.log.operations import Append, Operation, TrimBook
from boki.spark import progress as progress_module
from boki.spark.claim import Claim, Run
from boki.spark.files import LocalFiles
from boki.spark.ingest import check_known, known_progress
from boki.spark.lake import Lake, Manifest, Origin
from boki.spark.pipeline import Pipeline
from boki.spark.progress import (
    BOOKS_A_PART,
    DONE_TAG,
    LAKES_TAG,
    PARTS_TAG,
    Batch,
    BookProgress,
    Progress,
    is_registered,
    note,
    read_progress,
    register,
)
from tests.spark.memory_gateway import MemoryGateway, MemorySystem, once

BOOK = "ingest:p"


class Killed(BaseException):
    """The process is gone."""


def taken(system: MemorySystem) -> Claim:
    claim = Claim(system.gateway(), BOOK, "p", Run.new())
    claim.take()
    return claim


def read(system: MemorySystem) -> Progress:
    return read_progress(system.gateway(), BOOK, "p")


def batch(number: int, query: str = "q") -> Batch:
    return Batch.of(query, number, f'{{"below": "{number}"}}')


def had(seqnum: int, records: int = 1, dead: int = 0) -> BookProgress:
    return BookProgress(records=records, dead=dead, last_seqnum=seqnum, last_time_us=seqnum * 1000)


def added(books: dict[str, BookProgress], more: dict[str, BookProgress]) -> dict[str, BookProgress]:
    return books | {name: books.get(name, BookProgress()).plus(book) for name, book in more.items()}


def test_what_is_read_is_what_was_noted() -> None:
    """Batch after batch of some of many books, a reader finds the sum of all, by whichever run they were noted; with as
    many records kept and read as the books fill, about, and each of them small.
    """
    draw = random.Random(5)
    system = MemorySystem()
    names = [f"book-{number}" for number in range(1_000)]
    wanted: dict[str, BookProgress] = {}
    claim, so_far = taken(system), Progress()
    most_parts = -(-len(names) // BOOKS_A_PART)
    for number in range(120):
        if draw.random() < 0.1:
            claim.end(claim.gateway)
            claim, so_far = taken(system), read(system)
        some = draw.sample(names, draw.choice((1, 3, 250, 1000)))
        books = {name: had(number * 10 + 1, draw.randrange(5), draw.randrange(2)) for name in some}
        wanted = added(wanted, books)
        so_far = note(claim, so_far, batch(number), books)
        found = read(system)
        assert found == so_far
        assert found.books == wanted
        assert found.has(batch(number)) and found.number("q") == number and found.number("other") == -1
        assert found.parts <= 3 * most_parts
        kept = system.records(BOOK, PARTS_TAG + "p")
        assert len(kept) <= 6 * most_parts + 2, "two generations at most"
        assert max(len(record.data) for record in kept) < DEFAULT_LIMITS.record_bytes // 8
    assert len(system.records(BOOK, DONE_TAG + "p")) == 120


def test_very_many_books_in_one_batch() -> None:
    """Fifty thousand books of the longest names are noted, where one record could not hold them."""
    system = MemorySystem()
    books = {f"{number:06d}".rjust(128, "x"): had(1 << 62) for number in range(50_000)}
    note(taken(system), Progress(), batch(0), books)
    assert read(system).books == books
    assert max(len(record.data) for record in system.records(BOOK)) < DEFAULT_LIMITS.record_bytes


def test_killed_between_any_two_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed in the midst of a note, and notes the batch again in its next life, counts it once."""
    monkeypatch.setattr(progress_module, "BOOKS_A_PART", 2)
    monkeypatch.setattr(progress_module, "_PARTS_AN_APPEND", 2)
    names = [f"book-{number}" for number in range(9)]
    batches = [{name: had(number + 1, 2, 1) for name in names[number % 3 :]} for number in range(6)]
    for steps in itertools.count():
        system = MemorySystem()
        claim = taken(system)
        left = [steps]

        def mortal(_operation: Operation, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        gateway = claim.gateway
        assert isinstance(gateway, MemoryGateway)
        gateway.before.append(mortal)
        wanted: dict[str, BookProgress] = {}
        is_killed = False
        so_far = Progress()
        for number, books in enumerate(batches):
            try:
                so_far = note(claim, so_far, batch(number), books)
            except Killed:
                is_killed = True
                claim = Claim(system.gateway(), BOOK, "p", Run.new())
                claim.take()
                so_far = read(system)
                assert so_far.books in (wanted, added(wanted, books)), "what is half noted is not told of"
                if not so_far.has(batch(number)):
                    so_far = note(claim, so_far, batch(number), books)
            wanted = added(wanted, books)
            assert read(system).books == so_far.books == wanted, (steps, number)
        if not is_killed:
            assert steps > 20
            return


def test_a_new_query_begins_at_nothing() -> None:
    """Who begins again, with a new checkpoint and an empty lake, counts again; what an older query has left half noted
    does not count.
    """
    system = MemorySystem()
    claim = taken(system)
    so_far = note(claim, Progress(), batch(0), {"a": had(5, 100), "b": had(6, 100)})
    gateway = claim.gateway
    assert isinstance(gateway, MemoryGateway)
    half = [(b'{"query":"q","books":{"c":{"records":7}}}', (PARTS_TAG + "p",))]
    claim.append(half, "half")
    so_far = note(claim, so_far, batch(0, "new"), {"a": had(3, 3)})
    assert so_far.books == read(system).books == {"a": had(3, 3)}
    assert read(system).done == so_far.done


def test_two_lakes_of_one_name(tmp_path: Path) -> None:
    """A pipeline whose output was changed, and changed back, continues with what the batches of its lake hold; a
    progress book that has lost all notes of them is refused.
    """
    pipeline = Pipeline(name="p", book="a,b", schema="n int", output=str(tmp_path))
    lake = Lake(LocalFiles(), str(tmp_path), "r")
    origin = Origin(pipeline="p", book="a,b", tag="", start="earliest")
    system = MemorySystem()
    claim, so_far = taken(system), Progress()
    for number in range(3):
        books = {"a": had(number + 1, 5, 1), f"b{number}": had(number + 1)}
        lake.place(
            Manifest(origin=origin, batch=batch(number), books=books), records=None, dead=None, check=claim.check
        )
        if number == 2:
            with pytest.raises(ConfigError, match=r"book 'ingest:p' at .* does not know the lake"):
                known_progress(lake, taken(MemorySystem()), pipeline)
            assert known_progress(lake, claim, pipeline) == so_far, "the last one need not be noted"
        so_far = note(claim, so_far, batch(number), books)
    assert known_progress(lake, claim, pipeline) == so_far
    wanted = so_far.books
    claim.end(claim.gateway)
    claim = taken(system)
    note(claim, so_far, batch(0, "other"), {"c": had(7)})
    assert read(system).books == {"c": had(7)}
    again = known_progress(lake, claim, pipeline)
    assert again.books == read(system).books == wanted
    assert again.has(batch(2)), "which need not be written again"
    more = note(claim, again, batch(3), {"a": had(9)})
    assert read(system).books == more.books == wanted | {"a": wanted["a"].plus(had(9))}


def begun(root: Path, claim: Claim) -> None:
    """What a run does before Spark starts."""
    lake = Lake(LocalFiles(), str(root), uuid4().hex)
    lake_id = lake.begin(Origin(pipeline="p", book="a", tag="", start="earliest"))
    check_known(lake, lake_id, claim, Pipeline(name="p", book="a", schema="n int", output=str(root)))


def test_a_lake_of_another_system(tmp_path: Path) -> None:
    """With a checkpoint it is refused, however few batches it has, and though that system has a pipeline of the same
    name with a lake of its own: also after a trim of the progress book, and by whichever run.
    """
    here, there = MemorySystem(), MemorySystem()
    claim = taken(here)
    for name in ("one", "two"):
        begun(tmp_path / name, claim)
        begun(tmp_path / name, claim)  # the first was killed before Spark had begun
    begun(tmp_path / "other", taken(there))
    assert len(here.records(BOOK, LAKES_TAG + "p")) == 2
    checkpoint = tmp_path / "one" / "_checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id":"q"}')
    here.trim(BOOK)
    begun(tmp_path / "one", taken(here))
    with pytest.raises(ConfigError, match=r"_checkpoint is not of this system, or not of this progress book: .*'inge"):
        begun(tmp_path / "one", taken(there))
    assert len(there.records(BOOK, LAKES_TAG + "p")) == 1
    here.delete(BOOK)
    with pytest.raises(ConfigError, match=r"does not know the lake in .*begin again with another output"):
        begun(tmp_path / "one", taken(here))


def test_very_many_lakes_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them is known still, wherever pages end."""
    monkeypatch.setattr(progress_module, "_PAGE", 3)
    claim = taken(MemorySystem())
    for number in range(8):
        register(claim, f"lake {number}")
    assert [is_registered(claim, f"lake {number}") for number in (0, 4, 7, 8)] == [True, True, True, False]


def test_a_batch_that_was_never_noted_counts_with_its_lake(tmp_path: Path) -> None:
    """The first batch of a lake is in its place, and another lake is begun before it is noted: it is not forgotten."""
    pipeline = Pipeline(name="p", book="a", schema="n int", output=str(tmp_path))
    lake = Lake(LocalFiles(), str(tmp_path), "r")
    system = MemorySystem()
    claim = taken(system)
    origin = Origin(pipeline="p", book="a", tag="", start="earliest")
    lake.place(
        Manifest(origin=origin, batch=batch(0), books={"a": had(5, 5)}), records=None, dead=None, check=claim.check
    )
    assert known_progress(lake, claim, pipeline) == Progress(), "it is noted when it comes again"
    note(claim, Progress(), batch(0, "other"), {"a": had(1)})
    again = known_progress(lake, claim, pipeline)
    assert again.has(batch(0))
    assert again.books == read(system).books == {"a": had(5, 5)}


def test_a_reader_between_two_trims() -> None:
    """Who knows which parts count, and finds them trimmed when it reads them, looks again instead of telling less."""
    system = MemorySystem()
    claim = taken(system)
    so_far = note(claim, Progress(), batch(0), {"a": had(1)})

    def others() -> None:
        nonlocal so_far
        for number in range(1, 8):
            so_far = note(claim, so_far, batch(number), {"a": had(number), f"b{number}": had(number)})

    gateway = system.gateway()
    gateway.before.append(once(others, lambda operation: getattr(operation, "tag", None) == PARTS_TAG + "p"))
    assert read_progress(gateway, BOOK, "p") == so_far
    assert system.records(BOOK, PARTS_TAG + "p")[0].seqnum > 1, "there were trims meanwhile"


def test_batches_that_are_long_done_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The book keeps its last batches, not all of them."""
    monkeypatch.setattr(progress_module, "KEPT", 10)
    system = MemorySystem()
    claim, so_far = taken(system), Progress()
    for number in range(95):
        so_far = note(claim, so_far, batch(number), {"a": had(number + 1)})
        assert len(system.records(BOOK, DONE_TAG + "p")) <= 20
    assert read(system).books["a"].records == 95
    assert len(system.records(BOOK)) <= 30


def test_a_run_that_was_replaced_notes_nothing() -> None:
    """Two runs of one pipeline: what the one that was taken over from notes is refused, and counts nowhere."""
    system = MemorySystem()
    one = taken(system)
    so_far = note(one, Progress(), batch(0), {"a": had(1)})
    other = taken(system)
    with pytest.raises(Unavailable, match="was taken over by process"):
        note(one, so_far, batch(1), {"a": had(2)})
    assert read(system) == so_far
    note(other, so_far, batch(1), {"a": had(2)})
    assert read(system).books["a"].records == 2


def test_a_note_is_trimmed_behind_what_counts() -> None:
    """What a note trims lies before what the batch before it has named: never what a reader needs."""
    system = MemorySystem()
    claim, so_far = taken(system), Progress()
    for number in range(20):
        before = so_far
        so_far = note(claim, so_far, batch(number), {"a": had(number + 1), f"b{number}": had(number + 1)})
        gateway = claim.gateway
        assert isinstance(gateway, MemoryGateway)
        trims = [o for o in gateway.asked if isinstance(o, TrimBook) and o.tag == PARTS_TAG + "p"]
        assert all(trim.before <= (before.done.since if before.done else 0) + 1 for trim in trims)
        assert any(isinstance(operation, Append) for operation in gateway.asked)
