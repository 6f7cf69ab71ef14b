"""The way from a call to the objects of one book, for plain functions: made from `way`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from boki.blocking import LogBook
from boki.libs.bokistore.maps import Shape
from boki.libs.bokistore.memory import BlockingMemory
from boki.libs.bokistore.reading import Reader
from boki.libs.fold import steps
from boki.libs.fold.steps import Steps

R = TypeVar("R")


class Way:
    """What a call and the process that it runs in have in common: a LogBook, and what is remembered of its objects."""

    def __init__(self, logbook: LogBook) -> None:
        self.logbook = logbook
        self._memory: BlockingMemory = logbook.session.shared(BlockingMemory)
        self.reader: Reader = self._memory.reader(logbook.name)
        self.reader.is_far = logbook.session.has_gateway
        self.shapes: dict[str, Shape] = self.reader.shapes
        self.new_nonce: Callable[[], bytes] = self._memory.new_nonce

    def run(self, work: Steps[R]) -> R:
        """Carry it out; then save what has grown, before it returns."""
        result = steps.run_blocking(work, self.logbook, lock=self._memory.lock)
        self.tend()
        return result

    def tend(self) -> None:
        """Save what has grown, and do what follows a write, before it returns."""
        if self.reader.due or self.reader.follow_ups:
            self._memory.save_now(self.reader, self.logbook)
