"""Contexts of tests before they are opened: without `with`, they say what to write."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

T = TypeVar("T")


class UnopenedContext(AbstractAsyncContextManager[T]):
    """What `async with` opens. Everything else raises `AttributeError` or `TypeError` with the line to write."""

    def __init__(self, opened: AbstractAsyncContextManager[T], call: str) -> None:
        """`call`: how it was made, for the message."""
        self._opened = opened
        self._remedy = f"{call} must be opened first: write `async with {call} as ctx:`"

    async def __aenter__(self) -> T:
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, traceback)

    if not TYPE_CHECKING:  # type checkers find such mistakes because these methods do not exist

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(self._remedy, name=name)

        def __enter__(self) -> NoReturn:
            raise TypeError(self._remedy)

        def __exit__(self, *_: Any) -> None:
            """Never: `__enter__` raises."""


class UnopenedBlockingContext(AbstractContextManager[T]):
    """The same for `with`."""

    def __init__(self, opened: AbstractContextManager[T], call: str) -> None:
        """`call`: how it was made, for the message."""
        self._opened = opened
        self._remedy = f"{call} must be opened first: write `with {call} as ctx:`"

    def __enter__(self) -> T:
        return self._opened.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._opened.__exit__(kind, error, traceback)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(self._remedy, name=name)

        async def __aenter__(self) -> NoReturn:
            raise TypeError(self._remedy)

        async def __aexit__(self, *_: Any) -> None:
            """Never: `__aenter__` raises."""
