"""What a core may ask of its shell, and how a shell drives a core.

A core is a synchronous class without I/O, clock or randomness: events go in with the time, effects come out. The shell
(`boki.host` for real, a simulated world in tests) carries the effects out, in the order in which they are listed.

What must follow a disk write rides on it: `Store(writes, then=...)`. A shell performs `then` only after the writes are
synced, so that acknowledging early cannot be written by accident (etcd's `msgsAfterAppend`).
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, Generic, Protocol, TypeVar, get_args, get_origin, runtime_checkable

from boki.errors import BokiError
from boki.log.ids import NodeId
from boki.log.membership import Placement
from boki.log.metalog import Positions
from boki.log.operations import Appended, Books, Compared, Done, Failure, Found
from boki.log.view import View
from boki.protocol.call_messages import CallAccepted, TellCall
from boki.protocol.messages import Message

Token = Hashable
"""What a shell names a request by. A core hands it back, and knows nothing else of it."""
_T_co = TypeVar("_T_co", covariant=True)
_In_contra = TypeVar("_In_contra", contravariant=True)


class Note:
    """Base of what a core tells itself by `Send`, mostly behind a disk write. It never leaves its node."""

    __slots__ = ()

    @property
    def may_wait(self) -> bool:
        """Whether a shell may leave it for the next message or tick, because nothing is decided by it alone."""
        return False


@dataclass(frozen=True, slots=True)
class Send:
    """Give `message` to a node. It may be lost, repeated or late; between two nodes it keeps its order.

    `can_wait`: nobody waits for it, so it may travel with the next message to the same process, about a millisecond
    later at most.
    """

    to: NodeId
    message: Message | Note
    can_wait: bool = False


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

    `can_wait`: nothing waits for it, so a log that is shared is written and synced with the next store that cannot.
    """

    writes: Sequence[Put | Delete]
    then: Sequence[Effect] = ()
    is_vote: bool = False
    can_wait: bool = False


@dataclass(frozen=True, slots=True)
class Load(Generic[_T_co]):
    """Read the last key that is `<= key` and at least `floor` (so: the batch that covers a local id), then continue
    until `stop` or `max_bytes`; the core then receives `Loaded(token, rows)`.
    """

    token: _T_co
    key: bytes
    floor: bytes
    stop: bytes
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Loaded(Generic[_T_co]):
    """What a `Load` found: (key, value) in ascending order. `error` says what the disk could not read."""

    token: _T_co
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
    reserve_bytes: int = 0
    """How much is kept free."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Something an operator should see. Cores do not log; the shell does."""

    level: int
    text: str


# engine -> its shell


@dataclass(frozen=True, slots=True)
class Answer:
    """How the operation under `token` has ended, and what its caller has seen now."""

    token: Token
    answer: Appended | Found | Compared | Books | Done | CallAccepted | TellCall | Failure | BokiError
    positions: Positions


class EngineNews(Enum):
    """What an engine's shell hears of its life cycle."""

    BOOTED = "booted"
    """It has been decided which index it begins from: `Bootstrap.engine` is there."""
    READY = "ready"
    """It has caught up and may append."""
    SAVED = "saved"
    """A checkpoint of the index is durable. After each."""
    CLOSED = "closed"
    """After `close`: all that was taken is ordered, and no shard is open."""
    FENCED = "fenced"
    """This incarnation was presumed lost: its shell starts another one."""
    STALE = "stale"
    """This index cannot continue, because what it lacks is kept by nobody any more. Its shell starts the role again; a
    `boki.engine.checkpoint.bootstrap.Bootstrap` then takes a newer index from the storage nodes.
    """


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the shell that the engine has come to this stage."""

    news: EngineNews


# controller -> its shell


@dataclass(frozen=True, slots=True)
class ProposeView:
    """Install the view by compare-and-set."""

    view: View


@dataclass(frozen=True, slots=True)
class ProposePlacement:
    """Replace the placement if its version is still that of this one."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class ReleaseSlots:
    """Free the index slots of these engines, if they have any."""

    engines: tuple[NodeId, ...]


EngineEffect = Answer | Announce
ControllerEffect = ProposeView | ProposePlacement | ReleaseSlots
RoleEffect = EngineEffect | ControllerEffect
"""What the shell of a role carries out by itself; all else any shell does alike."""
Effect = Send | Store | Load[object] | Trace | RoleEffect


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


def kinds(union: types.UnionType) -> frozenset[type]:
    """The classes of a union.

    >>> sorted(kind.__name__ for kind in kinds(Put | Delete))
    ['Delete', 'Put']
    """
    return frozenset(get_origin(member) or member for member in get_args(union))


class Core(Protocol[_In_contra]):
    """A role's decisions. `now_us` is microseconds since the epoch and never goes back within one run of a node."""

    HEARS: ClassVar[frozenset[type]]
    """The classes of what `receive` takes. A shell drops what is of another."""

    def receive(self, sender: NodeId, message: _In_contra, now_us: int) -> Iterable[Effect]:
        """Take in one message. Cheap: what can be decided once for many messages is left to `settle`."""

    def settle(self, now_us: int) -> Iterable[Effect]:
        """All messages that had arrived are taken in: decide what follows from them together."""

    def tick(self, now_us: int) -> Iterable[Effect]:
        """Time has passed: called about every 50 ms. What was lost is repeated, what is overdue is given up."""


REST_US: Final = 500_000
"""A core that rests is ticked so far apart."""
NEVER_US: Final = 1 << 62


@runtime_checkable
class Resting(Protocol):
    """A core that says when nothing waits in it, so that a shell need not wake an idle process at every tick."""

    def rests_until(self, now_us: int) -> int:
        """Until when nobody needs a tick, if nothing is heard before; not later than `now_us`: it does not rest.

        A tick before that is allowed, and may repeat something.
        """
