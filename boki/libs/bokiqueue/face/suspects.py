"""Messages whose calls were lost together: a worker process that ran several calls has crashed, and one was to blame.

Nobody knows which. So none is blamed: the loss does not count as a delivery, and from then on such a message is called
alone, one of a module at a time. If the process crashes again with nothing else in it, that counts. Others may be in it
all the same, calls that no queue has made; so a message is excused a few times only, or it would crash them forever.

A gateway remembers so much of this as it has room for; it is no part of the queue.
"""

from __future__ import annotations

import asyncio
from typing import Final

from boki.errors import CallLost
from boki.log.operations import Failure

MAX_EXCUSES: Final = 3
MAX_REMEMBERED: Final = 10_000

Name = tuple[str, str, str, str]
"""A message: the book, the queue, the group, its id."""


class Suspects:
    """The suspects of one gateway."""

    def __init__(self) -> None:
        self._excuses: dict[Name, int] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    def __contains__(self, name: Name) -> bool:
        return name in self._excuses

    def excuse(self, names: list[Name], failure: Failure) -> bool:
        """Whether the failure is not to count, because it may be another call's; if so they are suspects now."""
        is_shared = failure.code == CallLost.code and failure.details.get("calls", 1) > 1
        if not is_shared or any(self._excuses.get(name, 0) >= MAX_EXCUSES for name in names):
            return False
        for name in names:
            self._excuses[name] = self._excuses.pop(name, 0) + 1
        while len(self._excuses) > MAX_REMEMBERED:
            del self._excuses[next(iter(self._excuses))]
        return True

    def clear(self, names: list[Name]) -> None:
        """These are done."""
        for name in names:
            self._excuses.pop(name, None)

    def turn(self, module: str) -> asyncio.Lock:
        """Held by the one suspect of the module that is called now."""
        return self._turns.setdefault(module, asyncio.Lock())
