"""Disks that keep what was written apart from what was synced.

Writes of one node are committed in groups, as `boki.host.disk` does it: a group is written, then synced, and only then
the effects continue. A crash keeps what was synced and, of the group that was being synced, nothing, some of its stores
from the first on, or all; what had not begun is gone. (A store is one record of a write-ahead log: its torn end fails a
checksum and is dropped as a whole.)

Disks that share a log (`share_log`) have one such sequence of stores. A group begins a little later then, so that what
is decided ahead of its sync may be in it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import log
from typing import Final

from boki.protocol.effects import Delete, DiskUnreadable, Effect, Load, Loaded, Put, Store
from boki.verify.sim.clockwork import Clockwork
from boki.verify.sim.keys import ToldStores, told_key

Then = Callable[[Sequence[Effect]], None]
_GATHER_US: Final = 400
_Waiting = tuple[Store, Then, "SimulatedDisk"]


def in_log_order(waiting: Iterable[_Waiting]) -> list[_Waiting]:
    """How stores of several disks stand in their log: as they came. A place to take that away."""
    return list(waiting)


class SimulatedDisk:
    """The disk of one node. It outlives the node's crashes; `wipe` replaces it by an empty one."""

    def __init__(self, clock: Clockwork, name: str, sync_us: int) -> None:
        self.name = name
        self._clock = clock
        self._sync_us = sync_us
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._waiting: deque[tuple[Store, Then, SimulatedDisk]] = deque()
        self._group: list[tuple[Store, Then, list[tuple[bytes, bytes | None]]]] = []
        self._owners: list[SimulatedDisk] = []
        """Whose stores they are."""
        self._is_gathering = False
        self._is_hurried = False
        """Whether somebody waits for what is to be written."""
        self.log = self
        """The disk whose log has this one's stores."""
        self.has_guest = False
        self.queued = 0
        """How many stores there were,"""
        self.durable = 0
        """and how many of them are durable."""
        self._generation = 0
        self.stalled_until_us = 0
        self.fail_next_sync = False
        self.is_full = False
        """Whether nothing more can be written: no reserve was kept, or something else has taken it."""
        self.unreadable: set[bytes] = set()
        """Keys of batches whose blocks fail their checksum: a load says so."""
        self.decayed: set[bytes] = set()
        """Keys of other things with such blocks: a load says so, and whatever else reads them raises."""
        self.on_failure: Callable[[str], None] = _ignore
        """Called with what went wrong, when a write or a sync has failed."""
        self.store_count = 0
        """How often it was asked to store something."""

    # writing

    def share_log(self, host: SimulatedDisk) -> None:
        """From now on the stores of this disk stand in the other one's log: they are lost together."""
        self.log = host
        host.has_guest = True

    def store(self, store: Store, then: Then, *, can_wait: bool = False) -> None:
        """See `boki.host.disk.Disk.store`."""
        self.store_count += 1
        self.log.put(store, then, self, can_wait=can_wait)

    def put(self, store: Store, then: Then, disk: SimulatedDisk, *, can_wait: bool) -> None:
        """Take in a store of a disk that keeps its writes in this one's log."""
        self.queued += 1
        self._waiting.append((store, then, disk))
        self._is_hurried |= not can_wait
        if self._group or self._is_gathering or not self._is_hurried:
            return
        if self.has_guest:
            self._is_gathering = True
            self._clock.after(int(self._clock.disk_rng.random() * _GATHER_US), self._gathered, self._generation)
        else:
            self._begin()

    def _gathered(self, generation: int) -> None:
        if generation == self._generation:
            self._is_gathering = False
            self._begin()

    def store_now(self, writes: Sequence[Put | Delete]) -> None:
        """Durable before it returns."""
        self.apply(writes)

    def _begin(self) -> None:
        waiting = in_log_order(self._waiting) if self.has_guest else list(self._waiting)
        self._group = [(store, then, disk.apply(store.writes)) for store, then, disk in waiting]
        self._owners = [disk for _, _, disk in waiting]
        self._waiting.clear()
        self._is_hurried = False
        delay_us = int(self._sync_us * (0.5 - log(1.0 - self._clock.disk_rng.random())))
        stalled_until_us = max(disk.stalled_until_us for disk in (self, *self._owners))
        delay_us += max(0, stalled_until_us - self._clock.now_us)
        self._clock.after(delay_us, self._synced, self._generation)

    def _synced(self, generation: int) -> None:
        if generation != self._generation:
            return
        owners = dict.fromkeys((self, *self._owners))
        if any(disk.is_full for disk in owners) and any(store.writes for store, _, _ in self._group):
            self.on_failure("a write found no space")
            return
        if any(disk.fail_next_sync for disk in owners):
            for disk in owners:
                disk.fail_next_sync = False
            self.on_failure("a sync failed")
            return
        group, self._group = self._group, []
        owner_of, self._owners = self._owners, []
        self.durable += len(group)
        for disk in owners:
            stores = [store for (store, _, _), owner in zip(group, owner_of, strict=True) if owner is disk]
            if stores or not self.has_guest:
                self._clock.note(f"{disk.name} has made {len(stores)} stores durable:", ToldStores(disk.name, stores))
        if len(owners) > 1:
            self._clock.sometimes("two roles shared a sync")
        for store, then, _ in group:
            if store.then and generation == self._generation:
                then(store.then)
        if self._is_hurried and not self._group and not self._is_gathering and generation == self._generation:
            self._begin()

    def apply(self, writes: Iterable[Put | Delete]) -> list[tuple[bytes, bytes | None]]:
        """Write, and return what it takes to undo that."""
        undo: list[tuple[bytes, bytes | None]] = []
        for write in writes:
            if isinstance(write, Put):
                undo.append((write.key, self._rows.get(write.key)))
                self._set(write.key, write.value)
                self.unreadable.discard(write.key)
                self.decayed.discard(write.key)
            else:
                first, stop = bisect_left(self._keys, write.start), bisect_left(self._keys, write.stop)
                undo += [(key, self._rows.pop(key)) for key in self._keys[first:stop]]
                del self._keys[first:stop]
        return undo

    def undo(self, undo: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Take back what `apply` has written."""
        for key, value in reversed(undo):
            self._set(key, value)

    def _set(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            if self._rows.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
            return
        if key not in self._rows:
            insort(self._keys, key)
        self._rows[key] = value

    # bad days

    def crash(self, *, keeps_some: bool = True) -> int:
        """The node has died, and all that share its log. → how many of the stores being synced are lost"""
        self.stalled_until_us, self.fail_next_sync = 0, False
        if self.log is not self:
            return self.log.crash(keeps_some=keeps_some)
        self._generation += 1
        keep = self._clock.disk_rng.randint(0, len(self._group)) if self._group and keeps_some else 0
        lost = self._group[keep:]
        for (_, _, undo), disk in zip(reversed(lost), reversed(self._owners[keep:]), strict=True):
            disk.undo(undo)
        count = len(lost) + len(self._waiting)
        self._forget()
        return count

    def _forget(self) -> None:
        self._group, self._owners = [], []
        self._is_gathering = self._is_hurried = False
        self._waiting.clear()
        self.durable = self.queued

    def flush(self) -> None:
        """The node has been closed in good order: what waits is written, if there is space."""
        if self.log is not self:
            self.log.flush()
            return
        if self.is_full:
            self.crash()
            return
        for store, _, disk in self._waiting:
            disk.apply(store.writes)
        self._forget()
        self._generation += 1

    def wipe(self) -> None:
        """Nothing is left."""
        self.crash()
        self._rows, self._keys = {}, []
        self.unreadable.clear()
        self.decayed.clear()

    def decay(self, prefix: bytes) -> bool:
        """Let the block of one key with that prefix fail its checksum. False if there is none."""
        keys = self._with(prefix)
        if keys:
            key = keys[self._clock.disk_rng.randrange(len(keys))]
            self.decayed.add(key)
            self._clock.note(f"{self.name} has a block that cannot be read any more:", told_key(self.name, key))
        return bool(keys)

    def _with(self, prefix: bytes) -> list[bytes]:
        stop = prefix[:-1] + bytes((prefix[-1] + 1,))
        return self._keys[bisect_left(self._keys, prefix) : bisect_left(self._keys, stop)]

    def rot(self, prefix: bytes) -> bool:
        """Flip a bit in the value of one key with that prefix, or make it unreadable. False if there is none."""
        rng = self._clock.disk_rng
        synced = [key for key in self._with(prefix) if self._rows[key]]
        if not synced:
            return False
        key = synced[rng.randrange(len(synced))]
        what = told_key(self.name, key)
        if rng.random() < 0.3:
            self.unreadable.add(key)
            self._clock.note(f"{self.name} cannot read any more:", what)
            return True
        value = bytearray(self._rows[key])
        at = rng.randrange(len(value))
        value[at] ^= 1 << rng.randrange(8)
        self._rows[key] = bytes(value)
        self._clock.note(f"{self.name} has a flipped bit in byte {at} of:", what)
        return True

    # reading

    def has(self, key: bytes) -> bool:
        """Whether anything is stored there; for looks from outside, who need not be able to read it."""
        return key in self._rows

    def get(self, key: bytes) -> bytes | None:
        """See `boki.protocol.effects.DiskReader`."""
        if key in self.decayed and key in self._rows:
            raise DiskUnreadable(key)
        return self._rows.get(key)

    def scan(self, start: bytes, stop: bytes, *, backward: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See `boki.protocol.effects.DiskReader`. As with an iterator of RocksDB, the first look fixes what it sees."""
        keys = self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, stop)]
        if backward:
            keys.reverse()
        values = [self._rows.get(key) for key in keys]
        if self.decayed:
            yield from self._scan_to_damage(keys, values)
            return
        yield from ((key, value) for key, value in zip(keys, values, strict=True) if value is not None)

    def _scan_to_damage(self, keys: list[bytes], values: list[bytes | None]) -> Iterator[tuple[bytes, bytes]]:
        for key, value in zip(keys, values, strict=True):
            if key in self.decayed and value is not None:
                raise DiskUnreadable(key)
            if value is not None:
                yield key, value

    def load(self, load: Load[object]) -> Loaded[object]:
        """See `boki.host.disk.Disk.load`."""
        rows: list[tuple[bytes, bytes]] = []
        try:
            return self._load(load, rows)
        except DiskUnreadable as error:
            return Loaded(load.token, rows, error=f"a block fails its checksum: {error}")

    def _load(self, load: Load[object], rows: list[tuple[bytes, bytes]]) -> Loaded[object]:
        first = next(self._walk(load.floor, load.key + b"\x00", backward=True), None)
        size_bytes = 0
        for key, value in self._walk(first[0] if first else load.key, load.stop):
            if key in self.unreadable:
                return Loaded(load.token, rows, error="a block fails its checksum")
            rows.append((key, value))
            size_bytes += len(value)
            if size_bytes >= load.max_bytes:
                break
        return Loaded(load.token, rows)

    def _walk(self, start: bytes, stop: bytes, *, backward: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """As `scan`, for a reader that ends before anything is written: it copies nothing that is not asked for."""
        low, high = bisect_left(self._keys, start), bisect_left(self._keys, stop)
        for at in range(high - 1, low - 1, -1) if backward else range(low, high):
            key = self._keys[at]
            value = self._rows.get(key)
            if value is not None:
                if key in self.decayed:
                    raise DiskUnreadable(key)
                yield key, value


def _ignore(_what: str) -> None:
    """Nobody minds."""
