"""Log lines of production code, as part of a simulated run's story."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from boki.errors import BokiError
from boki.verify.sim.nodes import World


class _Story(logging.Handler):
    """What the code says in its log is part of the story; what it says of its own bugs is one."""

    def __init__(self, world: World, who: str) -> None:
        super().__init__(logging.INFO)
        self._world = world
        self._who = who

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._world.clock.note(f"{self._who}: {text}")
        if record.exc_info is not None and not isinstance(record.exc_info[1], BokiError):
            self._world.raised.append(f"{self._who}: {text}: {record.exc_info[1]!r}")


@contextmanager
def heard(world: World, name: str, who: str) -> Iterator[None]:
    """Let the run hear what is said to the logger of that name; the story knows it as `who`."""
    logger, story = logging.getLogger(name), _Story(world, who)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(story)
    try:
        yield
    finally:
        logger.removeHandler(story)
        logger.propagate = propagated
