"""Objects of a workflow's own LogBook, read as of its position and written exactly once: what `flow.store` stands on.

`storing` has the faces, for `async def` workflows, and `storing_blocking` those for `def` workflows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar, Token
from typing import Any, Final, TypeVar, cast

from boki import BokiError, InvalidArgument, NewRecord, WrongState
from boki.libs.bokiflow.asking import Draft, Load, Look, StoreWork, VersionAt, WriteWork
from boki.libs.bokiflow.body import body_of
from boki.libs.bokiflow.threads import asked
from boki.libs.bokistore.accesses import look_all
from boki.libs.bokistore.json_values import is_equal, is_same
from boki.libs.bokistore.parts import OWN_PARTS
from boki.libs.bokistore.queries import Question
from boki.libs.bokistore.updates import Update
from boki.libs.fold.arguments import check_list
from boki.libs.fold.steps import Steps

R = TypeVar("R")


class FlowWay:
    """Carries out what a handle of the store wants, within an `async def` workflow."""

    async def run(self, work: Steps[R]) -> R:
        """See `boki.libs.bokistore.way.Way`."""
        machine = body_of("flow.store").machine
        try:
            wanted: Any = next(work)
            while True:
                doing = machine.start(wanted) if isinstance(wanted, StoreWork) else machine.ask(wanted)
                try:
                    answer = await doing
                except BokiError as error:
                    wanted = work.throw(error)
                else:
                    wanted = work.send(answer)
        except StopIteration as end:
            return cast("R", end.value)

    async def ask(self, question: Any, what: str = "flow.store") -> Any:
        """What the log or the store says, as of the workflow's position. `what`: who asks, for refusals."""
        return await body_of(what).machine.ask(question)

    async def write(self, work: StoreWork) -> Any:
        """Write once; what it came to."""
        machine = body_of("flow.store").machine
        if machine.next_end is not None:
            work.recognize(machine.next_end.digest)
        return await machine.start(work)

    async def sleep(self, seconds: float) -> None:
        """Wait, by a timer of the workflow."""
        await asyncio.sleep(seconds)


class BlockingFlowWay:
    """The same for the thread of a `def` workflow."""

    def run(self, work: Steps[R]) -> R:
        """See `FlowWay`."""
        return asked(in_block(lambda: WAY.run(work)), "flow.store")

    def ask(self, question: Any, what: str = "flow.store") -> Any:
        """See `FlowWay`."""
        return asked(in_block(lambda: WAY.ask(question)), what)

    def write(self, work: StoreWork) -> Any:
        """See `FlowWay`."""
        return asked(in_block(lambda: WAY.write(work)), "flow.store")

    def sleep(self, seconds: float) -> None:
        """See `FlowWay`."""
        asked(lambda: WAY.sleep(seconds), "flow.store.run")


WAY: Final = FlowWay()
BLOCKING_WAY: Final = BlockingFlowWay()


class Current:
    """Objects as of the workflow's position; each update is a write of its own, or a part of the open transaction."""

    def look(self, name: str, query: Question) -> Steps[Any]:
        """See `Access`."""
        txn = transaction_here()
        if txn is not None:
            return (yield from txn.access.look(name, query))
        return (yield cast("Any", Look(name, query)))

    def look_all(self, questions: Sequence[tuple[str, Question]]) -> Steps[list[Any]]:
        """See `Access`."""
        return look_all(self, questions)

    def prefetch(self, names: Sequence[str]) -> Steps[None]:  # noqa: ARG002
        """See `Access`: each question is answered from the views of this process."""
        yield from ()

    def version_of(self, name: str) -> Steps[int]:
        """See `Access`."""
        txn = transaction_here()
        version: int
        if txn is not None:
            version = yield from txn.access.version_of(name)
            return version
        version = yield cast("Any", VersionAt(name))
        return version

    def change(self, name: str, update: Update, key: str | None = None) -> Steps[Any]:
        """See `Access`."""
        _refuse_key(key)
        txn = transaction_here()
        if txn is not None:
            return (yield from txn.access.change(name, update))
        return (yield cast("Any", WriteWork(name, update)))


class Drafted:
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
            self._draft.use(unknown)
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


class Part:
    """A block inside of a transaction's block, which may be undone alone."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._mark = 0 if draft.core is None else draft.core.mark()
        self._extra_count = len(draft.extra)
        self._part = draft.parts.begin()

    def end(self, *, is_undone: bool) -> None:
        """The block has ended; take back what was done in it, if it is undone."""
        draft = self._draft
        draft.parts.end(self._part, is_undone=is_undone)
        if is_undone:
            del draft.extra[self._extra_count :]
            if draft.core is not None:
                draft.core.go_back(self._mark, 0)


class OpenTransaction:
    """A transaction of a workflow that has begun, and what decides whether it may commit."""

    def __init__(self) -> None:
        self.draft: Final = Draft()
        self.access: Final = Drafted(self.draft)

    def append(self, data: bytes, tags: Iterable[str]) -> None:
        """Append a record of the application with the commit."""
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


_JOINS_BLOCKS: Final = "store in transactions"
"""The decision of a workflow that uses `flow.store` inside of a transaction's block."""

_open: ContextVar[OpenTransaction | None] = ContextVar("boki_flow_transaction", default=None)


def open_transaction() -> OpenTransaction | None:
    """The transaction in whose block the code runs, or that its workflow has joined."""
    outer = _open.get()
    return outer if outer is not None and not outer.access.is_over else body_of("flow.store").joined


def transaction_here() -> OpenTransaction | None:
    """The transaction that objects of `flow.store` are read and written in; None: each write is by itself.

    Journals of workflows that had come to a block before this was so have such a write by itself: it stays that.
    """
    found, body = open_transaction(), body_of("flow.store")
    if found is None or found is body.joined:
        return found
    return found if body.machine.decide(_JOINS_BLOCKS, new=True, old=False) else None


_ORDER_OF_KEYS: Final = "any order of keys"
"""The decision of a workflow in whose transaction a value is the expected one but for the order of keys."""


def is_expected(found: Any, expected: Any) -> bool:
    """Whether two JSON values are equal. Of the order of keys JSON says nothing; it counted where a journal continues
    from before that was so.
    """
    if is_same(found, expected):
        return True
    return is_equal(found, expected) and bool(body_of("flow.store").machine.decide(_ORDER_OF_KEYS, new=True, old=False))


def enter_transaction(txn: OpenTransaction) -> Token[OpenTransaction | None]:
    """From here on the code is in its block; `leave_transaction` takes what is returned."""
    return _open.set(txn)


def leave_transaction(token: Token[OpenTransaction | None]) -> None:
    """The code is where it was before."""
    _open.reset(token)


def in_block(request: Callable[[], Awaitable[R]]) -> Callable[[], Coroutine[Any, Any, R]]:
    """A request of a thread, which the loop carries out in the transaction and the parts in which the thread is."""
    txn, parts = _open.get(), OWN_PARTS.get()

    async def carried_out() -> R:
        tokens = _open.set(txn), OWN_PARTS.set(parts)
        try:
            return await request()
        finally:
            _open.reset(tokens[0])
            OWN_PARTS.reset(tokens[1])

    return carried_out
