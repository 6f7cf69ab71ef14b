"""Taking over from engines that are lost: which they are, that they are fenced, and who inherits their calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from boki.books.calls.call_book import CallBook
from boki.books.calls.lost_owners import LostOwners
from boki.books.calls.waiting import NOBODY, Owner
from boki.errors import BokiError
from boki.log.membership import Membership

_log = logging.getLogger("boki.protocol.calls")

_WATCH_S: Final = 0.5
_TAKE_AGAIN_S: Final = 1.0

Fence = Callable[[int], Awaitable[None]]
"""Returns once an engine incarnation can append no more, and all that it has appended can be read here."""


class Takeover:
    """Looks at the owners of unfinished calls while there is one that may be lost. `spawn` runs work of its own."""

    def __init__(
        self,
        book: CallBook,
        fence: Fence | None,
        *,
        grace_us: int,
        clock: Callable[[], int],
        is_open: Callable[[], bool],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._book = book
        self._fence = fence
        self._lost = LostOwners(book.me, grace_us)
        self._clock = clock
        self._is_open = is_open
        self._spawn = spawn
        self._taking: set[Owner] = set()
        self._timer: asyncio.TimerHandle | None = None

    def on_membership(self, membership: Membership) -> None:
        """Who is registered now."""
        self._lost.on_membership(membership)
        self.watch()

    def stop(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()

    def watch(self) -> None:
        """Take over from owners that are lost; look again while there is one that may be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        owners = [owner for owner in self._book.ledger.owners() if owner != self._book.me]
        if not owners or not self._is_open():
            return
        for owner in self._lost.among(owners, self._clock()):
            if owner not in self._taking:
                self._taking.add(owner)
                self._spawn(self._take_over(owner))
        if self._lost.has_missing or self._taking:
            self.watch_soon()

    def watch_soon(self) -> None:
        """There is an owner whose engine may be gone already."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WATCH_S, self.watch)

    async def _take_over(self, owner: Owner) -> None:
        _log.info("taking over the logged calls of engine %s, incarnation %d", *owner)
        try:
            if self._fence is not None and owner != NOBODY:
                await self._fence(owner.incarnation)
            await self._book.take_over(owner)
        except BokiError as error:
            _log.warning("taking over from engine %s failed, to be repeated: %s", owner.node, error)
        # not at once, so that meanwhile the fold learns who has taken over
        asyncio.get_running_loop().call_later(_TAKE_AGAIN_S, self._taking.discard, owner)
