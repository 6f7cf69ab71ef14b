"""What dispatch asks of its shell, what it lets a pool hold, and what it reports of its pools."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from boki.dispatch.slots import PoolKey
from boki.log.limits import MIB
from boki.protocol.calls import Call, Outcome
from boki.protocol.effects import Trace
from boki.retry import Backoff

GRACE_US: Final = 500_000
"""How long an overdue call may take to let itself be cancelled, before its worker is killed."""
LEAVE_US: Final = 2_000_000
"""How long a worker without calls may take to exit."""
STALL_US: Final = 500_000
"""A worker that has not begun what it was sent this long ago gets nothing more until it has."""
BACKOFF: Final = Backoff(first_s=0.1, longest_s=10.0, jitter=0.0)
"""How long no worker is started after a failed start, by the number of failures in a row."""
RETRY_AFTER_S: Final = 1.0
"""What overloaded callers are told to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one pool may hold, how many workers the engine runs, and how long they may take their time."""

    queued_calls: int = 10_000
    held_bytes: int = 64 * MIB
    """Payloads of the calls that are queued or running."""
    waiting_per_worker: int = 1024
    """Calls of an `async` worker that wait for a child, in addition to those that run."""
    extra_workers: int = 32
    """Blocking workers beyond `max_workers`, while calls wait for a child in this many others."""
    engine_workers: int = 512
    """Worker processes of all pools together."""
    starting_workers: int = 8
    """Workers of a pool that import its module at the same time."""
    idle_us: int = 60_000_000
    """A worker that had nothing to do for this long leaves, unless it belongs to the least that was asked for."""
    start_us: int = 30_000_000
    """How long a worker may take to import its module."""


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """Tell the caller how its call has ended: once for each ticket."""

    ticket: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Fork a worker for this pool. → `worker_ready`, `worker_broken` or `worker_exited`"""

    worker: int
    pool: PoolKey
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class SendCall:
    """Give the call to the worker. → `call_ended`"""

    worker: int
    ticket: int
    call: Call


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Tell the worker that the call is no longer awaited. → `call_ended`"""

    worker: int
    ticket: int


@dataclass(frozen=True, slots=True)
class SendChild:
    """Tell the worker how the call that it asked for under this request id has ended."""

    worker: int
    request: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RetireWorker:
    """Let the worker go; it has nothing to do. → `worker_exited`"""

    worker: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End the worker and all that it has started. → `worker_exited`"""

    worker: int


DispatchEffect = AnswerCall | Trace | StartWorker | SendCall | SendCancel | SendChild | RetireWorker | KillWorker


class PoolStats(msgspec.Struct, frozen=True, kw_only=True):
    """A module's functions of one kind, now; what is counted is counted since the engine started."""

    module: str
    is_async: bool
    version: int
    workers: int
    """Worker processes that take calls."""
    starting: int
    running: int
    """Calls that hold a slot."""
    waiting: int
    """Calls in a worker that wait for a child call."""
    queued: int
    starts: int
    cold_starts: int
    """Starts while no worker took calls."""
    exits: int
    """Workers that ended without being told to."""
    kills: dict[str, int]
    """Workers killed, by reason: deadline, memory, protocol, start, stop, replaced."""


@dataclass(slots=True)
class Counts:
    """What `PoolStats` counts over all versions of a module."""

    starts: int = 0
    cold_starts: int = 0
    exits: int = 0
    kills: dict[str, int] = field(default_factory=dict)
