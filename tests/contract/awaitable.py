"""Blocking LogBooks for scenarios that await: each call runs in a thread of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")
InThread = Callable[..., Awaitable[Any]]
_END = object()
_METHODS = {"append", "append_many", "get", "read_next", "read_prev", "check_tail", "read"} | {
    "trim",
    "set_auxdata",
    "sync",
    "delete",
    "set_retention",
}


class AwaitableLogs:
    """What a scenario is given (`scenarios.logs.Logs`), over a `boki.blocking.Context` or a blocking client."""

    def __init__(self, logs: Any, in_thread: InThread) -> None:
        self._logs = logs
        self._in_thread = in_thread
        self.logbook = AwaitableLogBook(logs.logbook, in_thread)
        self.clock: Any = None

    def logbook_named(self, name: str) -> AwaitableLogBook:
        return AwaitableLogBook(self._logs.logbook_named(name), self._in_thread)

    async def books(self, *arguments: Any, **options: Any) -> Any:
        return await self._in_thread(lambda: self._logs.books(*arguments, **options))


class AwaitableLogBook:
    """The methods of an async LogBook over a blocking one."""

    def __init__(self, book: Any, in_thread: InThread) -> None:
        self._book = book
        self._in_thread = in_thread
        self.name = book.name

    @property
    def session(self) -> AwaitableSession:
        return AwaitableSession(self._book.session, self._in_thread)

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            raise AttributeError(name)

        async def call(*arguments: Any, **options: Any) -> Any:
            return await self._in_thread(lambda: getattr(self._book, name)(*arguments, **options))

        return call

    def subscribe(self, *arguments: Any, **options: Any) -> AwaitableSubscription:
        return AwaitableSubscription(self._book.subscribe(*arguments, **options), self._in_thread)


class AwaitableSession:
    """What scenarios use of a blocking session."""

    def __init__(self, session: Any, in_thread: InThread) -> None:
        self._session = session
        self._in_thread = in_thread

    async def ask(self, operation: Any) -> Any:
        return await self._in_thread(lambda: self._session.ask(operation))

    async def compare(self, book: str, rows: Any) -> Any:
        return await self._in_thread(lambda: self._session.compare(book, rows))


class AwaitableSubscription:
    """An async iterator over a blocking one."""

    def __init__(self, subscription: Any, in_thread: InThread) -> None:
        self._subscription = subscription
        self._in_thread = in_thread

    async def begin(self) -> None:
        await self._in_thread(self._subscription.begin)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._iterate(iter(self._subscription))

    def batches(self) -> AsyncIterator[Any]:
        return self._iterate(self._subscription.batches())

    async def _iterate(self, iterator: Any) -> AsyncIterator[Any]:
        while (item := await self._in_thread(lambda: next(iterator, _END))) is not _END:
            yield item
