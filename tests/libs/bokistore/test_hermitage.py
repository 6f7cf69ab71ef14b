"""Hermitage's fifteen scripts for optimistic databases (`foundationdb.md`), deterministic, over the log in memory.

The table has rows 1 => 10 and 2 => 20; here it is one object with a field for each. An update of a row reads it, as SQL
does. What each script shows is said by its results; besides, some serial order of what was committed must explain all
that was read and what stands there in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

from boki.libs.bokistore import ConflictError
from boki.libs.bokistore.json_values import encode
from boki.libs.bokistore.requests import Requests
from boki.libs.bokistore.transactions import Transaction
from tests.libs.bokistore.interleaving import Process, logbook

Row = dict[str, int]
Where = Callable[[str, int], bool]


class Session:
    """A connection: at most one transaction at a time, and what it has seen of committed ones."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._process = Process(database.book)
        self._txn: Transaction | None = None
        self._done: list[Callable[[Row], bool]] = []

    def begin(self) -> None:
        self._txn, self._done = self._process.begin(), []

    @property
    def _table(self) -> Requests[Any]:
        assert self._txn is not None, "it was begun"
        return Requests(self._txn, "test", None)

    def select(self, *ids: int) -> Row:
        """Some rows, or all; each is read by its own path, or the whole table at once."""
        if not ids:
            found: Row = self._process.run(self._table.get("", {}))
        else:
            read = {str(each): self._process.run(self._table.get(str(each), None)) for each in ids}
            found = {each: value for each, value in read.items() if value is not None}
        wanted = {str(each) for each in ids}
        self._done.append(lambda table: found == {k: v for k, v in table.items() if not wanted or k in wanted})
        return found

    def select_where(self, where: Where) -> Row:
        """The rows that fit, found by one query, which is what conflicts."""
        found = self._query(where)
        self._done.append(lambda table: found == {k: v for k, v in table.items() if where(k, v)})
        return found

    def _query(self, where: Where) -> Row:
        assert self._txn is not None, "it was begun"

        def fitting(value: Any) -> Row:
            return {key: number for key, number in (value or {}).items() if where(key, number)}

        found: Row = self._process.run(self._txn.look("test", fitting))
        return found

    def update(self, row: int, value: int) -> None:
        if self._process.run(self._table.exists(str(row))):
            self._process.run(self._table.set(str(row), value, None))
        self._done.append(lambda table: bool(table.update({str(row): value}) if str(row) in table else None) or True)

    def update_where(self, where: Where, change: Callable[[int], int]) -> None:
        for key, number in self._query(where).items():
            self._process.run(self._table.set(key, change(number), None))

        def apply(table: Row) -> bool:
            table.update({key: change(number) for key, number in table.items() if where(key, number)})
            return True

        self._done.append(apply)

    def insert(self, row: int, value: int) -> None:
        assert not self._process.run(self._table.exists(str(row)))
        self._process.run(self._table.set(str(row), value, None))
        self._done.append(lambda table: table.setdefault(str(row), value) == value)

    def delete_where(self, where: Where) -> None:
        for key in self._query(where):
            self._process.run(self._table.delete(key, None))

        def apply(table: Row) -> bool:
            for key in [key for key, number in table.items() if where(key, number)]:
                del table[key]
            return True

        self._done.append(apply)

    def rollback(self) -> None:
        self._txn = None

    def commit(self) -> bool:
        """Whether it was committed."""
        assert self._txn is not None, "it was begun"
        txn, self._txn = self._txn, None
        try:
            self._process.run(txn.commit())
        except ConflictError:
            return False
        self._database.committed.append(self._done)
        return True


class Database:
    """The table, and what was committed."""

    def __init__(self) -> None:
        self.book = logbook()
        self.committed: list[list[Callable[[Row], bool]]] = []
        process = Process(self.book)
        process.run(Requests(process.direct, "test", None).set("", {"1": 10, "2": 20}, None))

    def sessions(self, number: int = 2) -> list[Session]:
        sessions = [Session(self) for _ in range(number)]
        for session in sessions:
            session.begin()
        return sessions

    def table(self) -> Row:
        """What stands there, after checking whether a serial order explains it."""
        process = Process(self.book)
        table: Row = process.run(Requests(process.direct, "test", None).get("", None))
        assert any(self._explains(order, table) for order in permutations(self.committed))
        return table

    @staticmethod
    def _explains(order: tuple[list[Callable[[Row], bool]], ...], end: Row) -> bool:
        table: Row = {"1": 10, "2": 20}
        return all(done(table) for session in order for done in session) and encode(table) == encode(end)


def test_g0_write_cycles() -> None:
    """The writes of two transactions do not mix: the later one stands on the earlier."""
    database = Database()
    t1, t2 = database.sessions()
    t1.update(1, 11)
    t2.update(1, 12)
    t1.update(2, 21)
    assert t1.commit()
    t2.update(2, 22)
    assert t2.commit()
    assert database.table() == {"1": 12, "2": 22}


def test_g1a_aborted_reads() -> None:
    """What was rolled back was never seen."""
    database = Database()
    t1, t2 = database.sessions()
    t1.update(1, 101)
    assert t2.select(1) == {"1": 10}
    t1.rollback()
    assert t2.select(1) == {"1": 10}
    assert t2.commit()
    assert database.table() == {"1": 10, "2": 20}


def test_g1b_intermediate_reads() -> None:
    """What a transaction has overwritten itself was never seen; nor is its commit, by one that has begun to read."""
    database = Database()
    t1, t2 = database.sessions()
    t1.update(1, 101)
    assert t2.select() == {"1": 10, "2": 20}
    t1.update(1, 11)
    assert t1.commit()
    assert t2.select() == {"1": 10, "2": 20}
    assert t2.commit()


def test_g1c_circular_information_flow() -> None:
    """Neither sees the other, so not both can have come first: one is refused."""
    database = Database()
    t1, t2 = database.sessions()
    t1.update(1, 11)
    t2.update(2, 22)
    assert t1.select(2) == {"2": 20}
    assert t2.select(1) == {"1": 10}
    assert t1.commit()
    assert not t2.commit()
    assert database.table() == {"1": 11, "2": 20}


def test_otv_observed_transaction_vanishes() -> None:
    """The snapshot is taken by the first read, and holds."""
    database = Database()
    t1, t2, t3 = database.sessions(3)
    t1.update(1, 11)
    t1.update(2, 19)
    t2.update(1, 12)
    assert t1.commit()
    assert t3.select() == {"1": 11, "2": 19}
    t2.update(2, 18)
    assert t2.commit()
    assert t3.select() == {"1": 11, "2": 19}
    assert t3.commit()
    assert database.table() == {"1": 12, "2": 18}


def test_pmp_predicate_many_preceders() -> None:
    """A query that is asked again has the same answer."""
    database = Database()
    t1, t2 = database.sessions()
    assert t1.select_where(lambda _, value: value == 30) == {}
    t2.insert(3, 30)
    assert t2.commit()
    assert t1.select_where(lambda _, value: value % 3 == 0) == {}
    assert t1.commit()


def test_pmp_write_predicates_of_writes() -> None:
    """A deletion by a predicate whose rows have changed is refused."""
    database = Database()
    t1, t2 = database.sessions()
    t1.update_where(lambda *_: True, lambda value: value + 10)
    assert t2.select() == {"1": 10, "2": 20}
    t2.delete_where(lambda _, value: value == 20)
    assert t1.commit()
    assert t2.select() == {"1": 10}
    assert not t2.commit()
    assert database.table() == {"1": 20, "2": 30}


def test_p4_lost_update() -> None:
    """Two read a row and overwrite it: the second is refused, though it writes the same."""
    database = Database()
    t1, t2 = database.sessions()
    assert t1.select(1) == t2.select(1) == {"1": 10}
    t1.update(1, 11)
    t2.update(1, 11)
    assert t1.commit()
    assert not t2.commit()


def test_g_single_read_skew() -> None:
    """A transaction that reads sees neither half of another one."""
    database = Database()
    t1, t2 = database.sessions()
    assert t1.select(1) == {"1": 10}
    t2.select(1)
    t2.select(2)
    t2.update(1, 12)
    t2.update(2, 18)
    assert t2.commit()
    assert t1.select(2) == {"2": 20}
    assert t1.commit()
    assert database.table() == {"1": 12, "2": 18}


def test_g_single_dependencies_of_predicates() -> None:
    """Also by predicates."""
    database = Database()
    t1, t2 = database.sessions()
    assert t1.select_where(lambda _, value: value % 5 == 0) == {"1": 10, "2": 20}
    t2.update_where(lambda _, value: value == 10, lambda _: 12)
    assert t2.commit()
    assert t1.select_where(lambda _, value: value % 3 == 0) == {}
    assert t1.commit()


def test_g_single_write_1_read_skew_that_writes() -> None:
    """Who has read the old version does not write by it."""
    database = Database()
    t1, t2 = database.sessions()
    assert t1.select(1) == {"1": 10}
    t2.select()
    t2.update(1, 12)
    t2.update(2, 18)
    assert t2.commit()
    t1.delete_where(lambda _, value: value == 20)
    assert t1.select(2) == {}
    assert not t1.commit()
    assert database.table() == {"1": 12, "2": 18}


def test_g_single_write_2_conflicts_with_aborted_ones_do_not_count() -> None:
    """Conflicts are decided at the commit, and the other one never did."""
    database = Database()
    t1, t2 = database.sessions()
    assert t1.select(1) == {"1": 10}
    t2.select()
    t2.update(1, 12)
    t1.delete_where(lambda _, value: value == 20)
    t2.update(2, 18)
    t1.rollback()
    assert t2.commit()
    assert database.table() == {"1": 12, "2": 18}


def test_g2_item_write_skew() -> None:
    """Both read both rows and write different ones: one is refused."""
    database = Database()
    t1, t2 = database.sessions()
    assert t1.select(1, 2) == t2.select(1, 2) == {"1": 10, "2": 20}
    t1.update(1, 11)
    t2.update(2, 21)
    assert t1.commit()
    assert not t2.commit()
    assert database.table() == {"1": 11, "2": 20}


def test_g2_write_skew_of_predicates() -> None:
    """Both look for rows of a kind, find none, and insert one: one is refused."""
    database = Database()
    t1, t2 = database.sessions()
    assert t1.select_where(lambda _, value: value % 3 == 0) == {}
    assert t2.select_where(lambda _, value: value % 3 == 0) == {}
    t1.insert(3, 30)
    t2.insert(4, 42)
    assert t1.commit()
    assert not t2.commit()
    assert database.table() == {"1": 10, "2": 20, "3": 30}


def test_g2_two_edges() -> None:
    """A transaction that only reads makes the difference (Fekete and others): it has seen the second one alone."""
    database = Database()
    t1, t2, t3 = database.sessions(3)
    assert t1.select() == {"1": 10, "2": 20}
    t2.update_where(lambda key, _: key == "2", lambda value: value + 5)
    assert t2.commit()
    assert t3.select() == {"1": 10, "2": 25}
    assert t3.commit()
    t1.update(1, 0)
    assert not t1.commit()
    assert database.table() == {"1": 10, "2": 25}


def test_a_scan_and_an_insert_that_it_does_not_meet() -> None:
    """No conflict: the query has the same answer on the new version."""
    database = Database()
    t1, t2 = database.sessions()
    assert t1.select_where(lambda _, value: value > 100) == {}
    t2.insert(3, 30)
    assert t2.commit()
    t1.update(1, 11)
    assert t1.commit()
    assert database.table() == {"1": 11, "2": 20, "3": 30}
