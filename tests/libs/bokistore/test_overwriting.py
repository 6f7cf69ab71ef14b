"""Whole objects that are put without a read: what they are, what is known of them, and what is in the list of names."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import boki.testing
from boki import ConditionFailed, TooLarge
from boki.libs.bokiflow.asking import WriteWork
from boki.libs.bokistore import Store, saving
from boki.libs.bokistore.json_values import MISSING
from boki.libs.bokistore.listing import entry_of
from boki.libs.bokistore.overwriting import Overwrite, overwrite
from boki.libs.bokistore.queries import WHOLE
from boki.libs.bokistore.reading import SAVE_AFTER
from boki.libs.bokistore.records import ORIGIN, UNKNOWN_AUTHOR, checkpoints_tag, row_tag
from boki.libs.bokistore.updates import Delete, Increment, Set
from boki.libs.bokistore.views import OWN_STREAK
from boki.libs.bokistore.way import Way
from boki.libs.fold.outbox import Outbox
from boki.libs.fold.steps import Compare, Step, Steps, drive
from tests.libs.bokistore.interleaving import Process, logbook, new_nonce


def prepared(process: Process, value: bytes, *, nonce: bytes = b"") -> tuple[Overwrite, list[Step]]:
    """The write of object x, and what was asked of the log for it."""
    asked: list[Step] = []

    def carry_out(step: Step) -> Any:
        asked.append(step)
        return process.run(_alone(step))

    steps = overwrite(process.reader, "x", Set((), value), UNKNOWN_AUTHOR, lambda: nonce or new_nonce())
    write = drive(steps, carry_out)
    assert write is not None
    return write, asked


def _alone(step: Step) -> Steps[Any]:
    return (yield step)


def append(process: Process, write: Overwrite) -> list[int]:
    """Its seqnums; `ConditionFailed`"""
    outbox = Outbox(process.book)  # type: ignore[arg-type]
    write.hand_over(outbox)
    seqnums = process.book.append_many(outbox.records, when=tuple(outbox.conditions))
    outbox.committed(seqnums)
    return seqnums


def put(process: Process, value: bytes) -> None:
    """As a workflow does it: again without a guess, if that was refused."""
    try:
        append(process, prepared(process, value)[0])
    except ConditionFailed:
        append(process, prepared(process, value)[0])


def follow(process: Process) -> int:
    """Do what is left to be done in the background; of how many writes."""
    work, process.reader.follow_ups = process.reader.follow_ups, []
    for _, steps in work:
        process.run(steps)
    return len(work)


def value_of(process: Process) -> Any:
    return process.run(process.direct.look("x", WHOLE))


def is_listed(process: Process) -> bool:
    partition, key = entry_of("x") or ("", "")
    names = Process(process.book)
    found = names.run(names.direct.look(partition, WHOLE))
    return found is not MISSING and key in found


def conditions(write: Overwrite, process: Process) -> list[str]:
    outbox = Outbox(process.book)  # type: ignore[arg-type]
    write.hand_over(outbox)
    return [condition.tag for condition in outbox.conditions]


def test_an_object_that_is_not_known_is_put_without_a_read() -> None:
    """But for the question whether the book is a fork, which a process asks once; then it knows the object."""
    process = Process(logbook())
    write, asked = prepared(process, b"1")
    assert asked == [Compare([(ORIGIN, 0)], "book")]
    [seqnum] = append(process, write)
    row = process.rows.find("x")
    assert row is not None
    assert (row.newest.value, row.newest.version, row.newest.is_listed, row.known_to) == (1, seqnum, True, seqnum + 1)
    assert follow(process) == 0
    assert value_of(process) == value_of(Process(process.book)) == 1
    assert is_listed(process)
    process.rows.drop("x")
    write, asked = prepared(process, b"2")
    assert asked == []
    append(process, write)
    assert value_of(process) == value_of(Process(process.book)) == 2


def test_what_an_object_was_before_is_read_from_the_log() -> None:
    """A process that has put it without a read does not take it for what was always there."""
    book = logbook()
    process, other = Process(book), Process(book)
    early = book.append(b"")
    other.run(other.direct.change("x", Set((), b"1")))
    middle = book.append(b"")
    put(process, b"2")
    assert process.run(process.reader.view_at("x", early)).value is MISSING
    assert process.run(process.reader.view_at("x", middle)).value == 1
    put(process, b"3")
    assert process.run(process.reader.view_at("x", middle)).value == 1
    assert value_of(process) == 3


def test_the_last_one_in_the_order_of_the_log_counts() -> None:
    """No write is refused, however many are under way at once, in one process and in several."""
    book = logbook()
    processes = [Process(book) for _ in range(3)]
    for _ in range(3):
        writes = [(process, prepared(process, b"%d" % n)[0]) for n in range(4) for process in processes]
        for process, write in writes:
            append(process, write)
        for process in processes:
            follow(process)
            assert value_of(process) == 3
    assert len(book.read(row_tag("x")).records) == 36


def test_an_object_of_this_process_alone_is_guessed() -> None:
    """Then nothing is left to be read; who guesses wrong is refused once, and then writes without a condition."""
    book = logbook()
    process, other = Process(book), Process(book)
    for number in range(OWN_STREAK + 1):
        put(process, b"%d" % number)
        assert follow(process) == (number > 0)
    write, asked = prepared(process, b"10")
    assert asked == []
    assert conditions(prepared(process, b"0")[0], process) == [row_tag("x")]
    process.rows.find("x").unsure_to = 0  # type: ignore[union-attr] - that one was only looked at
    append(process, write)
    assert follow(process) == 0
    assert value_of(process) == 10
    put(other, b"11")
    guess, _ = prepared(process, b"12")
    with pytest.raises(ConditionFailed):
        append(process, guess)
    again, asked = prepared(process, b"12")
    assert (asked, conditions(again, process)) == ([], [])
    append(process, again)
    assert value_of(other) == value_of(process) == 12


def test_two_writes_of_one_process_at_once_guess_once() -> None:
    """The second one would be refused: it has no condition, and what it has done is read afterwards."""
    process = Process(logbook())
    for number in range(OWN_STREAK + 1):
        put(process, b"%d" % number)
        follow(process)
    one, _ = prepared(process, b"1")
    outbox = Outbox(process.book)  # type: ignore[arg-type]
    one.hand_over(outbox)
    assert len(outbox.conditions) == 1
    two, _ = prepared(process, b"2")
    append(process, two)
    with pytest.raises(ConditionFailed):
        process.book.append_many(outbox.records, when=tuple(outbox.conditions))
    assert follow(process) == 1
    assert value_of(process) == 2


def test_what_was_put_and_not_read_yet_is_no_base_of_a_guess() -> None:
    """Also if the process has come to know the object, as its own, while the write was on its way."""
    process = Process(logbook())
    write, _ = prepared(process, b"1")
    outbox = Outbox(process.book)  # type: ignore[arg-type]
    write.hand_over(outbox)
    for _ in range(OWN_STREAK + 1):
        process.run(process.direct.change("x", Increment((), 1)))
    outbox.committed(process.book.append_many(outbox.records))
    assert conditions(prepared(process, b"2")[0], process) == []


def test_an_object_that_another_process_has_deleted_is_listed_again() -> None:
    """This one takes it for listed, so its record has no name in it."""
    book = logbook()
    process, other = Process(book), Process(book)
    put(process, b"1")
    other.run(other.direct.change("x", Delete(())))
    assert not is_listed(process)
    put(process, b"2")
    assert not is_listed(process)
    assert follow(process) == 1
    assert is_listed(process)
    assert value_of(other) == 2
    for number in range(3):
        put(process, b"%d" % number)
        follow(process)
    partition, _ = entry_of("x") or ("", "")
    names = book.read(row_tag(partition)).records
    assert len(names) == 4, "put, deleted, listed again, and one write that makes sure"


def test_an_object_that_nobody_reads_is_saved() -> None:
    """Of the processes that do not know it, one of very many reads what has gathered."""
    book = logbook()
    for number in range(SAVE_AFTER):
        write, _ = prepared(process := Process(book), b"%d" % number, nonce=b"\1%d" % number)
        append(process, write)
        assert follow(process) == 0
    write, _ = prepared(process := Process(book), b"7", nonce=b"\0")
    append(process, write)
    assert book.read_prev(checkpoints_tag("x")) is None
    assert follow(process) == 1
    assert book.read_prev(checkpoints_tag("x")) is not None
    assert process.rows.awaited == {}
    assert value_of(Process(book)) == 7


def test_the_objects_of_a_fork_are_read_first() -> None:
    """The other book may not have any more what they begin with; then they can be read nowhere, and are not changed."""
    book = logbook()
    Process(book).run(Process(book).direct.change("x", Increment((), 1)))
    Process(book).run(saving.fork("book", "trial", 0))
    trial = Process(book.session.logbook("trial"))
    steps = overwrite(trial.reader, "x", Set((), b"1"), UNKNOWN_AUTHOR, new_nonce)
    assert trial.run(steps) is None
    assert not trial.reader.is_plain


def test_a_book_that_was_deleted_may_become_a_fork() -> None:
    """What was known of it is asked again."""
    process = Process(logbook())
    put(process, b"1")
    assert process.reader.is_plain
    process.book.delete()
    assert value_of(process) is MISSING
    process.rows.drop("x")
    _, asked = prepared(process, b"2")
    assert asked == [Compare([(ORIGIN, 0)], "book")]


def test_a_value_that_is_too_large_is_refused_as_by_a_read() -> None:
    """And nothing is changed."""
    process = Process(logbook())
    value = b'"%s"' % (b"x" * 1_000_000)
    with pytest.raises(TooLarge, match="object 'x': an object may have at most") as refused:
        prepared(process, value)
    with pytest.raises(TooLarge) as wanted:
        process.run(process.begin().change("x", Set((), value)))
    assert refused.value.message == wanted.value.message
    assert refused.value.details == wanted.value.details


@pytest.mark.parametrize("seed", range(60))
def test_all_processes_agree_whatever_is_done_at_the_same_time(seed: int) -> None:
    """What exists is listed, and what does not is not, when all that follows is done."""
    rng, book = Random(seed), logbook()
    processes = [Process(book) for _ in range(3)]
    under_way: list[tuple[Process, Overwrite]] = []
    for number in range(60):
        process = rng.choice(processes)
        match rng.randrange(7):
            case 0 | 1:
                under_way.append((process, prepared(process, b"%d" % number)[0]))
            case 2 if under_way:
                writer, write = under_way.pop(rng.randrange(len(under_way)))
                try:
                    append(writer, write)
                except ConditionFailed:
                    under_way.append((writer, prepared(writer, b"%d" % number)[0]))
            case 3:
                process.run(process.direct.change("x", rng.choice([Delete(()), Increment((), 1), Set((), b"0")])))
            case 4:
                assert value_of(process) == value_of(Process(book))
            case 5:
                process.rows.drop("x")
            case _:
                follow(process)
    for process in processes:
        follow(process)
    assert {repr(value_of(process)) for process in processes} == {repr(value_of(Process(book)))}
    assert is_listed(processes[0]) == (value_of(processes[0]) is not MISSING)


async def test_a_write_that_was_refused_guesses_no_more() -> None:
    """A plain writer of the same process changes the object again and again: each guess would be refused."""
    book = boki.testing.MemoryLog()
    async with boki.testing.context(log=book) as ctx:
        way = Way(ctx.logbook)
        store = Store(ctx)
        for number in range(OWN_STREAK + 1):
            await store.object("x").set("", number)
        found: list[int] = []
        work = WriteWork("x", Set((), b"7"))
        for _ in range(2):
            committing, _ = await way.run(work.prepare(way, UNKNOWN_AUTHOR))
            outbox = Outbox(ctx.logbook)
            committing.hand_over(outbox)
            found.append(len(outbox.conditions))
            await way.run(work.again())
            await store.object("x").increment("")
        assert found == [1, 0]
