"""Checkpoints of the index, kept for engines that start without one (design section 4, "Checkpoints").

An engine sends a whole index as the first checkpoint of a lineage, then what changes from one to the next. The pages of
a first one are its rows, which nobody sees before its last page has come. The pages of a later one are put aside, and
applied together with the last. So at every moment each lineage is at one checkpoint, whatever crash comes between.

Engines are given the checkpoint that covers most; one that covers less of any log never takes its place. A lineage
that has been overtaken is dropped, and so are those that nobody continues building. While an engine fetches, nothing
takes its checkpoint away: last pages wait meanwhile.

**What a complete checkpoint permits** is that others forget: sequencers drop the entries that it covers, and storage
nodes the batches that are free. So it is complete only together with what this node itself has learnt from at least
those entries, or a power cut of everybody could leave nobody who knows them.

**When the disk is nearly full**, a whole index may have a quarter of the reserve. It comes in addition to the one
before, and a larger one would use up what trims need; but without any, nothing that is trimmed could be deleted after
an engine has started again. What has come of a larger one is dropped. Changes still come, until little space is left.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import msgspec

from boki.log.ids import LogId, NodeId
from boki.log.metalog import Positions, covers, term_of
from boki.protocol.effects import Delete, DiskReader, DiskRoom, Effect, Load, Put, Send, Store, Trace
from boki.protocol.messages import CheckpointFetched, CheckpointStored, FetchCheckpoint, StoreCheckpoint

_NEWEST_KEY: Final = b"xa"
_META: Final = b"xm"
_ROWS: Final = b"xr"
_STAGED: Final = b"xs"
_LINEAGE_KEY: Final = Struct(">2sQ")
_PAGE_KEY: Final = Struct(">2sQII")
_LINEAGES: Final = 3
_FETCH_BYTES: Final = 1 << 20
_STAGED_BYTES: Final = 1 << 30
_LEASE_US: Final = 2_000_000
_UNCOUNTED_BYTES: Final = 1 << 40
"""The size of half an index that a version of Boki has kept which did not count it."""


class _Lineage(msgspec.Struct, array_like=True):
    """How far a lineage has come: the last complete checkpoint, and the pages of the next."""

    number: int
    complete: int = 0
    pages: int = 0
    positions: Positions = {}
    next_seqnums: dict[LogId, int] = {}
    size_bytes: int = 0
    """What has come of the first checkpoint, while it is not complete."""


class _Page(msgspec.Struct, frozen=True, array_like=True):
    """A page that was put aside."""

    deleted: tuple[tuple[bytes, bytes], ...]
    rows: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Staged:
    """The token of loading pages that were put aside, to apply them with the last one."""

    sender: NodeId
    message: StoreCheckpoint


@dataclass(frozen=True, slots=True)
class RowsAsked:
    """The token of loading rows for an engine."""

    sender: NodeId
    message: FetchCheckpoint
    lineage: int
    number: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What a page leads to: writes, and the answer behind them. `completes`: the node's own state goes with them."""

    writes: tuple[Put | Delete, ...]
    answer: Send
    completes: bool = False


class IndexCheckpoints:
    """The checkpoints on one node's disk."""

    def __init__(self, incarnation: int, disk: DiskReader) -> None:
        self._incarnation = incarnation
        self._lineages: dict[int, _Lineage] = {}
        for _, value in disk.scan(_META, _ROWS):
            lineage = msgspec.msgpack.decode(value, type=_Lineage)
            if lineage.pages and not lineage.complete and not lineage.size_bytes:
                lineage.size_bytes = _UNCOUNTED_BYTES
            self._lineages[lineage.number] = lineage
        stored = disk.get(_NEWEST_KEY)
        self._newest = self._lineages.get(msgspec.msgpack.decode(stored, type=int)) if stored is not None else None
        self._applying: set[int] = set()
        self._fetched_at = -_LEASE_US
        self._room = DiskRoom(True)

    @property
    def covered(self) -> tuple[int, Mapping[LogId, int]] | None:
        """(term, next seqnum by log) of the newest complete checkpoint."""
        newest = self._newest
        return (term_of(newest.positions), newest.next_seqnums) if newest is not None else None

    @property
    def positions(self) -> Positions:
        """How far the newest complete checkpoint covers the metalogs; empty if there is none."""
        return dict(self._newest.positions) if self._newest is not None else {}

    def status(self) -> dict[str, Any]:
        """What an operator wants to know, as JSON values."""
        newest = self._newest
        return {
            "lineages": len(self._lineages),
            "lineage": newest.number if newest is not None else 0,
            "number": newest.complete if newest is not None else 0,
        }

    # storing

    def change_room(self, room: DiskRoom) -> Iterable[Effect]:
        """The disk has room, or none: then what has come of a large index gives its space back."""
        self._room = room
        writes = [] if self._has_room_for_index() else self._drop_halves()
        return (Store(writes),) if writes else ()

    def _drop_halves(self, besides: _Lineage | None = None) -> list[Delete]:
        """Of whole indexes, those that have not come whole."""
        halves = [other for other in self._lineages.values() if not other.complete and other is not besides]
        return [write for lineage in halves for write in self._drop(lineage)]

    def _has_room_for_index(self, more_bytes: int = 0) -> bool:
        """Whether what has come of whole indexes may become that much more."""
        held_bytes = sum(lineage.size_bytes for lineage in self._lineages.values() if not lineage.complete)
        is_small = held_bytes + more_bytes <= self._room.reserve_bytes // 4
        return self._room.has_room or (self._room.may_store and is_small)

    def store(self, sender: NodeId, message: StoreCheckpoint, applied: Positions, now_us: int) -> Kept | Load[Staged]:
        """Take in a page. `applied` is how far this node has followed the metalogs."""
        lineage = self._lineages.get(message.lineage)
        if lineage is None:
            if message.number != 1:
                newest = self._newest
                base = (newest.number, newest.complete, 0, True) if newest is not None else (0, 0, 0, False)
                return Kept((), self._answer(sender, *base))
            lineage = _Lineage(message.lineage)
        if message.number <= lineage.complete:
            return Kept((), self._answer(sender, lineage.number, message.number, message.page + 1, True))
        if message.number > lineage.complete + 1:
            return Kept((), self._answer(sender, lineage.number, lineage.complete, 0, lineage.complete > 0))
        is_early = message.is_last and not self._may_complete(message, applied, now_us)
        is_untimely = message.page != lineage.pages or is_early or message.lineage in self._applying
        if is_untimely or (message.number > 1 and not self._room.may_store):
            return Kept((), self._answer(sender, lineage.number, message.number, lineage.pages, False))
        dropped: list[Delete] = []
        if message.number == 1:
            size_bytes = sum(len(key) + len(value) for key, value in message.rows)
            if not self._has_room_for_index(size_bytes):  # without halves that are not continued it may fit
                dropped = self._drop_halves(besides=lineage)
            if not self._has_room_for_index(size_bytes):
                return Kept((*dropped, *self._drop_halves()), self._answer(sender, lineage.number, 1, 0, False))
            lineage.size_bytes += size_bytes
        self._touch(lineage)
        if not message.is_last:
            lineage.pages += 1
            writes = (*dropped, *self._make_room(), *self._page_writes(message), self._meta(lineage))
            return Kept(writes, self._answer(sender, lineage.number, message.number, lineage.pages, False))
        if message.number == 1 or message.page == 0:
            rows = _row_writes(message.lineage, message.deleted, message.rows)
            return self._complete(sender, message, (*dropped, *rows))
        self._applying.add(message.lineage)
        start, stop = (_PAGE_KEY.pack(_STAGED, message.lineage, message.number, page) for page in (0, message.page))
        return Load(Staged(sender, message), start, start, stop, _STAGED_BYTES)

    def _may_complete(self, message: StoreCheckpoint, applied: Positions, now_us: int) -> bool:
        """Whether this node knows all that it covers, nobody is fetching, and it is comparable with the newest one."""
        newest = self._newest
        is_comparable = (
            newest is None or covers(message.positions, newest.positions) or covers(newest.positions, message.positions)
        )
        return is_comparable and covers(applied, message.positions) and now_us - self._fetched_at >= _LEASE_US

    def apply(self, staged: Staged, rows: Iterable[tuple[bytes, bytes]], error: str) -> Kept | Trace:
        """The pages that were put aside are here: make the checkpoint valid."""
        message = staged.message
        self._applying.discard(message.lineage)
        if message.lineage not in self._lineages:
            error = "it was given up meanwhile"
        pages = [msgspec.msgpack.decode(value, type=_Page) for _, value in rows]
        if error or len(pages) != message.page:
            return Trace(logging.ERROR, f"cannot apply a checkpoint of the index: {error or 'pages are missing'}")
        writes = [write for page in pages for write in _row_writes(message.lineage, page.deleted, page.rows)]
        writes += _row_writes(message.lineage, message.deleted, message.rows)
        return self._complete(staged.sender, message, writes)

    def _complete(self, sender: NodeId, message: StoreCheckpoint, writes: Iterable[Put | Delete]) -> Kept:
        lineage = self._lineages[message.lineage]
        lineage.complete, lineage.pages, lineage.size_bytes = message.number, 0, 0
        lineage.positions, lineage.next_seqnums = message.positions, message.next_seqnums
        changes: list[Put | Delete] = [self._delete(_STAGED, message.lineage)]
        newest = self._newest
        if newest is None or covers(lineage.positions, newest.positions):
            self._newest = lineage
            overtaken = [other for other in self._lineages.values() if other.complete and other is not lineage]
            changes += [write for other in overtaken for write in self._drop(other)]
            changes.append(Put(_NEWEST_KEY, msgspec.msgpack.encode(lineage.number)))
        answer = self._answer(sender, message.lineage, message.number, message.page + 1, True)
        return Kept((*writes, *changes, self._meta(lineage)), answer, completes=True)

    def _answer(self, to: NodeId, lineage: int, number: int, pages: int, is_complete: bool) -> Send:
        return Send(to, CheckpointStored(lineage, number, pages, is_complete, self._incarnation))

    def _touch(self, lineage: _Lineage) -> None:
        """It is being built: of those that are not, the one that was left longest ago stands first."""
        self._lineages.pop(lineage.number, None)
        self._lineages[lineage.number] = lineage

    def _make_room(self) -> Iterable[Put | Delete]:
        """Drop what nobody continues with, if there are too many."""
        newest = self._newest
        idle = [lineage for lineage in self._lineages.values() if lineage is not newest]
        surplus = max(0, len(self._lineages) - _LINEAGES)
        return [write for lineage in idle[:surplus] for write in self._drop(lineage)]

    def _drop(self, lineage: _Lineage) -> Iterable[Delete]:
        del self._lineages[lineage.number]
        return [self._delete(kind, lineage.number) for kind in (_META, _ROWS, _STAGED)]

    @staticmethod
    def _delete(kind: bytes, lineage: int) -> Delete:
        return Delete(_LINEAGE_KEY.pack(kind, lineage), _LINEAGE_KEY.pack(kind, lineage + 1))

    @staticmethod
    def _meta(lineage: _Lineage) -> Put:
        return Put(_LINEAGE_KEY.pack(_META, lineage.number), msgspec.msgpack.encode(lineage))

    @staticmethod
    def _page_writes(message: StoreCheckpoint) -> Iterable[Put | Delete]:
        if message.number == 1:
            return _row_writes(message.lineage, message.deleted, message.rows)
        key = _PAGE_KEY.pack(_STAGED, message.lineage, message.number, message.page)
        return (Put(key, msgspec.msgpack.encode(_Page(message.deleted, message.rows))),)

    # giving

    def fetch(self, sender: NodeId, message: FetchCheckpoint, now_us: int) -> Effect:
        """Look for the rows that an engine asks for."""
        newest = self._newest
        is_gone = newest is None or (message.lineage and (message.lineage, message.number) != _name(newest))
        if newest is None or is_gone:
            return Send(sender, CheckpointFetched(message.request, 0, 0, (), True, {}))
        if message.lineage:  # a question for what exists delays no saving
            self._fetched_at = now_us
        start = _row_key(newest.number, message.after_key + b"\x00")
        stop = _LINEAGE_KEY.pack(_ROWS, newest.number + 1)
        token = RowsAsked(sender, message, *_name(newest))
        return Load(token, start, start, stop, min(message.max_bytes, _FETCH_BYTES))

    def give(self, asked: RowsAsked, rows: Iterable[tuple[bytes, bytes]], error: str) -> Iterable[Effect]:
        """The rows are here: they count if the checkpoint is still what it was."""
        newest = self._newest
        request = asked.message.request
        if error:
            yield Trace(logging.ERROR, f"cannot read a checkpoint of the index: {error}")
        if error or newest is None or _name(newest) != (asked.lineage, asked.number):
            yield Send(asked.sender, CheckpointFetched(request, 0, 0, (), True, {}))
            return
        found = tuple((key[_LINEAGE_KEY.size :], value) for key, value in rows)
        is_last = sum(len(value) for _, value in found) < min(asked.message.max_bytes, _FETCH_BYTES)
        told = CheckpointFetched(request, asked.lineage, asked.number, found, is_last, newest.positions)
        yield Send(asked.sender, told)


def _name(lineage: _Lineage) -> tuple[int, int]:
    return lineage.number, lineage.complete


def _row_key(lineage: int, key: bytes) -> bytes:
    return _LINEAGE_KEY.pack(_ROWS, lineage) + key


def _row_writes(
    lineage: int, deleted: Iterable[tuple[bytes, bytes]], rows: Iterable[tuple[bytes, bytes]]
) -> list[Put | Delete]:
    writes: list[Put | Delete] = [Delete(_row_key(lineage, start), _row_key(lineage, stop)) for start, stop in deleted]
    writes += [Put(_row_key(lineage, key), value) for key, value in rows]
    return writes
