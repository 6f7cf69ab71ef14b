"""`flow.store` and `flow.log` of `def` workflows: made from `storing`.

::

    account = flow.store.object("account:1")
    balance = account.get("balance")        # no record: a replay reads the same
    account.increment("visits")             # one append, with the workflow's own record: once, whatever crashes

    with flow.store.transaction() as txn:
        txn.object("account:1").increment("balance", -10)
        txn.object("account:2").increment("balance", 10)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import Token
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast, overload

from boki import Page, Record
from boki.libs.bokiflow.asking import CommitWork, Load, ReadLast, ReadLog, WriteWork
from boki.libs.bokiflow.body import body_of
from boki.libs.bokiflow.state import (
    BLOCKING_WAY,
    Current,
    OpenTransaction,
    Part,
    enter_transaction,
    is_expected,
    leave_transaction,
    open_transaction,
    transaction_here,
)
from boki.libs.bokistore import ConflictError
from boki.libs.bokistore.accesses import Access
from boki.libs.bokistore.blocking import StoredObject
from boki.libs.bokistore.json_values import plain
from boki.libs.bokistore.paths import Path, parse_path
from boki.libs.bokistore.records import check_object_name
from boki.libs.bokistore.requests import data_of
from boki.libs.bokistore.updates import Set
from boki.libs.bokistore.way_blocking import Way
from boki.libs.fold.arguments import check_count
from boki.retry import Backoff

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

CONFLICTS: Final = Backoff(first_s=0.05, longest_s=2.0, tries=12)
"""How `flow.store.run` makes a transaction again that was in conflict. The pauses are timers of the workflow."""
MAX_PAGE: Final = 1_000

_WAY: Final = cast("Way", BLOCKING_WAY)


class _Objects:
    """Whatever has objects."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @overload
    def object(self, name: str) -> StoredObject[Any]: ...

    @overload
    def object(self, name: str, type: type[T]) -> StoredObject[T]: ...

    def object(self, name: str, type: type[T] | None = None) -> StoredObject[T]:  # noqa: A002
        """The object of that name; see `boki.libs.bokistore.blocking.StoredObject`."""
        body_of("flow.store")
        return StoredObject(self._access, _WAY, name, type)


class FlowTransaction(_Objects):
    """A transaction of a workflow that has begun: see `FlowStore.transaction`."""

    def __init__(self, core: OpenTransaction) -> None:
        super().__init__(core.access)
        self._core = core

    def append(self, data: bytes, tags: Iterable[str] = ()) -> None:
        """Append a record of the application to the book, if and when the transaction commits."""
        self._core.append(data, tags)

    def prefetch(self, *names: str) -> None:
        """Read several objects at once that are going to be used: one after the other takes longer."""
        BLOCKING_WAY.run(self._core.access.prefetch(list(dict.fromkeys(map(check_object_name, names)))))


class TransactionBlock:
    """`with` for a transaction: it commits at the end, unless the block raises."""

    def __init__(self) -> None:
        self._part: Part | None = None
        self._inner: tuple[OpenTransaction, Token[OpenTransaction | None]] | None = None

    def __enter__(self) -> FlowTransaction:
        body_of("flow.store.transaction")
        outer = open_transaction()
        if outer is not None:
            if outer.draft.core is None and outer.draft.base is not None:
                BLOCKING_WAY.ask(Load(outer.draft, []))  # what it begins with is not undone
            self._part = Part(outer.draft)
            return FlowTransaction(outer)
        txn = OpenTransaction()
        self._inner = txn, enter_transaction(txn)
        return FlowTransaction(txn)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._part is not None:
            self._part.end(is_undone=kind is not None)
            return
        assert self._inner is not None, "it was entered"
        txn, token = self._inner
        leave_transaction(token)
        txn.access.is_over = True
        if kind is None:
            txn.check()
        if kind is None and not txn.draft.is_empty:
            BLOCKING_WAY.write(CommitWork(txn.draft))


class FlowStore(_Objects):
    """The store in the workflow's LogBook. Reads are as of the workflow's position, and need no record."""

    def read(self, key: str, path: Path = "", default: Any = None) -> Any:
        """The value of the object `key`, or at a path in it; `default` if there is none."""
        return self.object(key).get(path, default)

    def write(self, key: str, value: Any, path: Path = "") -> None:
        """Put the value of the object `key`, or at a path in it. Once, however often the workflow is run."""
        self.object(key).set(path, value)

    def cond_write(self, key: str, value: Any, *, expected: Any, path: Path = "") -> bool:
        """Put the value if the one that is there is `expected` (None: there is none). Whether it was, in the log's
        order; what the workflow has read before does not matter.
        """
        segments = parse_path(path)
        if transaction_here() is not None:
            missing = object()
            found = self.object(key).get(path, missing)
            if not is_expected(None if found is missing else found, plain(expected)):
                return False
            self.object(key).set(path, value)
            return True
        work = WriteWork(check_object_name(key), Set(segments, data_of(value)), (segments, plain(expected)))
        return bool(BLOCKING_WAY.write(work))

    def transaction(self) -> TransactionBlock:
        """A transaction: `with flow.store.transaction() as txn`. Inside of another one it is a part of that.

        All that it reads is as of the workflow's position. It commits when the block ends, in one append with the
        workflow's own record, or raises `ConflictError` and nothing was changed. If the block raises, nothing was.
        """
        return TransactionBlock()

    def run(self, work: Callable[[FlowTransaction], R], *, backoff: Backoff = CONFLICTS) -> R:
        """Do the work in a transaction, and again if it conflicts with others; what it returned when it committed."""
        tries = 0
        is_inner = open_transaction() is not None
        while True:
            try:
                with self.transaction() as txn:
                    return work(txn)
            except ConflictError:
                tries += 1
                if tries >= backoff.tries or is_inner:
                    raise
            if tries > 1:
                drawn = body_of("flow.store.run").random.random()
                BLOCKING_WAY.sleep(backoff.pause_s(tries - 1, drawn))

    def transactional(self, work: Callable[Concatenate[FlowTransaction, P], R]) -> Callable[P, R]:
        """Make a function of a transaction one that is run in a transaction of its own, and again if that conflicts."""

        @wraps(work)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.run(lambda txn: work(txn, *args, **kwargs))

        return run


class FlowLog:
    """The workflow's LogBook, read as of the workflow's position, without a record."""

    def read(
        self,
        tag: str | None = None,
        *,
        start: int = 0,
        stop: int | None = None,
        limit: int = MAX_PAGE,
    ) -> Page:
        """Records in ascending order, as `LogBook.read` gives them; those behind the position are not there yet."""
        check_count(limit, "limit", MAX_PAGE)
        page: Page = BLOCKING_WAY.ask(ReadLog(tag, start, stop, limit), "flow.log")
        return page

    def last(self, tag: str | None = None) -> Record | None:
        """The last record of a tag, or None."""
        record: Record | None = BLOCKING_WAY.ask(ReadLast(tag), "flow.log")
        return record


STORE: Final = FlowStore(Current())
LOG: Final = FlowLog()
