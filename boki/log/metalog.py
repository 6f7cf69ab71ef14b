"""The metalog: the only thing that needs consensus, one per physical log and term.

Its entries are few and small. A `Cut` says how far each shard is ordered; everybody derives the same seqnums from it:
inside a cut, records stand in (shard, local id) order (Scalog section 4.1, Boki section 4.3). `Trim`, `ForgetTags`,
`OpenShard` and `CloseShard` are ordered among the cuts, so the data layer changes its shape without stopping anything.

A **metalog position** is (term, number of entries applied), packed into one integer, so that comparing two integers
tells who has seen more. Calls carry positions; an index that is behind waits.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from boki.errors import CorruptData, InvalidArgument, VersionTooNew, WrongType
from boki.log.ids import MAX_LOG, MAX_TERM, LogId, Natural, NodeId, ShardId, Term

VERSION: Final = 4
"""2: `CloseShard.is_lost`, which a reader of version 1 would overlook. 3: `Cut.is_ahead`, likewise. 4: `ForgetTags`.
An entry is written in the lowest version that has it.
"""
FORGETTING: Final = 4
"""Nodes that read entries of this version know `ForgetTags`."""
_PLAIN_VERSION: Final = b"\x02"
_AHEAD_VERSION: Final = b"\x03"
_FORGETTING_VERSION: Final = b"\x04"
_INDEX_BITS: Final = 43
_PLACE: Final = re.compile(r"(\d{1,3}):(\d{1,7})\.(\d{1,13})", re.ASCII)


class Cut(msgspec.Struct, frozen=True, array_like=True, tag="cut"):
    """Shards move: each pair says that the shard's records below that local id are ordered now.

    `time_us` is the primary's clock, never going back, in microseconds since the epoch: the time of these records.

    `is_ahead`: until the cut is committed its records may be on fewer disks than a write quorum, and every sequencer
    keeps it behind them, in the same write-ahead log. It means nothing to a reader of what is committed.
    """

    time_us: Natural
    until: tuple[tuple[ShardId, Natural], ...]
    is_ahead: bool = False


class _PlainCut(msgspec.Struct, frozen=True, array_like=True, tag="cut"):
    """A cut of version 2, as it stands on disks."""

    time_us: Natural
    until: tuple[tuple[ShardId, Natural], ...]


class Trim(msgspec.Struct, frozen=True, array_like=True, tag="trim"):
    """Records of the tag (of the book, if None) with a seqnum below `before`, clamped to the tail here, are gone.

    `everything` deletes the book: system tags are not spared. `request` is the engine's own number for its waiter.
    """

    book: str
    tag: str | None
    before: Natural
    everything: bool
    engine: NodeId
    request: Natural


class ForgetTags(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """A `Trim` of each of these tags. If no record of it is left behind that, the tag is forgotten: from here on it is
    one that never had a record, and its count is 0.

    A kind of its own and no field of `Trim`: a node of an earlier version would overlook a field, and would decide
    conditions on the count otherwise than the others. It refuses an entry of a kind that it does not know.
    """

    book: str
    tags: tuple[str, ...]
    before: Natural
    engine: NodeId
    request: Natural


class OpenShard(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """From here on the shard may be ordered. Its records are on these storage nodes."""

    shard: ShardId
    engine: NodeId
    replicas: tuple[NodeId, ...]


class CloseShard(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """The shard is ordered no further than it is here, ever.

    `is_lost` fences its engine's whole incarnation: of this log nothing more of that incarnation is ever ordered in
    this term, whatever shard it would open, and an engine that finds itself fenced stops. The shard named may be one
    that was never opened, if the incarnation has none here.
    """

    shard: ShardId
    is_lost: bool = False


Trims = Trim | ForgetTags
MetalogEntry = Cut | Trims | OpenShard | CloseShard

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[MetalogEntry]] = msgspec.msgpack.Decoder(MetalogEntry)


def encode_entry(entry: MetalogEntry) -> bytes:
    """The bytes of an entry on disk: a version, then msgpack."""
    if isinstance(entry, ForgetTags):
        return _FORGETTING_VERSION + _encoder.encode(entry)
    if not isinstance(entry, Cut):
        return _PLAIN_VERSION + _encoder.encode(entry)
    if entry.is_ahead:
        return _AHEAD_VERSION + _encoder.encode(entry)
    return _PLAIN_VERSION + _encoder.encode(_PlainCut(entry.time_us, entry.until))


def decode_entry(data: bytes) -> MetalogEntry:
    """The entry; `VersionTooNew` or `CorruptData` if these are not its bytes."""
    if not data or not data[0]:
        raise CorruptData("a metalog entry has no version")
    if data[0] > VERSION:
        raise VersionTooNew(f"metalog entry version {data[0]} is newer than this Boki's {VERSION}: upgrade this node")
    try:
        return _decoder.decode(memoryview(data)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(f"a metalog entry cannot be read: {error}") from None


def make_position(term: Term, index: int) -> int:
    """The metalog position after `index` entries of `term`.

    >>> make_position(2, 0) > make_position(1, 1000)
    True
    """
    return term << _INDEX_BITS | index


def split_position(position: int) -> tuple[Term, int]:
    """The (term, entry count) of a metalog position.

    >>> split_position(make_position(2, 7))
    (2, 7)
    """
    return position >> _INDEX_BITS, position & ((1 << _INDEX_BITS) - 1)


Positions = dict[LogId, Natural]
"""Per physical log, the metalog position that a caller has seen. A log that is missing has not been seen."""


def merge_positions(mine: Positions, seen: Positions) -> None:
    """Raise `mine` to everything that `seen` has seen."""
    for log, position in seen.items():
        if position > mine.get(log, 0):
            mine[log] = position


def term_of(positions: Positions) -> Term:
    """The term that these positions stand in; 0 if there are none."""
    return max((split_position(position)[0] for position in positions.values()), default=0)


def covers(applied: Positions, positions: Positions) -> bool:
    """Whether who has applied the one has come as far as the other, in every log."""
    if term_of(applied) != term_of(positions):
        return term_of(applied) > term_of(positions)
    return all(applied.get(log, 0) >= position for log, position in positions.items())


def format_positions(positions: Positions) -> str:
    """The text form for the `Boki-Position` header.

    >>> format_positions({0: make_position(2, 7), 1: make_position(1, 3)})
    '0:2.7,1:1.3'
    """
    return ",".join(f"{log}:{'.'.join(map(str, split_position(p)))}" for log, p in sorted(positions.items()))


def parse_positions(text: str, field: str = "Boki-Position") -> Positions:
    """The positions behind `format_positions`' text; `InvalidArgument` if it is not such a text. `field`: what its
    caller has passed it as.
    """
    positions: Positions = {}
    if not isinstance(text, str):
        raise WrongType(f"{field} must be a str, not {type(text).__name__}", field=field)
    if len(text) > 10_000:
        raise InvalidArgument(f"{field} has at most 10,000 characters, not {len(text):,}", field=field)
    for part in text.split(",") if text else ():
        match = _PLACE.fullmatch(part)
        log, term, index = map(int, match.groups()) if match else (MAX_LOG + 1, 0, 0)
        if log > MAX_LOG or term > MAX_TERM or index >> _INDEX_BITS or log in positions:
            raise InvalidArgument(
                f"{field} must look like 0:2.7,1:1.3 (log:term.entries), each log once, not {text[:60]!r}",
                field=field,
            )
        positions[log] = make_position(term, index)
    return positions
