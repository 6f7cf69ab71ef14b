"""What a queue writes into its LogBook: the records, their tags, and which of them count.

A record is one byte of version and a MessagePack array (`boki.libs.fold.codec`). Messages stand in it as they are; a
record of `push_many` holds many. Anyone who may append to a book may append under a queue's tags, so a record is
hostile until it has passed: it decodes, every number, list and text is within what this library itself writes, and it
stands under exactly the tags that its kind needs. What fails is **skipped**: it changes nothing but a counter
(`QueueStats.passed_by`), and every fold passes it by alike, because nothing is looked at here but the record itself and
the shape of the queue. A well-formed record that lies is believed: the right to append to a book is the right to
administer its queues. The limits are part of the format: they may be wider than those of the API, and never narrower.

The format of a queue is that of its newest settings record. If that is later than this code knows, the queue is refused
by name (`VersionTooNew`); in a queue of this format, records of a later one are strangers'. So a later format begins
with a settings record in that format, and adding a field to any record below needs a later format: a fold that did not
know the field would decide otherwise than the others.

Tags of queue `q` (they begin with "!", so trims of the whole book spare them):

==============  ======================================================================================
`!q:q:3`        the **stream** of shard 3: every record that its fold reads
`!q:q`          the **feed**: the streams of all shards, for a process that follows several (absent of one shard)
`!qc:q:3`       checkpoints of shard 3
`!qf:q:3`       fences of shard 3: records that take leases away, because they have run out or were given up
`!qs:q`         the queue's settings; the last record counts
`!queues`       settings of all queues of the book, for lists, with `!queues:q` to name them
==============  ======================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from boki import Record, VersionTooNew
from boki.libs.fold.codec import RecordCodec
from boki.libs.fold.codec import runs as runs

QUEUES_TAG: Final = "!queues"
NOW: Final = (1 << 63) - 1
"""As the start of a group: after everything that is there."""

ACK, NACK, EXTEND, RELEASE, BURY, REDRIVE, PURGE, GIVE_BACK = range(8)
"""Verbs of `Settle`. The last: no caller has received these. Pops of this very process, and leases, can be taken again.
"""
BYTES, TEXT, JSON, LOST = 0, 1, 2, 255
"""Forms of bodies: how they were made from values. The last: it could not be read any more when it was carried."""

MAX_KEY_BYTES: Final = 255
"""Of an idempotency key of the log."""
MAX_MESSAGE_BYTES: Final = 1_000_000
"""A body; a record holds a little more than that."""
MAX_BATCH: Final = 10_000
MAX_SHARDS: Final = 256
MAX_NUMBER: Final = (1 << 63) - 1
"""Maximum of seqnums, tokens, positions and counts."""
MAX_SPAN_US: Final = 366 * 24 * 3_600 * 1_000_000
"""Maximum delay, age, lease and retention: a leap year, as it was once allowed."""
MAX_ENTRIES: Final = 10_000
"""Maximum number of takes, of settles, of credits and of fences in one act."""
MAX_SETTLED_AT_ONCE: Final = 20_000
"""Maximum number of messages that one act settles."""

Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Time = Annotated[int, Meta(ge=0, le=10**17)]
Later = Annotated[int, Meta(ge=0, le=10**17 + MAX_SPAN_US)]
Span = Annotated[int, Meta(ge=0, le=MAX_SPAN_US)]
Size = Annotated[int, Meta(ge=0, le=MAX_MESSAGE_BYTES)]
Shard = Annotated[int, Meta(ge=0, lt=MAX_SHARDS)]
GroupName = Annotated[str, Meta(pattern=r"\A([A-Za-z0-9._-]{1,100})?\Z")]
Key = Annotated[str, Meta(max_length=100, pattern=r"\A[^\x00-\x1f\x7f\ud800-\udfff]*\Z")]
Taker = Annotated[bytes, Meta(max_length=64)]
"""Names a process that takes."""
Reason = Annotated[str, Meta(max_length=4_000)]
"""500 characters are 3,000 when each of them is escaped, and a few words come before them."""
Body = Annotated[bytes, Meta(max_length=MAX_MESSAGE_BYTES)]
Bodies = Annotated[list[Body], Meta(min_length=1, max_length=MAX_BATCH)]
Handle = tuple[Number, Number]
"""Position and token."""


class _Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A record, or a part of one."""


class Settings(_Row, frozen=True):
    """What holds for a queue. All times by the log's clock."""

    shards: Annotated[int, Meta(ge=1, le=MAX_SHARDS)] = 1
    max_deliveries: Annotated[int, Meta(ge=0, le=1_000)] = 10
    """A message that was leased this often without an ack becomes a dead letter; 0: never."""
    max_length: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    """Pushes wait, or are refused, while the queue has this many messages to be taken; 0: no bound."""
    retain_us: Span = 0
    """How long messages stay readable for new groups after every group has passed them."""


class Push(_Row, frozen=True, tag=1):
    """Messages, in order. `forms` has one byte for all of them or one for each, `keys` a group key for each ("" for
    none), or nothing.
    """

    shard: Shard
    forms: bytes
    bodies: Bodies
    delay_us: Span = 0
    ttl_us: Span = 0
    keys: list[Key] = []


class Take(_Row, frozen=True):
    """Give the group's next `count` messages: permanently if `lease_us` is 0. `op` names the request (see `state`)."""

    group: GroupName
    count: Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
    lease_us: Span = 0
    op: Key = ""


class Credit(_Row, frozen=True):
    """A standing take: give the group's next messages as they come, `granted` of them in all (see `sessions`).

    `since`: the act that began it, 0: this one. What has ended since does not begin again by a late act.
    """

    group: GroupName
    lease_us: Span
    granted: Number
    since: Number = 0


class Settle(_Row, frozen=True):
    """What has become of messages. `span_us`: a nack's delay, or the length of a lease."""

    group: GroupName
    verb: Annotated[int, Meta(ge=ACK, le=GIVE_BACK)]
    messages: list[Handle]
    span_us: Span = 0
    reason: Reason = ""


class Act(_Row, frozen=True, tag=2):
    """What the consumers of one process want at once. (`taker`, `number`) is counted once, however often it stands.

    `fences`: (group, position, token) of leases that are taken away if they have run out by the time of this record.
    `kept_from`: pops of this process by records from here on may still be given back; 0: all were received.
    """

    shard: Shard
    taker: Taker
    number: Number
    takes: Annotated[list[Take], Meta(max_length=MAX_ENTRIES)] = []
    settles: Annotated[list[Settle], Meta(max_length=MAX_ENTRIES)] = []
    fences: Annotated[list[tuple[GroupName, Number, Number]], Meta(max_length=MAX_ENTRIES)] = []
    kept_from: Number = 0

    @property
    def granted(self) -> Sequence[Credit]:
        """Credit for standing takes."""
        return ()


class Grant(Act, frozen=True, tag=11):
    """An act that grants credit besides."""

    credits: Annotated[list[Credit], Meta(max_length=MAX_ENTRIES)] = []

    @property
    def granted(self) -> Sequence[Credit]:
        """See `Act.granted`."""
        return self.credits


class Done(_Row, frozen=True, tag=3):
    """Acks that were appended together with effects, under the condition that no fence came first. `by` names the block
    whose effects these are: of several for one lease each checks whether it is this one.
    """

    shard: Shard
    group: GroupName
    messages: Annotated[list[Handle], Meta(max_length=MAX_ENTRIES)]
    by: Taker = b""


class Setup(_Row, frozen=True, tag=4):
    """The queue's settings from here on. `is_first`: it begins here; what was before was deleted, with its book."""

    shard: Shard
    settings: Settings
    is_first: bool = False


class OpenGroup(_Row, frozen=True, tag=5):
    """A consumer group that begins with the first kept message that is not before either start.

    If there is such a group nothing happens, unless it is to begin again: then what it has leased is forgotten.
    """

    shard: Shard
    group: GroupName
    start_seqnum: Number = 0
    start_time_us: Time = 0
    is_anew: bool = False


class DropGroup(_Row, frozen=True, tag=6):
    """The group is gone, and nothing is kept for it."""

    shard: Shard
    group: GroupName


class Saved(_Row, frozen=True, tag=7):
    """The checkpoint in the records of the checkpoint tag from `first` on covers the stream up to `covers`, and needs
    nothing below `floor`. About `grown_bytes` of the stream came since the checkpoint before.
    """

    shard: Shard
    covers: Number
    first: Number
    floor: Number
    grown_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 0


class Carry(_Row, frozen=True, tag=8):
    """Messages that linger, appended again so that what lies between can be trimmed. They keep their positions."""

    shard: Shard
    positions: list[Number]
    forms: bytes
    bodies: Bodies


class Join(_Row, frozen=True, tag=9):
    """A process consumes for a group: of a Boki that dealt shards to those that are present. It changes nothing."""

    shard: Shard
    group: GroupName
    taker: Annotated[bytes, Meta(min_length=1, max_length=64)]
    span_us: Span


class Part(_Row, frozen=True, tag=10):
    """A part of a checkpoint; it stands under the checkpoint tag alone."""

    shard: Shard
    data: bytes


Kind = Push | Act | Grant | Done | Setup | OpenGroup | DropGroup | Saved | Part | Carry | Join

CODEC: Final[RecordCodec[Kind]] = RecordCodec("a queue", 2, Kind, since={Setup: 2, Grant: 2})
"""Settings have the newest version, so that a Boki that cannot read the other records refuses the queue by name."""
VERSION: Final = CODEC.version
encode: Final = CODEC.encode
decode: Final = CODEC.decode
is_newer: Final = CODEC.is_newer


# What counts


def sound(record: Record) -> Kind | None:
    """The record, if it is a valid one of this format; None if it is to be skipped."""
    try:
        kind = CODEC.own(record.data)
    except VersionTooNew:
        return None
    return None if kind is None or fault(kind, record.seqnum) else kind


def fault(kind: Kind, seqnum: int) -> str:
    """The field of a decoded record that cannot be so at that place in the log; "" if there is none."""
    match kind:
        case Push():
            count, forms = len(kind.bodies), kind.forms
            if len(forms) not in (1, count) or max(forms) > JSON:
                return "forms"
            return "keys" if kind.keys and len(kind.keys) != count else ""
        case Act():
            is_fine = sum([len(one.messages) for one in kind.settles]) <= MAX_SETTLED_AT_ONCE
            return "" if is_fine else "settles"
        case Carry():
            count = len(kind.bodies)
            if not len(kind.positions) == len(set(kind.positions)) == count:
                return "positions"
            return "" if len(kind.forms) in (1, count) and set(kind.forms) <= {BYTES, TEXT, JSON, LOST} else "forms"
        case Setup():
            return "shard" if kind.shard >= kind.settings.shards else ""
        case Saved():
            is_past = max(kind.first, kind.covers) < seqnum
            return "" if is_past and kind.floor <= kind.covers + 1 else "covers"
        case _:
            return ""


def belongs(kind: Kind, tags: Sequence[str], queue: str, shards: int) -> bool:
    """Whether a record of the stream stands under all the tags where other readers look for its kind."""
    if kind.shard >= shards or isinstance(kind, Part):
        return False
    for tag in record_tags(queue, kind.shard, shards):
        if tag not in tags:
            return False
    if isinstance(kind, Push):
        return True
    if isinstance(kind, Saved):
        return checkpoint_tag(queue, kind.shard) in tags
    return not ends_leases(kind) or fence_tag(queue, kind.shard) in tags


def ends_leases(record: Kind) -> bool:
    """Whether it may take a lease away from its holder: then it stands under the fence tag, where commits look."""
    if isinstance(record, Act):
        return bool(record.fences) or any(settle.verb in (NACK, RELEASE, BURY) for settle in record.settles)
    return isinstance(record, DropGroup) or (isinstance(record, OpenGroup) and record.is_anew)


# Forms and tags


def form_of(forms: bytes, index: int) -> int:
    """The form of the message at `index` of a record."""
    return forms[0] if len(forms) == 1 else forms[index]


def joined(forms: Sequence[int]) -> bytes:
    """Forms as a record keeps them: one byte if all are the same."""
    return bytes(forms[:1]) if len(set(forms)) == 1 else bytes(forms)


def stream_tag(queue: str, shard: int) -> str:
    """The tag of a shard's stream."""
    return f"!q:{queue}:{shard}"


def feed_tag(queue: str) -> str:
    """The tag of all shards' streams."""
    return f"!q:{queue}"


@lru_cache(4096)
def record_tags(queue: str, shard: int, shards: int) -> tuple[str, ...]:
    """The tags of a stream's record."""
    return (stream_tag(queue, shard),) if shards == 1 else (stream_tag(queue, shard), feed_tag(queue))


def tags_of(record: Kind, queue: str, shards: int) -> tuple[str, ...]:
    """All tags of a stream's record, that of fences included."""
    tags = record_tags(queue, record.shard, shards)
    return (*tags, fence_tag(queue, record.shard)) if ends_leases(record) else tags


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
