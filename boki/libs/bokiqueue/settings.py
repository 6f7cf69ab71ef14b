"""A queue's settings: found under their tag, trusted for a moment by a handle, appended under a condition."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from boki import ConditionFailed, Expect, InvalidArgument, LogBook
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.messages import check_count, check_span, no_such_queue
from boki.libs.bokiqueue.records import MAX_SHARDS, Settings, Setup, sound

SETTINGS_S: Final = 1.0  # for this long a handle trusts the settings that it has read
MAX_MESSAGES: Final = 1_000_000_000


async def newest_settings(logbook: LogBook, queue: str, *, fresh: bool = False) -> tuple[int, Settings | None, int]:
    """The last record of the settings' tag, 0 if there is none; the queue's settings, None if there are none; and the
    version of their record, which all who read the queue know.

    The first settings of a queue say how many shards it has: records that say otherwise later are skipped.
    `VersionTooNew`
    """
    tag = records.settings_tag(queue)
    record, first = await asyncio.gather(logbook.check_tail(tag, fresh=fresh), logbook.read_next(tag))
    last = 0 if record is None else record.seqnum
    shards = 0
    while first is not None and not shards and first.seqnum < last:
        kind = sound(first)
        shards = kind.settings.shards if isinstance(kind, Setup) else 0
        first = None if shards else await logbook.read_next(tag, min_seqnum=first.next_seqnum)
    while record is not None:
        if records.is_newer(record.data):
            records.decode(record.data)  # refuses the queue by name
        kind = sound(record)
        if isinstance(kind, Setup) and shards in (0, kind.settings.shards):
            return last, kind.settings, record.data[0]
        record = await logbook.read_prev(tag, max_seqnum=record.seqnum - 1)
    return last, None, 0


class KnownSettings:
    """The settings of one queue, as one handle has read them."""

    def __init__(self, logbook: LogBook, name: str) -> None:
        self.logbook, self.name = logbook, name
        self._settings: Settings | None = None
        self._seqnum = self.version = 0
        self._read_at = 0.0

    async def read(self, *, fresh: bool = False) -> Settings | None:
        """The settings; None if there is no such queue. They may be a second old, unless they are `fresh`."""
        if fresh or self.recent is None:
            last, found, version = await newest_settings(self.logbook, self.name, fresh=fresh)
            if found is None and not fresh:
                last, found, version = await newest_settings(self.logbook, self.name, fresh=True)
            self._know(found, last, version)
        return self._settings

    @property
    def recent(self) -> Settings | None:
        """The settings, if they were read lately."""
        return self._settings if asyncio.get_running_loop().time() - self._read_at <= SETTINGS_S else None

    async def opened(self) -> Settings:
        """The settings of a queue that is there. `NoSuchQueue`"""
        settings = await self.read()
        if settings is None:
            raise no_such_queue(self.name, self.logbook.name)
        return settings

    def known(self) -> Settings:
        """The settings that were read last."""
        if self._settings is None:
            raise InvalidArgument(f"queue {self.name!r} was not opened yet: await queue.create() first", field="queue")
        return self._settings

    def _know(self, settings: Settings | None, seqnum: int, version: int) -> None:
        self._settings, self._seqnum, self.version = settings, seqnum, version
        self._read_at = asyncio.get_running_loop().time()

    def stands(self) -> Expect:
        """The condition that the queue is there, as this handle knows it: its book may have been deleted meanwhile."""
        return Expect(records.settings_tag(self.name), self._seqnum)

    async def check_stands(self, shards: int) -> None:
        """`NoSuchQueue` if it is gone, or another one by now; else `stands` is a condition that holds."""
        settings = await self.read(fresh=True)
        if settings is None or settings.shards != shards:
            raise no_such_queue(self.name, self.logbook.name)

    async def create(self, settings: Settings) -> Settings:
        """Have these settings if there are none; those that the queue has."""
        known = await self.read()
        while known is None:
            last, known, version = await newest_settings(self.logbook, self.name, fresh=True)
            if known is None:
                with suppress(ConditionFailed):  # another process has just created it
                    return await self._append(settings, last, is_first=True)
            self._know(known, last, version)
        if settings.shards not in (1, known.shards):
            raise InvalidArgument(
                f"queue {self.name!r} was created with {known.shards} shard{'' if known.shards == 1 else 's'} and the "
                "number cannot change: create another queue",
                field="shards",
            )
        return known

    async def change(self, max_deliveries: int | None, max_length: int | None, retain_s: float | None) -> Settings:
        """Change what is given. If that is nothing, nothing is appended."""
        while True:
            last, old, version = await newest_settings(self.logbook, self.name, fresh=True)
            if old is None:
                raise no_such_queue(self.name, self.logbook.name)
            settings = settings_of(
                old.shards,
                old.max_deliveries if max_deliveries is None else max_deliveries,
                old.max_length if max_length is None else max_length,
                old.retain_us / 1e6 if retain_s is None else retain_s,
            )
            if settings == old:
                self._know(old, last, version)
                return old
            with suppress(ConditionFailed):
                return await self._append(settings, last)

    async def modernise(self, settings: Settings) -> Settings:
        """The settings, in a record that readers refuse that do not know what stands under standing takes."""
        if self.version < records.VERSION:
            with suppress(ConditionFailed):  # another process was quicker
                return await self._append(settings, self._seqnum)
            return await self.read(fresh=True) or settings
        return settings

    async def _append(self, settings: Settings, last_seqnum: int, *, is_first: bool = False) -> Settings:
        name, tag = self.name, records.settings_tag(self.name)
        group: list[tuple[bytes, tuple[str, ...]]] = [
            (records.encode(Setup(shard, settings, is_first)), records.record_tags(name, shard, settings.shards))
            for shard in range(settings.shards)
        ]
        if is_first and settings.shards == 1:  # a process that still follows several shards must come to this
            group[0] = (group[0][0], (*group[0][1], records.feed_tag(name)))
        queues = records.QUEUES_TAG
        group.append((records.encode(Setup(0, settings)), (tag, f"{queues}:{name}", queues)))
        seqnums = await self.logbook.append_many(group, when=Expect(tag, last_seqnum))
        self._know(settings, seqnums[-1], records.VERSION)
        return settings


def settings_of(shards: int, max_deliveries: int, max_length: int, retain_s: float) -> Settings:
    """Settings that were asked for."""
    return Settings(
        check_count(shards, "shards", MAX_SHARDS),
        check_count(max_deliveries, "max_deliveries", 1_000, least=0),
        check_count(max_length, "max_length", MAX_MESSAGES, least=0),
        check_span(retain_s, "retain_s"),
    )
