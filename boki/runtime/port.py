"""The one seam between the LogBook classes and whatever carries their operations to a log."""

from __future__ import annotations

from typing import Protocol

from boki.log.metalog import Positions
from boki.log.operations import Answer, Operation


class LogPort(Protocol):
    """A way to a log for `async` code: a worker's socket, HTTP, an engine in this process, or a `MemoryLog`."""

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """Carry out the operation for a caller that has seen `positions`, and raise them to what it has seen then.

        Raises the `BokiError` that the log answers; `DeadlineExceeded` after `timeout_s`; `ConnectionLost` if the way
        to the log breaks before the answer.
        """


class BlockingLogPort(Protocol):
    """The same for blocking code."""

    def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `LogPort.request`."""
