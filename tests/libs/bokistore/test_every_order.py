"""Transactions and checkpoints in every order of their operations, with lost answers and kills: see `explore`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import msgspec

from boki import BokiError, Record
from boki.libs.bokistore import ConflictError, saving
from boki.libs.bokistore.accesses import Direct
from boki.libs.bokistore.reading import Reader
from boki.libs.bokistore.records import UNKNOWN_AUTHOR, Checkpoint, Write, codec, row_tag
from boki.libs.bokistore.refusals import UsedBefore
from boki.libs.bokistore.requests import Requests
from boki.libs.bokistore.transactions import Transaction
from boki.libs.bokistore.updates import Append, Delete, Increment, Merge, Set, Update
from boki.libs.bokistore.views import Row, Rows, View, checkpoint_of, step, view_of
from boki.libs.fold.steps import Steps, drive
from boki.testing.folds import Subject, World, check_resumes, check_same_everywhere, explore

_nonces = count(1)


def new_nonce() -> bytes:
    return b"%d" % next(_nonces)


@dataclass
class Folded:
    """One object, as its row makes it."""

    view: View = field(default_factory=View)

    def apply(self, record: Record) -> None:
        if record.seqnum > self.view.last:
            self.view, _, _ = step(self.view, "x", record)


def snapshot(folded: Folded) -> bytes:
    return msgspec.msgpack.encode(checkpoint_of("x", folded.view))


def restore(data: bytes) -> tuple[Folded, int]:
    view = view_of(msgspec.msgpack.decode(data, type=Checkpoint))
    assert view is not None
    return Folded(view), view.last + 1


OBJECT = Subject(
    "tests.libs.bokistore.test_every_order:OBJECT", Folded, Folded.apply, snapshot=snapshot, restore=restore
)


def history(seed: int) -> list[Record]:
    """Updates of all kinds, some of which do not fit, and what strangers append."""
    rng = Random(seed)
    records = []
    for number in range(1, 60):
        path = tuple(rng.sample(["a", "b", "c"], rng.randint(0, 2)))
        updates: list[Update] = [
            Set(path, b'{"c": 1, "b": {"a": []}}'),
            Delete(path),
            Increment(path, rng.choice([1, 0.5])),
            Append(path, b"[1, null]", 3),
            Merge(path, b'{"b": {"c": null}, "a": {"b": 2}}'),
        ]
        update = rng.choice(updates)
        data = codec.encode(Write([("x", [update])], b"%d" % number)) if rng.random() < 0.9 else b"junk"
        records.append(Record(10 * number, (row_tag("x"),), data, None, 1_000 * number))
    return records


def test_the_fold_of_an_object_is_pure() -> None:
    """In every process, and from every checkpoint."""
    for seed in range(3):
        check_same_everywhere(OBJECT, history(seed))
        check_resumes(OBJECT, history(seed))


def at_once(world: World, steps: Steps[Any]) -> Any:
    return drive(steps, world.answer)


def until_committed(begin: Callable[[], Transaction], work: Callable[[Transaction], Steps[Any]]) -> Steps[Any]:
    """What `Store.run` does: again while it conflicts, with a look at the key once somebody has used it."""
    is_used = False
    for _ in range(20):
        txn = begin()
        try:
            yield from txn.begin(fresh=False, looks_up_key=is_used)
            result = yield from work(txn)
            yield from txn.commit()
        except UsedBefore:
            is_used = True
        except BokiError as error:
            if not error.retryable:
                raise
        else:
            return result
    raise AssertionError("it never commits")


def mover(amount: int, key: str) -> Callable[[], Steps[Any]]:
    """A process that moves something from one object to another, once whatever happens to it."""

    def work(txn: Transaction) -> Steps[Any]:
        left = yield from Requests[Any](txn, "a", None).increment("n", -amount, None)
        yield from Requests[Any](txn, "b", None).increment("n", amount, None)
        return left

    def life() -> Steps[Any]:
        reader = Reader(Rows(), "test")
        return until_committed(lambda: Transaction(reader, new_nonce(), UNKNOWN_AUTHOR, key), work)

    return life


def opened(world: World) -> None:
    direct = Direct(Reader(Rows(), "test"), UNKNOWN_AUTHOR, new_nonce)
    at_once(world, Requests[Any](direct, "a", None).set("n", 100, None))


def balances(world: World) -> list[int]:
    direct = Direct(Reader(Rows(), "test"), UNKNOWN_AUTHOR, new_nonce)
    return [at_once(world, Requests[Any](direct, name, None).get("n", 0)) for name in ("a", "b")]


def test_transactions_under_a_key_count_once_in_every_order() -> None:
    """Whatever is lost, and whoever is killed at which operation and begins again."""

    def check(world: World) -> None:
        errors = [result for result in world.results.values() if isinstance(result, BokiError)]
        assert errors == []
        assert balances(world) == [89, 11]

    orders = explore([mover(1, "one"), mover(10, "two")], check, prepare=opened)
    assert orders > 500


def test_one_process_lost_twice() -> None:
    """Two faults, at any two operations."""

    def check(world: World) -> None:
        assert balances(world) == [99, 1]

    assert explore([mover(1, "one")], check, prepare=opened, most_faults=2) > 100


def test_saving_and_trimming_in_every_order() -> None:
    """Two who save, one of whom knows less, and one who changes the object: nobody misses anything."""
    rows = [Rows(), Rows()]

    def saver(number: int) -> Callable[[], Steps[Any]]:
        return lambda: saving.save(Reader(rows[number], "test"), "a")

    def changer() -> Steps[Any]:
        direct = Direct(Reader(Rows(), "test"), UNKNOWN_AUTHOR, new_nonce)
        return Requests[Any](direct, "a", None).increment("n", 1, "once")

    def prepare(world: World) -> None:
        at_once(world, saving.configure(0))
        for number in range(2):
            rows[number].clear()
            opened(world)
            at_once(world, Reader(rows[number], "test").catch_up("a"))

    def check(world: World) -> None:
        assert [result for result in world.results.values() if isinstance(result, BokiError)] == []
        assert balances(world)[0] == 101
        for known in rows:
            row, _ = at_once(world, Reader(known, "test").catch_up("a"))
            assert isinstance(row, Row)
            assert row.newest.value == {"n": 101}

    orders = explore(
        [saver(0), saver(1), changer], check, prepare=prepare, faults=("lost", "unanswered"), most_faults=0
    )
    assert orders > 50


def test_the_lost_answer_of_a_commit_is_looked_for_in_every_order() -> None:
    """Without a key: a commit is told as one, or as unknown, and never as refused although it stands in the log."""

    def life() -> Steps[Any]:
        txn = Transaction(Reader(Rows(), "test"), new_nonce(), UNKNOWN_AUTHOR)
        yield from Requests[Any](txn, "a", None).increment("n", -1, None)
        yield from Requests[Any](txn, "b", None).increment("n", 1, None)
        return (yield from txn.commit())

    def check(world: World) -> None:
        told = [not isinstance(result, BokiError) for result in world.results.values()]
        refused = [result for result in world.results.values() if isinstance(result, ConflictError)]
        unknown = len(told) - sum(told) - len(refused)
        done = balances(world)[1]
        assert sum(told) <= done <= sum(told) + unknown

    assert explore([life, life], check, prepare=opened, faults=("lost", "unanswered"), most_faults=2) > 300
