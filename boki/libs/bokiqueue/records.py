"""What a queue writes into its LogBook: the records, their tags, and how both are spelled.

A record is one byte of version and a MessagePack array whose first item says which kind it is. Messages stand in it as
they are; a record of `push_many` holds many. Anyone who may append to the book may append under these tags, so each
record is checked before it counts (see `validity`); what fails is passed by, by every fold alike.

The format of a queue is that of its newest settings record. If that is later than this code knows, the queue is refused
by name (`VersionTooNew`); in a queue of this format, records that say they have a later one are strangers'. So a later
format begins with a settings record in that format, and adding a field to any record below needs a later format: a fold
that did not know the field would decide otherwise than the others.

Tags of queue `q` (they begin with "!", so trims of the whole book spare them):

==============  ======================================================================================
`!q:q:3`        the **stream** of shard 3: every record that its fold reads
`!q:q`          the **feed**: the streams of all shards, for who follows several (absent if there is one shard)
`!qc:q:3`       checkpoints of shard 3
`!qf:q:3`       fences of shard 3: records that take leases away, be it that they have run out or were given up
`!qs:q`         the queue's settings; the last record counts
`!queues`       settings of all queues of the book, for lists, with `!queues:q` to name them
==============  ======================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec

from boki import CorruptData, VersionTooNew

VERSION: Final = 2
"""The newest version of records. `Setup` has it, so that what cannot read the others refuses the queue by name."""
_OLDEST: Final = 1
"""The version of records that have not changed since."""

QUEUES_TAG: Final = "!queues"
NOW: Final = (1 << 63) - 1
"""As the start of a group: after all that is there."""

MAX_KEY_BYTES: Final = 255
"""Of an idempotency key of the log."""

ACK: Final = 0
NACK: Final = 1
EXTEND: Final = 2
RELEASE: Final = 3
BURY: Final = 4
REDRIVE: Final = 5
PURGE: Final = 6
GIVE_BACK: Final = 7
"""Nobody has received them: pops of this very taker, and leases, can be taken again as if they had not been."""

LOST: Final = 255
"""The form of a body that could not be read any more when it was carried."""


class Settings(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What holds for a queue. All times by the log's clock."""

    shards: int = 1
    max_deliveries: int = 10
    """A message that was leased so often without an ack becomes a dead letter; 0: never."""
    max_length: int = 0
    """Pushes wait, or are refused, while the queue has so many messages to be taken; 0: no bound."""
    retain_us: int = 0
    """So long messages stay readable for new groups after every group has passed them."""


class Push(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """Messages, in order. `forms` has one byte for all of them or one for each: how bodies were made from values."""

    shard: int
    forms: bytes
    bodies: list[bytes]
    delay_us: int = 0
    ttl_us: int = 0
    keys: list[str] = []
    """Group keys, one for each message, "" for none; or empty."""


class Take(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Give the group's next `count` messages: for good if `lease_us` is 0. `op` names the request (see `state`)."""

    group: str
    count: int
    lease_us: int = 0
    op: str = ""


class Credit(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A standing take: give the group's next messages as they come, `granted` of them in all (see `standing`).

    `since`: the act that began it, 0: this one. What has ended since does not begin again by a late act.
    """

    group: str
    lease_us: int
    granted: int
    since: int = 0


class Settle(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What has become of messages: (position, token) each. `span_us`: a nack's delay, or the length of a lease."""

    group: str
    verb: int
    messages: list[tuple[int, int]]
    span_us: int = 0
    reason: str = ""


class Act(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """What the consumers of one process want at once. (`taker`, `number`) is counted once, however often it stands."""

    shard: int
    taker: bytes
    number: int
    takes: list[Take] = []
    settles: list[Settle] = []
    fences: list[tuple[str, int, int]] = []
    """(group, position, token) of leases that are taken away if they have run out by the time of this record."""
    kept_from: int = 0
    """Pops of this taker by records from here on may still be given back; 0: what it was given has been received."""

    @property
    def granted(self) -> Sequence[Credit]:
        """Credit for standing takes."""
        return ()

    @property
    def kinds(self) -> set[tuple[str, int]]:
        """Of what it asks for: the group, and the length of the lease."""
        takes = {(take.group, take.lease_us) for take in self.takes}
        return takes | {(credit.group, credit.lease_us) for credit in self.granted}


class Grant(Act, frozen=True, array_like=True, tag=11, forbid_unknown_fields=True):
    """An act that grants credit besides."""

    credits: list[Credit] = []

    @property
    def granted(self) -> Sequence[Credit]:
        """See `Act.granted`."""
        return self.credits


class Done(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """Acks that were appended together with effects, under the condition that no fence came first."""

    shard: int
    group: str
    messages: list[tuple[int, int]]
    by: bytes = b""
    """Names the block whose effects these are: of several for one lease each looks whether it is this one."""


class Setup(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """The queue's settings from here on. `is_first`: it begins here; what was before was deleted, with its book."""

    shard: int
    settings: Settings
    is_first: bool = False


class OpenGroup(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """A consumer group that begins with the first kept message that is not before either start.

    If there is such a group nothing happens, unless it is to begin anew: then what it has leased is forgotten.
    """

    shard: int
    group: str
    start_seqnum: int = 0
    start_time_us: int = 0
    is_anew: bool = False


class DropGroup(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    """The group is no more, and nothing is kept for it."""

    shard: int
    group: str


class Saved(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=7):
    """The checkpoint in the records of the checkpoint tag from `first` on covers the stream up to `covers`."""

    shard: int
    covers: int
    first: int
    floor: int
    """Nothing below this is needed by that state."""
    grown_bytes: int = 0
    """About so much of the stream came since the checkpoint before."""


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=10):
    """A piece of a checkpoint; it stands under the checkpoint tag alone."""

    shard: int
    data: bytes


class Carry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=8):
    """Messages that linger, appended anew so that what lies between can be trimmed. They keep their positions."""

    shard: int
    positions: list[int]
    forms: bytes
    bodies: list[bytes]


class Join(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=9):
    """A process consumes for a group, for so long; 0: it has left. Shards are dealt out to those who are there."""

    shard: int
    group: str
    taker: bytes
    span_us: int


Kind = Push | Act | Grant | Done | Setup | OpenGroup | DropGroup | Saved | Part | Carry | Join

_DECODER: Final[msgspec.msgpack.Decoder[Kind]] = msgspec.msgpack.Decoder(Kind)
_ENCODER: Final = msgspec.msgpack.Encoder()
_PREFIXES: Final = (bytes([_OLDEST]), bytes([VERSION]))
_LAST_VERSION: Final = 31
_ARRAYS: Final = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))
"""How an array begins in MessagePack. No text has one of these bytes behind a control character."""


def encode(record: Kind) -> bytes:
    """The record as the data of a log record."""
    return _PREFIXES[isinstance(record, Setup | Grant)] + _ENCODER.encode(record)


def is_own(data: bytes) -> bool:
    """Whether the queue library wrote this, of whatever version."""
    return len(data) > 1 and 0 < data[0] <= _LAST_VERSION and data[1] in _ARRAYS


def is_newer(data: bytes) -> bool:
    """Whether it says that a later version of the queue library wrote it."""
    return is_own(data) and data[0] > VERSION


def decode(data: bytes) -> Kind:
    """The record; `VersionTooNew`, or `CorruptData` if it is none."""
    if is_newer(data):
        raise VersionTooNew(
            f"a queue record has format {data[0]}, and this Boki reads formats up to {VERSION}: update it"
        )
    if data[:1] not in _PREFIXES:
        raise CorruptData("a record under a queue's tag is not a queue record: only the queue library writes there")
    try:
        return _DECODER.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(f"a queue record cannot be read: {error}") from None


def ends_leases(record: Kind) -> bool:
    """Whether it may take a lease away from its holder: then it stands under the fence tag, where commits look."""
    if isinstance(record, Act):
        return bool(record.fences) or any(settle.verb in (NACK, RELEASE, BURY) for settle in record.settles)
    return isinstance(record, DropGroup) or (isinstance(record, OpenGroup) and record.is_anew)


def form_of(forms: bytes, index: int) -> int:
    """The form of the message at `index` of a record."""
    return forms[0] if len(forms) == 1 else forms[index]


def stream_tag(queue: str, shard: int) -> str:
    """The tag of a shard's stream."""
    return f"!q:{queue}:{shard}"


def feed_tag(queue: str) -> str:
    """The tag of all shards' streams."""
    return f"!q:{queue}"


def record_tags(queue: str, shard: int, shards: int) -> tuple[str, ...]:
    """The tags of a stream's record."""
    stream = f"!q:{queue}:{shard}"
    return (stream,) if shards == 1 else (stream, f"!q:{queue}")


def checkpoint_tag(queue: str, shard: int) -> str:
    """The tag of a shard's checkpoints."""
    return f"!qc:{queue}:{shard}"


def fence_tag(queue: str, shard: int) -> str:
    """The tag of a shard's fences."""
    return f"!qf:{queue}:{shard}"


def settings_tag(queue: str) -> str:
    """The tag of a queue's settings."""
    return f"!qs:{queue}"


def push_key(queue: str, key: str) -> str:
    """The log's key of a push. What is too long for one goes by its digest."""
    named = f"!q:{queue}:{key}"
    return named if len(named.encode()) <= MAX_KEY_BYTES else f"!qh:{queue}:{sha256(key.encode()).hexdigest()}"


def joined(forms: Sequence[int]) -> bytes:
    """Forms as a record keeps them: one byte if all are the same."""
    return bytes(forms[:1]) if len(set(forms)) == 1 else bytes(forms)
