"""Messages that handlers cannot take, or that have come before: what is done about them is a decision of the workflow.

Signals of another type are dropped, because anybody who may send one could end the workflow by it.
"""

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


def takes_again(machine: Deciding, update: str) -> bool:
    """Whether an update is answered whose id the log has forgotten since it was used for one before: not where the
    journal is of a workflow that had passed it by, as all did.
    """
    return bool(machine.decide(f"again update {update}", new=True, old=False))
