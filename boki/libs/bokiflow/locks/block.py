"""`flow.lock(key)`: the lock of a key, as the body of a workflow takes and leaves it."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any, Final

from boki import InvalidArgument, WrongState
from boki.libs.bokiflow.body import Body, body_of
from boki.libs.fold.arguments import check_key

MAX_LOCK_BYTES: Final = 200
"""Of a key: it is part of a tag."""


def check_lock_key(key: object) -> str:
    """`key`, if it may name a lock."""
    found = check_key(key, "key", MAX_LOCK_BYTES)
    if len(found.encode()) > MAX_LOCK_BYTES:
        raise InvalidArgument(
            f"the key of a lock has at most {MAX_LOCK_BYTES} bytes, and {found!r:.60} has {len(found.encode())}: name "
            "the lock by a digest of it",
            field="key",
        )
    return found


class HeldLock:
    """A lock that this workflow holds. `token` is the seqnum of the grant: higher for each later one of the key."""

    def __init__(self, key: str, token: int, body: Body) -> None:
        self.key = key
        self.token = token
        self._body = body
        self._request = body.machine.mailbox.locks.keys[key]

    def __repr__(self) -> str:
        return f"<lock {self.key!r} {self.token}>"

    async def unlock(self) -> None:
        """Leave the lock. Again: nothing happens."""
        if self._body.machine.mailbox.locks.keys.get(self.key) == self._request:
            await self._body.leave_lock(self.key)


class FlowLock:
    """`async with flow.lock(key) as held:`, or `held = await flow.lock(key)` and later `await held.unlock()`."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._held: HeldLock | None = None

    def __await__(self) -> Generator[Any, None, HeldLock]:
        return self._take().__await__()

    async def _take(self) -> HeldLock:
        body = body_of("flow.lock")
        if self._key in body.machine.mailbox.locks.keys:
            raise WrongState(
                f"this workflow holds lock {self._key!r} already, or waits for it: leave it first, and let the tasks "
                "of one workflow take turns by an asyncio.Lock"
            )
        return HeldLock(self._key, await body.take_lock(self._key), body)

    async def __aenter__(self) -> HeldLock:
        self._held = await self._take()
        return self._held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, GeneratorExit):
            return  # the workflow continues elsewhere, or later
        assert self._held is not None, "it was entered"
        await self._held.unlock()
