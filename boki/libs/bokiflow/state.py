"""`flow.store` and `flow.log`: objects and records of the workflow's own LogBook, read and written exactly once.

::

    account = flow.store.object("account:1")
    balance = await account.get("balance")        # no record: a replay reads the same
    await account.increment("visits")             # one append, with the workflow's own record: once, whatever crashes

    async with flow.store.transaction() as txn:
        await txn.object("account:1").increment("balance", -10)
        await txn.object("account:2").increment("balance", 10)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar, Token
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast, overload

from boki import BokiError, InvalidArgument, NewRecord, Page, Record, WrongState
from boki.libs.bokiflow.asking import CommitWork, Draft, Load, Look, ReadLast, ReadLog, StoreWork, VersionAt, WriteWork
from boki.libs.bokiflow.body import Body, body_of
from boki.libs.bokistore import ConflictError, StoredObject
from boki.libs.bokistore.accesses import Access, look_all
from boki.libs.bokistore.json_values import is_same, plain
from boki.libs.bokistore.paths import Path, parse_path
from boki.libs.bokistore.queries import Question
from boki.libs.bokistore.records import check_object_name
from boki.libs.bokistore.requests import data_of
from boki.libs.bokistore.updates import Set, Update
from boki.libs.bokistore.way import Way
from boki.libs.fold.arguments import check_count, check_list
from boki.libs.fold.steps import Steps
from boki.retry import Backoff

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

CONFLICTS: Final = Backoff(first_s=0.05, longest_s=2.0, tries=12)
"""How `flow.store.run` makes a transaction again that was in conflict. The pauses are timers of the workflow."""
MAX_PAGE: Final = 1_000


class _Way:
    """Carries out what a handle of the store wants, within the workflow."""

    async def run(self, work: Steps[R]) -> R:
        """See `boki.libs.bokistore.way.Way`."""
        machine = body_of("flow.store").machine
        try:
            wanted: Any = next(work)
            while True:
                asked = machine.start(wanted) if isinstance(wanted, StoreWork) else machine.ask(wanted)
                try:
                    answer = await asked
                except BokiError as error:
                    wanted = work.throw(error)
                else:
                    wanted = work.send(answer)
        except StopIteration as end:
            return cast("R", end.value)


_WAY: Final = cast("Way", _Way())


class _Current:
    """Objects as of the workflow's position; each update is a write of its own."""

    def look(self, name: str, query: Question) -> Steps[Any]:
        """See `Access`."""
        joined = body_of("flow.store").joined
        if joined is not None:
            return (yield from joined.access.look(name, query))
        return (yield cast("Any", Look(name, query)))

    def look_all(self, questions: Sequence[tuple[str, Question]]) -> Steps[list[Any]]:
        """See `Access`."""
        return look_all(self, questions)

    def prefetch(self, names: Sequence[str]) -> Steps[None]:  # noqa: ARG002
        """See `Access`: each question is answered from the views of this process."""
        yield from ()

    def version_of(self, name: str) -> Steps[int]:
        """See `Access`."""
        joined = body_of("flow.store").joined
        version: int
        if joined is not None:
            version = yield from joined.access.version_of(name)
            return version
        version = yield cast("Any", VersionAt(name))
        return version

    def change(self, name: str, update: Update, key: str | None = None) -> Steps[Any]:
        """See `Access`."""
        _refuse_key(key)
        joined = body_of("flow.store").joined
        if joined is not None:
            return (yield from joined.access.change(name, update))
        return (yield cast("Any", WriteWork(name, update)))


class _Drafted:
    """Objects within a transaction."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._loaded: set[str] = set()
        self.is_over = False

    def _load(self, names: Sequence[str]) -> Steps[Any]:
        if self.is_over:
            raise WrongState("this transaction has ended: begin another one")
        unknown = [name for name in dict.fromkeys(names) if name not in self._loaded]
        if unknown or self._draft.core is None:
            yield cast("Any", Load(self._draft, unknown))
            self._loaded.update(unknown)
        return self._draft.core

    def look(self, name: str, query: Question) -> Steps[Any]:
        """See `Access`."""
        self._draft.parts.used()
        core = yield from self._load([name])
        return (yield from core.look(name, query))

    def look_all(self, questions: Sequence[tuple[str, Question]]) -> Steps[list[Any]]:
        """See `Access`."""
        return look_all(self, questions)

    def prefetch(self, names: Sequence[str]) -> Steps[None]:
        """See `Access`."""
        yield from self._load(names)

    def version_of(self, name: str) -> Steps[int]:
        """See `Access`."""
        core = yield from self._load([name])
        version: int = yield from core.version_of(name)
        return version

    def change(self, name: str, update: Update, key: str | None = None) -> Steps[Any]:
        """See `Access`."""
        _refuse_key(key)
        self._draft.parts.used()
        core = yield from self._load([name])
        return (yield from core.change(name, update))


def _refuse_key(key: str | None) -> None:
    if key is not None:
        raise InvalidArgument("what a workflow writes is written once, so it has no key: leave it out", field="key")


class _Objects:
    """Whatever has objects."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @overload
    def object(self, name: str) -> StoredObject[Any]: ...

    @overload
    def object(self, name: str, type: type[T]) -> StoredObject[T]: ...

    def object(self, name: str, type: type[T] | None = None) -> StoredObject[T]:  # noqa: A002
        """The object of that name; see `boki.libs.bokistore.StoredObject`."""
        body_of("flow.store")
        return StoredObject(self._access, _WAY, name, type)


class FlowTransaction(_Objects):
    """A transaction of a workflow that has begun: see `FlowStore.transaction`."""

    def __init__(self) -> None:
        self.draft: Final = Draft()
        self.access: Final = _Drafted(self.draft)
        super().__init__(self.access)

    def append(self, data: bytes, tags: Iterable[str] = ()) -> None:
        """Append a record of the application to the book, if and when the transaction commits."""
        self.draft.parts.used()
        self.draft.extra.append(NewRecord(data, check_list(tags, "tags")))

    def check(self) -> None:
        """`WrongState` if it cannot be committed any more."""
        draft = self.draft
        draft.parts.check()
        if draft.calls:
            raise WrongState(f"{draft.calls} children of this transaction have not ended: await them in its block")
        if draft.failed:
            raise WrongState(f"this transaction cannot commit, because {draft.failed}: leave its block by that error")


_open: ContextVar[FlowTransaction | None] = ContextVar("boki_flow_transaction", default=None)


def open_transaction() -> FlowTransaction | None:
    """The transaction in whose block the code runs, or that its workflow has joined."""
    outer = _open.get()
    return outer if outer is not None and not outer.access.is_over else body_of("flow.store").joined


class TransactionBlock:
    """`async with` for a transaction: it commits at the end, unless the block raises."""

    def __init__(self) -> None:
        self._outer: tuple[FlowTransaction, int, int, int] | None = None
        self._inner: tuple[FlowTransaction, Token[FlowTransaction | None], Body] | None = None

    async def __aenter__(self) -> FlowTransaction:
        body = body_of("flow.store.transaction")
        outer = open_transaction()
        if outer is not None:
            if outer.draft.core is None and outer.draft.base is not None:
                await body.machine.ask(Load(outer.draft, []))  # what it begins with is not undone
            core = outer.draft.core
            mark = core.mark() if core is not None else 0
            self._outer = outer, mark, len(outer.draft.extra), outer.draft.parts.begin()
            return outer
        txn = FlowTransaction()
        self._inner = txn, _open.set(txn), body
        return txn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outer is not None:
            outer, mark, extra, part = self._outer
            outer.draft.parts.end(part, is_undone=kind is not None)
            if kind is not None:
                del outer.draft.extra[extra:]
                if outer.draft.core is not None:
                    outer.draft.core.go_back(mark, 0)
            return
        assert self._inner is not None, "it was entered"
        txn, token, body = self._inner
        _open.reset(token)
        txn.access.is_over = True
        if kind is None:
            txn.check()
        if kind is None and not txn.draft.is_empty:
            await body.machine.start(CommitWork(txn.draft))


class FlowStore(_Objects):
    """The store in the workflow's LogBook. Reads are as of the workflow's position, and need no record."""

    async def read(self, key: str, path: Path = "", default: Any = None) -> Any:
        """The value of the object `key`, or at a path in it; `default` if there is none."""
        return await self.object(key).get(path, default)

    async def write(self, key: str, value: Any, path: Path = "") -> None:
        """Put the value of the object `key`, or at a path in it. Once, however often the workflow is run."""
        await self.object(key).set(path, value)

    async def cond_write(self, key: str, value: Any, *, expected: Any, path: Path = "") -> bool:
        """Put the value if the one that is there is `expected` (None: there is none). Whether it was, in the log's
        order; what the workflow has read before does not matter.
        """
        segments = parse_path(path)
        if body_of("flow.store").joined is not None:
            missing = object()
            found = await self.object(key).get(path, missing)
            if not is_same(None if found is missing else found, plain(expected)):
                return False
            await self.object(key).set(path, value)
            return True
        work = WriteWork(check_object_name(key), Set(segments, data_of(value)), (segments, plain(expected)))
        return bool(await body_of("flow.store").machine.start(work))

    def transaction(self) -> TransactionBlock:
        """A transaction: `async with flow.store.transaction() as txn`. Inside of another one it is a part of that.

        All that it reads is as of the workflow's position. It commits when the block ends, in one append with the
        workflow's own record, or raises `ConflictError` and nothing was changed. If the block raises, nothing was.
        """
        return TransactionBlock()

    async def run(self, work: Callable[[FlowTransaction], Awaitable[R]], *, backoff: Backoff = CONFLICTS) -> R:
        """Do the work in a transaction, and again if it conflicts with others; what it returned when it committed."""
        tries = 0
        is_inner = open_transaction() is not None
        while True:
            try:
                async with self.transaction() as txn:
                    return await work(txn)
            except ConflictError:
                tries += 1
                if tries >= backoff.tries or is_inner:
                    raise
            if tries > 1:
                drawn = body_of("flow.store.run").random.random()
                await asyncio.sleep(backoff.pause_s(tries - 1, drawn))

    def transactional(self, work: Callable[Concatenate[FlowTransaction, P], Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """Make a function of a transaction one that is run in a transaction of its own, and again if that conflicts."""

        @wraps(work)
        async def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return await self.run(lambda txn: work(txn, *args, **kwargs))

        return run


class FlowLog:
    """The workflow's LogBook, read as of the workflow's position, without a record."""

    async def read(
        self, tag: str | None = None, *, start: int = 0, stop: int | None = None, limit: int = MAX_PAGE
    ) -> Page:
        """Records in ascending order, as `LogBook.read` gives them; those behind the position are not there yet."""
        check_count(limit, "limit", MAX_PAGE)
        page: Page = await body_of("flow.log").machine.ask(ReadLog(tag, start, stop, limit))
        return page

    async def last(self, tag: str | None = None) -> Record | None:
        """The last record of a tag, or None."""
        record: Record | None = await body_of("flow.log").machine.ask(ReadLast(tag))
        return record


STORE: Final = FlowStore(_Current())
LOG: Final = FlowLog()
