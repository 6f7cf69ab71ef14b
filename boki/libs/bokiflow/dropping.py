"""Signals that their handlers cannot take: dropped, because anybody who may send one could end the workflow by it."""

from __future__ import annotations

import logging
from typing import Any, Final, Protocol

_log = logging.getLogger("boki.flow")

_SAID_CHARS: Final = 200


class Deciding(Protocol):
    """The machine of the workflow."""

    name: str
    is_live: bool

    def decide(self, name: str, new: Any, old: Any) -> Any:
        """See `boki.libs.bokiflow.machine.Machine.decide`."""


def drops(machine: Deciding, signal: str, error: Exception) -> bool:
    """Whether the signal is dropped: not where the journal is of a workflow that had failed by it, as all did before.

    The first one of each name is a decision in the timeline, with the error.
    """
    why = f"{error}"[:_SAID_CHARS] or type(error).__name__
    is_dropped = bool(machine.decide(f"drop signal {signal}", new=why, old=""))
    if is_dropped and machine.is_live:
        _log.warning("workflow %s has dropped a signal %s: %s", machine.name, signal, error)
    return is_dropped
