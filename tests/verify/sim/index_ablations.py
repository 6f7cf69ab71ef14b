"""Safeguards of what the index counts, switched off: see `boki.engine.index.rows`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boki.engine.index.rows import Row
from boki.verify.sim.options import Options
from tests.verify.sim.without import without


def no_memory_of_the_trimmed() -> Any:
    """A trim of a tag forgets how many records it took away."""
    trim = Row.trim
    return without(Row, "trim", lambda self, floor, _removed: trim(self, floor, 0))


def no_durable_forgetting() -> Any:
    """What a tag has had is forgotten in memory, and not on the disk."""

    def in_memory(self: Row) -> None:
        if self.floor:
            self._floor, self._removed, self._base = 0, 0, None

    return without(Row, "forget", in_memory)


def counts(options: Options) -> bool:
    return options.counted > 0


ABLATIONS: dict[str, Callable[[], Any]] = {
    "counts outlive trims": no_memory_of_the_trimmed,
    "durable forgetting": no_durable_forgetting,
}
