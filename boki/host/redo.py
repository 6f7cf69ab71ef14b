"""Redo log: a database is kept by the write-ahead log of another one, so that both share a sync.

Storage node and sequencer of one process have a directory and a RocksDB each. To make the writes of both durable with
one sync, and in one order, the *guest* (the sequencer, whose writes are small) puts each write as a row into the
database of the *host* (the storage node). After the sync it carries the write out in its own database, unsynced: some
writes together, and in any case before that database is read.

- A start carries out all rows again, in order. Puts and deletes that are repeated in order end in the same state.
- Once in `ROWS` writes the guest syncs its own database; only then the rows are deleted.
- The guest's own database never holds a write that the host's log may lose, because it is written after the sync.

**Both layouts.** While rows may be missing in it, the guest's database says so (`_RIDES`: whose log, and under which
id). A clean stop syncs it and takes that back: then it is complete by itself, and opens without a host. One that is not
complete opens only beside its host: `RedoMissing` otherwise, because the newest writes would be silently lost.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from boki.host.rocksdb import RocksDb
from boki.protocol.effects import Delete, DiskUnreadable, Put

ROWS: Final = 512
"""This many writes of the guest are kept at most, about."""
TOGETHER: Final = 64
"""This many durable rows are carried out in one write."""
_ID_BYTES: Final = 16
REDO_PREFIX: Final = b"\xfe"
"""Keys of this file, behind all of a node's own."""
_RIDES: Final = b"\xferides"
"""In the guest: the host's id and the id of its own rows there. Empty: it is complete."""
_HOST_ID: Final = b"\xfehost"
_ROW: Final = b"\xferow"
_AFTER_ROWS: Final = b"\xferox"
_NUMBER: Final = Struct(">Q")
_Writes = list[tuple[bool, bytes, bytes]]


class RedoMissing(DiskUnreadable):
    """The newest writes of a database are in the log of another one, which is not there. Nothing is damaged."""


def identify(host: RocksDb) -> None:
    """Give a database an id, durably, under which guests know it."""
    if host.get(_HOST_ID) is None:
        host.write([Put(_HOST_ID, os.urandom(_ID_BYTES))])
        host.sync()


def is_complete(own: RocksDb) -> bool:
    """Whether the database opens without a host."""
    return not own.get(_RIDES)


def recover(own: RocksDb, host: RocksDb | None) -> None:
    """Carry out again what the guest's own database may lack. Unsynced: what follows is to be synced behind it."""
    rides = own.get(_RIDES)
    if not rides:
        return
    if host is None or host.get(_HOST_ID) != rides[:_ID_BYTES]:
        raise RedoMissing(
            "its newest writes are in the log of the storage node that shared a process with it, which is not here: "
            "start both in one process once, and stop it in good order"
        )
    start = _ROW + rides[_ID_BYTES:]
    for _, value in host.scan(start, start + b"\xff"):
        own.write(_decode(value))


class RedoLog:
    """The rows of one guest in its host, from one start on. `begin` makes it the guest's way to be durable."""

    def __init__(self, own: RocksDb, host: RocksDb) -> None:
        self._own = own
        self._id = os.urandom(_ID_BYTES)
        self._host_id = host.get(_HOST_ID)
        self._written = 0
        self._durable = 0
        """How many rows are durable,"""
        self._due: list[Put | Delete] = []
        """of which these writes are not carried out yet."""
        self._applied = 0
        self._forgotten = 0
        self.is_syncing = False
        """Whether the guest's own database is being synced, so that rows can go."""

    def begin(self) -> Delete:
        """Say, durably, whose log counts from now on. → the write by which the host forgets the rows of former
        incarnations
        """
        assert self._host_id is not None, "the host has been given an id"
        self._own.write([Put(_RIDES, self._host_id + self._id)])
        self._own.sync()
        return Delete(_ROW, _AFTER_ROWS)

    def row(self, writes: Sequence[Put | Delete]) -> Put:
        """The row that keeps these writes, after all earlier ones."""
        self._written += 1
        return Put(self._key(self._written), _encode(writes))

    def apply(self, writes: Sequence[Put | Delete]) -> None:
        """Carry out writes whose row is durable, sooner or later."""
        self._due += writes
        self._durable += 1
        if self._durable - self._applied >= TOGETHER:
            self.catch_up()

    def catch_up(self) -> None:
        """Carry out what is due: the guest's own database can be read then."""
        if self._due:
            self._own.write(self._due)
            self._due = []
        self._applied = self._durable

    @property
    def is_long(self) -> bool:
        """Whether it is time to sync the guest's own database."""
        return self._applied - self._forgotten >= ROWS and not self.is_syncing

    @property
    def applied(self) -> int:
        """How many rows have been carried out."""
        return self._applied

    def sync(self) -> None:
        """Make the guest's own database durable."""
        self._own.sync()

    def forget(self, until: int) -> Delete:
        """The guest has these rows itself, durably: the write by which the host forgets them."""
        start, self._forgotten = self._forgotten, until
        self.is_syncing = False
        return Delete(self._key(start), self._key(until + 1))

    def end(self) -> None:
        """A clean stop: the guest's own database is complete, and says so."""
        self.catch_up()
        self._own.sync()
        self._own.write([Put(_RIDES, b"")])
        self._own.sync()

    def _key(self, number: int) -> bytes:
        return _ROW + self._id + _NUMBER.pack(number)


def end_riding(own: RocksDb) -> None:
    """A guest that has been recovered continues by itself."""
    if not is_complete(own):
        own.sync()
        own.write([Put(_RIDES, b"")])
        own.sync()


def _encode(writes: Sequence[Put | Delete]) -> bytes:
    rows: _Writes = [
        (True, each.key, each.value) if isinstance(each, Put) else (False, each.start, each.stop) for each in writes
    ]
    return msgspec.msgpack.encode(rows)


def _decode(row: bytes) -> list[Put | Delete]:
    return [Put(a, b) if is_put else Delete(a, b) for is_put, a, b in msgspec.msgpack.decode(row, type=_Writes)]
