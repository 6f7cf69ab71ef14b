"""What a core may ask of its shell, and how a shell drives a core.

A core is a synchronous class without I/O, clock or randomness: events go in with the time, effects come out. The shell
(`boki.host` for real, a simulated world in tests) carries the effects out, in the order in which they are listed.

What must follow a disk write rides on it: `Store(writes, then=...)`. A shell performs `then` only after the writes are
synced, so that acknowledging early cannot be written by accident (etcd's `msgsAfterAppend`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from boki.log.ids import NodeId


@dataclass(frozen=True, slots=True)
class Send:
    """Give `message` to a node. It may be lost, repeated or late; between two nodes it keeps its order."""

    to: NodeId
    message: Any


@dataclass(frozen=True, slots=True)
class Put:
    """Write `value` under `key`."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove every key with `start <= key < stop`."""

    start: bytes
    stop: bytes


@dataclass(frozen=True, slots=True)
class Store:
    """Make the writes durable, together; only then perform `then`. Stores of one core become durable in order.

    `is_vote`: what it holds must outlive a power cut even where `durability = "memory"` gives records up: seals, and
    who has led a term. Without them two histories could be told.
    """

    writes: Sequence[Put | Delete]
    then: Sequence[Effect] = ()
    is_vote: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """Read the last key that is `<= key` and at least `floor` (so: the batch that covers a local id), then continue
    until `stop` or `max_bytes`; the core then receives `Loaded(token, rows)`.
    """

    token: Any
    key: bytes
    floor: bytes
    stop: bytes
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a `Load` found: (key, value) in ascending order. `error` says what the disk could not read."""

    token: Any
    rows: Sequence[tuple[bytes, bytes]]
    error: str = ""


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """The shell's word to a core about its disk.

    Without `has_room` the reserve is touched: no new records should come. What is on its way may still be stored, so
    that nobody is left in doubt, until `may_store` is false, too.
    """

    has_room: bool
    may_store: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """Give `value` to whoever waits under `token` in this process."""

    token: Any
    value: Any


@dataclass(frozen=True, slots=True)
class Trace:
    """Something an operator should see. Cores do not log; the shell does."""

    level: int
    text: str


Effect = Send | Store | Load | Answer | Trace


class DiskUnreadable(Exception):
    """A disk cannot be read where the node needs it: the node stops, and the others continue without it.

    Raised by a `DiskReader`, and by a core that has no use for a `Loaded` without its rows.
    """


class DiskReader(Protocol):
    """How a core looks at its own disk: when it starts, and an index whenever it needs rows that are not in memory.

    `DiskUnreadable` if it cannot be read there.
    """

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`."""

    def scan(self, start: bytes, stop: bytes, *, backward: bool = False) -> Iterable[tuple[bytes, bytes]]:
        """All (key, value) with `start <= key < stop`, ascending; descending if `backward`.

        Lazy: a caller may stop. The first look fixes what is seen: what is written afterwards does not show.
        """


class Core(Protocol):
    """A role's decisions. `now_us` is microseconds since the epoch and never goes back within one run of a node."""

    def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Effect]:
        """Take in one message. Cheap: what can be decided once for many messages is left to `settle`."""

    def settle(self, now_us: int) -> Iterable[Effect]:
        """All messages that had arrived are taken in: decide what follows from them together."""

    def tick(self, now_us: int) -> Iterable[Effect]:
        """Time has passed: called about every 50 ms. What was lost is repeated, what is overdue is given up."""
