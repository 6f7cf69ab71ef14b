"""The store of plain functions: `boki.libs.bokistore.store` without `await`, and made from it.

Change that one, and run `python -m tests.unasync`.

::

    store = Store(ctx)
    ada = store.object("user:ada", User)
    ada.set("", User("Ada", 36))
    age = ada.increment("age")

    with store.transaction() as txn:
        balance = txn.object("account:1").get("balance", 0)
        if balance >= 10:
            txn.object("account:1").increment("balance", -10)
            txn.object("account:2").increment("balance", 10)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar, Token
from random import Random
from time import sleep
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, overload

from boki import InvalidArgument, NewRecord, Trimmed
from boki.blocking import Context, LogBook
from boki.libs.bokistore import saving
from boki.libs.bokistore.accesses import Access, Direct
from boki.libs.bokistore.collections_blocking import Counter, Map, StoredList, StoredSet
from boki.libs.bokistore.keys import check_commit
from boki.libs.bokistore.listing import MAP_PARTITIONS, MAPS, OBJECTS, PARTITIONS
from boki.libs.bokistore.machines import ReplicatedObject, check_kind
from boki.libs.bokistore.maps import MapRequests, Shape, check_shape, shape_of
from boki.libs.bokistore.past import AsOf, History, Version, Watch, check_moment
from boki.libs.bokistore.paths import Path
from boki.libs.bokistore.records import UNKNOWN_AUTHOR, Author, check_object_name, row_tag
from boki.libs.bokistore.refusals import ConflictError, UsedBefore
from boki.libs.bokistore.replicas_blocking import Replica
from boki.libs.bokistore.requests import Requests
from boki.libs.bokistore.transactions import Transaction as Transacting
from boki.libs.bokistore.way_blocking import Way
from boki.libs.fold.arguments import check_list, check_span
from boki.libs.fold.outbox import Outbox
from boki.retry import Backoff

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
ReplicatedT = TypeVar("ReplicatedT", bound=ReplicatedObject)

_Names = list[str]
"""Whatever has objects has a method `list`, too."""
CONFLICTS: Final = Backoff(first_s=0.002, longest_s=0.25, tries=12)
"""How `@store.transactional` runs a transaction again that was in conflict."""


class StoredObject(Generic[T]):
    """An object of a store: as it is now, within a transaction, or as it was.

    Values are copies: changing one changes nothing else. A `path` is "a.b.0", or a list of segments; "" is the whole
    object. What leads through a scalar is a `WrongShape`, and changes nothing. An update under a `key` counts once in
    24 hours, however often it comes; in a transaction the transaction has the key.
    """

    __slots__ = ("_requests", "_way")

    def __init__(self, access: Access, way: Way, name: str, kind: type[T] | None) -> None:
        self._way = way
        self._requests: Requests[T] = Requests(access, name, kind)

    @property
    def name(self) -> str:
        """The object's name."""
        return self._requests.name

    def get(self, path: Path = "", default: Any = None) -> Any:
        """The value at the path; `default` if there is none. The whole object has the type of the handle."""
        return self._way.run(self._requests.get(path, default))

    def exists(self, path: Path = "") -> bool:
        """Whether there is a value at the path."""
        return self._way.run(self._requests.exists(path))

    def length(self, path: Path = "") -> int:
        """The number of items of the array or object at the path; 0 if there is none."""
        return self._way.run(self._requests.length(path))

    def keys(self, path: Path = "") -> list[str]:
        """The keys of the object at the path, in the order in which they were put; none if there is none."""
        return self._way.run(self._requests.keys(path))

    def version(self) -> int:
        """From which seqnum on the object has its value: `store.at(version)` shows it. 0 if nothing has changed it."""
        return self._way.run(self._requests.version())

    def set(self, path: Path, value: Any, *, key: str | None = None) -> None:
        """Put a value at the path. Objects that are missing on the way are made."""
        self._way.run(self._requests.set(path, value, key))

    def delete(self, path: Path = "", *, key: str | None = None) -> bool:
        """Take the value at the path away, out of an array by moving up what follows; whether there was one."""
        return self._way.run(self._requests.delete(path, key))

    def increment(self, path: Path, by: float = 1, *, key: str | None = None) -> Any:
        """Add to the number at the path, 0 if there is none; the new number."""
        return self._way.run(self._requests.increment(path, by, key))

    def append(self, path: Path, *values: Any, limit: int = 0, key: str | None = None) -> int:
        """Add items to the end of the array at the path, and drop the first ones beyond `limit`; the new length."""
        return self._way.run(self._requests.append(path, values, limit, key))

    def insert(self, path: Path, value: Any, *, key: str | None = None) -> int:
        """Put an item into an array, before the one at the index that the path ends with; the new length."""
        return self._way.run(self._requests.insert(path, value, key))

    def pop(self, path: Path, index: int = -1, default: Any = None, *, key: str | None = None) -> Any:
        """Take the last (-1) or first (0) item out of the array at the path; `default` if there is none."""
        return self._way.run(self._requests.pop(path, index, default, key))

    def merge(self, path: Path, patch: Any, *, key: str | None = None) -> None:
        """Merge a JSON Merge Patch (RFC 7396) into the value at the path: null deletes a key."""
        self._way.run(self._requests.merge(path, patch, key))


class _Objects:
    """Whatever has objects."""

    def __init__(self, access: Access, way: Way) -> None:
        self._access = access
        self._way = way

    @overload
    def object(self, name: str) -> StoredObject[Any]: ...

    @overload
    def object(self, name: str, type: type[T]) -> StoredObject[T]: ...

    def object(self, name: str, type: type[T] | None = None) -> StoredObject[T]:  # noqa: A002
        """The object of that name, which need not exist. `type`: what the whole object is, when it is read."""
        return StoredObject(self._access, self._way, name, type)

    def map(self, name: str, *, partitions: int = 16, indexes: Iterable[str] = ()) -> Map:
        """The map of that name. `indexes`: paths into items, by whose values `where` finds them.

        Its partitions and indexes are decided by its first write, and are the same wherever it is used.
        """
        return Map(self._map(name, partitions, indexes), self._way)

    def set(self, name: str, *, partitions: int = 16) -> StoredSet:
        """The set of that name, as a map without values."""
        return StoredSet(self._map(name, partitions, ()), self._way)

    def counter(self, name: str) -> Counter:
        """The object of that name as a number."""
        return Counter(Requests(self._access, name, None), self._way)

    def list(self, name: str) -> StoredList:
        """The object of that name as an array."""
        return StoredList(Requests(self._access, name, None), self._way)

    def objects(self, *, prefix: str = "", after: str | None = None, limit: int = 1_000) -> _Names:
        """The names of the objects that exist, in order; as of one moment.

        Continue with `after` the last name of a page: objects that come and go meanwhile move no other one. A
        transaction does not find the objects here that it has made itself.
        """
        return self._names(OBJECTS, PARTITIONS, prefix, after, limit)

    def maps(self, *, prefix: str = "", after: str | None = None, limit: int = 1_000) -> _Names:
        """The names of the maps and sets; see `objects`."""
        return self._names(MAPS, MAP_PARTITIONS, prefix, after, limit)

    def _names(self, listed: str, partitions: int, prefix: str, after: str | None, limit: int) -> _Names:
        requests = self._map_requests(listed, Shape(partitions), {listed: Shape(partitions)})
        return [name for name, _ in self._way.run(requests.scan(prefix, "", None, after, limit))]

    def _map(self, name: str, partitions: int, indexes: Iterable[str]) -> MapRequests:
        return self._map_requests(check_object_name(name), check_shape(partitions, indexes), self._way.shapes)

    def _map_requests(self, name: str, shape: Shape, known: dict[str, Shape]) -> MapRequests:
        way = self._way
        direct = self._access if isinstance(self._access, Direct) else Direct(way.reader, UNKNOWN_AUTHOR, way.new_nonce)

        def begin() -> Transacting:
            return Transacting(way.reader, way.new_nonce(), direct.author)

        return MapRequests(self._access, begin, name, shape, known, direct)


class Snapshot(_Objects):
    """All objects as they were at one moment. They can only be read; `Trimmed` says that it is too long ago."""


class Transaction(_Objects):
    """A transaction that has begun. `with store.transaction() as txn` commits it."""

    def __init__(self, transacting: Transacting, way: Way) -> None:
        super().__init__(transacting, way)
        self.core: Final = transacting
        """What decides, for libraries that commit together with it."""
        self.seqnum = 0
        """Where in the log it was committed; 0: it was not."""

    @property
    def snapshot(self) -> int | None:
        """The seqnum as of which it reads; None before its first read."""
        return self.core.snapshot

    def prefetch(self, *names: str) -> None:
        """Read several objects at once that are going to be used: one after the other takes longer."""
        self._way.run(self.core.prefetch(list(dict.fromkeys(map(check_object_name, names)))))

    def append(self, data: bytes, tags: Iterable[str] = ()) -> None:
        """Append a record of the application to the book, if and when the transaction commits."""
        record = NewRecord(data, check_list(tags, "tags"))
        self._way.logbook.session.check(record.data, record.tags)
        self.core.append(record)


_open: ContextVar[dict[int, Transaction]] = ContextVar("boki.store.open", default={})  # noqa: B039 - it is replaced
"""The transactions in which this task is, by the identity of what remembers the book's objects."""


class TransactionBlock:
    """`with` for a transaction: it commits at the end, unless the block raises."""

    def __init__(
        self, store: Store, key: str | None, outbox: Outbox | None, *, fresh: bool, looks_up_key: bool = True
    ) -> None:
        self._key = check_commit(key, outbox, store.book)
        self._store = store
        self._outbox = outbox
        self._fresh = fresh
        self._looks_up_key = looks_up_key
        self._outer: tuple[Transaction, int, int, int] | None = None
        self._inner: tuple[Transaction, Token[dict[int, Transaction]]] | None = None

    def __enter__(self) -> Transaction:
        store = self._store
        outer = _open.get().get(store.identity)
        if outer is not None and not outer.core.is_over:
            if self._key is not None or self._outbox is not None:
                raise InvalidArgument(
                    "a transaction inside of another one is part of it: give the key, or the outbox, to the outer one",
                    field="key",
                )
            transacting = outer.core
            self._outer = (outer, transacting.mark(), transacting.extra_count, transacting.parts.begin())
            return outer
        transacting = Transacting(store.way.reader, store.way.new_nonce(), store.author, self._key)
        transacting.may_guess = self._outbox is None
        transaction = Transaction(transacting, store.way)
        if self._fresh or self._key is not None:
            store.way.run(transacting.begin(fresh=self._fresh, looks_up_key=self._looks_up_key))
        self._inner = (transaction, _open.set({**_open.get(), store.identity: transaction}))
        return transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outer is not None:
            transaction, mark, extra, part = self._outer
            transaction.core.parts.end(part, is_undone=kind is not None)
            if kind is not None:
                transaction.core.go_back(mark, extra)
            return
        assert self._inner is not None, "it was entered"
        transaction, token = self._inner
        _open.reset(token)
        if kind is not None:
            transaction.core.is_over = True
            if issubclass(kind, Exception):
                self._store.way.run(transaction.core.give_up())
        elif self._outbox is not None:
            transaction.core.hand_over(self._outbox)
        else:
            transaction.seqnum = self._store.way.run(transaction.core.commit())


class Store(_Objects):
    """The objects of a LogBook. A store needs nothing but the book, and any number of them is the same store.

    `book`: a LogBook, or the context of a function, whose own LogBook it is then; with a context the history of objects
    says which call wrote what.
    """

    def __init__(self, book: LogBook | Context) -> None:
        logbook, self.author = _parts(book)
        self.way = Way(logbook)
        super().__init__(Direct(self.way.reader, self.author, self.way.new_nonce), self.way)

    @property
    def book(self) -> str:
        """The name of its LogBook."""
        return self.way.logbook.name

    @property
    def identity(self) -> int:
        """Equal for the stores of one book over one connection."""
        return id(self.way.reader)

    def transaction(
        self, *, key: str | None = None, fresh: bool = False, outbox: Outbox | None = None
    ) -> TransactionBlock:
        """A transaction: `with store.transaction() as txn`. Inside of another one it is a part of that.

        It commits when the block ends, or raises `ConflictError` and nothing was changed. `key`: it is committed once
        in 24 hours, however often it comes; a repetition reads what the first one has read, and must write the same.
        `fresh`: it sees everything that anybody was acknowledged before it, also if it only reads. `outbox`: it commits
        with what is in there, such as the ack of a message; then that says `ConditionFailed` where this one would
        conflict.
        """
        return TransactionBlock(self, key, outbox, fresh=fresh)

    def transactional(self, work: Callable[Concatenate[Transaction, P], R]) -> Callable[P, R]:
        """Make a function of a transaction one that is run in a transaction of its own, and again if that conflicts."""

        @functools.wraps(work)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.run(lambda txn: work(txn, *args, **kwargs))

        return run

    def run(
        self,
        work: Callable[[Transaction], R],
        *,
        key: str | None = None,
        fresh: bool = False,
        backoff: Backoff = CONFLICTS,
    ) -> R:
        """Do the work in a transaction, and again if it conflicts with others; what it returned when it committed."""
        tries, is_used = 0, False
        rng = Random()
        while True:
            try:
                with TransactionBlock(self, key, None, fresh=fresh, looks_up_key=is_used) as txn:
                    return work(txn)
            except UsedBefore:
                is_used = True
                continue
            except ConflictError:
                tries += 1
                if tries >= backoff.tries or self.identity in _open.get():
                    raise
            sleep(backoff.pause_s(tries, rng.random()))

    def open_map(self, name: str) -> Map:
        """The map of that name, with the partitions and indexes that it was made with; `NoSuchObject`: it was not."""
        shape = self.way.run(shape_of(self._access, check_object_name(name)))
        return self.map(name, partitions=shape.partitions, indexes=shape.indexes)

    def replicated(self, name: str, kind: type[ReplicatedT]) -> Replica[ReplicatedT]:
        """The replicated object of that name, of a class of your own; see `ReplicatedObject`."""
        return Replica(self.way, check_object_name(name), check_kind(kind))

    # the past

    def at(self, seqnum: int | None = None, *, time: Any = None) -> Snapshot:
        """All objects as they were when the record of that seqnum was the last one, or at that time of the log.

        `time`: a `datetime`, or seconds since the epoch.
        """
        return Snapshot(AsOf(self.way.reader, *check_moment(seqnum, time)), self.way)

    def history(self, name: str, *, start: int = 0) -> Iterator[Version]:
        """The versions of an object, from the earliest that is kept to the newest, with who wrote them.

        `start`: only those of this seqnum or later, without a look at what was before.
        """
        history = History(self.way.reader, check_object_name(name), start)
        while not history.is_end:
            yield from self.way.run(history.page())

    def watch(self, name: str) -> Iterator[Version]:
        """The object as it is now, and then each version that comes, until the call's deadline.

        A watcher that is slower than what is trimmed continues with the version that is there then.
        """
        watch = Watch(self.way.reader, check_object_name(name))
        while True:
            yield self.way.run(watch.begin())
            try:
                for record in self.way.logbook.subscribe(row_tag(name), start=watch.start):
                    version = self.way.run(watch.take(record))
                    if version is not None:
                        yield version
            except Trimmed:
                continue

    def configure(self, *, history_s: float | None) -> None:
        """Set for how many seconds the past stays readable, by the log's time; None, as at first: forever.

        What is older is trimmed when its object is saved the next time, after some hundred updates.
        """
        history_us = None if history_s is None else check_span(history_s, "history_s", most_s=saving.MAX_HISTORY_S)
        self.way.run(saving.configure(history_us))

    def fork(self, name: str, *, at: int = 0) -> Store:
        """Make the book `name` a copy of all objects, as they are now or as of a seqnum, and give the store in it.

        Nothing is copied: the fork reads there what nobody has changed in it. Both can be changed from then on, and
        neither sees what is done in the other. The book must be new; making the same fork again changes nothing.
        """
        other = self.way.logbook.session.logbook(name)
        self.way.run(saving.fork(self.book, other.name, at))
        return Store(other)

    def release(self, name: str) -> None:
        """Keep no longer what the fork `name` needs of this book: delete its LogBook first. `InvalidArgument`: there is
        no such fork.
        """
        self.way.run(saving.release(self.book, name))


def _parts(book: LogBook | Context) -> tuple[LogBook, Author]:
    if isinstance(book, Context):
        return book.logbook, Author(book.function_name, book.invocation_id)
    if isinstance(book, LogBook):
        return book, UNKNOWN_AUTHOR
    raise InvalidArgument(
        f"a store is made of a LogBook or a context, not of {type(book).__name__}: write Store(ctx)", field="book"
    )
