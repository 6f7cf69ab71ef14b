"""The controller sees to it that the cluster stays able to append: it ends terms, fences, and repairs.

Every controller process pings everybody (`boki.controller.heartbeats`) and knows the views, the members, the plan and
the placement; only one that leads and is connected to the coordinator acts. Two that act at once are safe: whatever
they decide becomes true by a compare-and-set, or by an entry of the metalog that may be requested any number of times.
Nothing is remembered that another controller would need: each step can be redone from the state of the nodes.

**Events** (`receive`): `InstallView`, `InstallMembership`, `InstallPlan`, `InstallPlacement` from the coordinator;
`Leadership`, `Installed`, `Placed` from the shell; `Pong`, `Sealed`, `SealedEntries`, `Completed`, `EntriesDropped`,
`ShardsFetched` from nodes.

**Effects**: `Send`; `Trace`; `Answer("install", View)`: install that view by compare-and-set, then tell
`Installed(view.term, won)`; `Answer("place", Placement)`: replace the placement if its version is still that of the
value, then tell `Placed(version, won)`. Both may be repeated while the shell is at it; it does one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from boki.effects import Effect
from boki.log.ids import NodeId, Term


@dataclass(frozen=True, slots=True)
class Leadership:
    """The shell's word: whether this process leads the controllers, and whether its session with the coordinator
    stands right now. Only a connected leader acts.
    """

    is_leader: bool
    is_connected: bool


@dataclass(frozen=True, slots=True)
class Installed:
    """What became of `Answer("install", view)` with `view.term`: it stands (`won`), or another view does."""

    term: Term
    won: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """What became of `Answer("place", placement)` with `placement.version`: it stands, or the placement had changed."""

    version: int
    won: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """How patient a controller is. Times in microseconds."""

    ping_interval_us: int = 100_000
    failure_timeout_us: int = 500_000
    """A node that answers no ping for so long is taken for dead; sealing by mistake costs a pause, never data."""
    fence_grace_us: int = 10_000_000
    """An engine that is no longer registered is fenced after so long; at once if its name has registered anew."""
    repair_after_us: int = 60_000_000
    """A node gone for so long is replaced by a spare one."""


class ControllerCore:
    """One controller. `incarnation` names the life of this process."""

    def __init__(self, node: NodeId, incarnation: int, config: ControllerConfig) -> None:
        self.node = node
        self.incarnation = incarnation
        self._config = config

    def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Effect]:  # noqa: ARG002
        """See `boki.effects.Core`."""
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:  # noqa: ARG002
        """See `boki.effects.Core`."""
        return ()

    def tick(self, now_us: int) -> Iterable[Effect]:  # noqa: ARG002
        """See `boki.effects.Core`."""
        return ()

    def status(self) -> dict[str, Any]:
        """What it sees and does, as JSON values."""
        return {"node": self.node}
