"""One record of a queue's stream: it is applied to the fold of its shard, and whoever it concerns here hears of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from boki import LogBook, Record
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.checkpoints import history, newest_settings
from boki.libs.bokiqueue.records import Carry, Join, Push, Saved, Setup
from boki.libs.bokiqueue.validity import belongs, sound

if TYPE_CHECKING:
    from boki.libs.bokiqueue.following import Following

_log = logging.getLogger("boki.queue")


async def fold(queue: Following, logbook: LogBook, record: Record) -> bool:
    """Go on by a record that was read. False if that cannot be from here: begin anew from the newest checkpoint."""
    kind = sound(record)
    if (isinstance(kind, Setup) and kind.settings.shards != queue.shards) or records.is_newer(record.data):
        if record.seqnum >= queue.checked_stop:  # once a page: strangers may append many
            _, settings, _ = await newest_settings(logbook, queue.queue)  # which refuses a queue of a later format
            if settings is None or settings.shards != queue.shards:
                queue.end()
                return True
            queue.checked_stop = queue.page_stop
        kind = None  # the queue's settings do not say so
    if kind is None or not belongs(kind, record.tags, queue.queue, queue.shards):
        _pass_by(queue, record)
        return True
    if record.seqnum < queue.lines[kind.shard].resume:
        queue.passed(record)
        return True
    line = queue.lines[kind.shard]
    state = line.state
    part = state.history_for(kind) if record.seqnum > state.at else None
    if part is not None:  # if this fails the record is read again: it has not been passed yet
        segments, kept_from = await history(logbook, queue.queue, line.shard, queue.shards, *part)
        if kept_from > part[0] and queue.begins_anew_for(record.seqnum, kept_from):
            return False  # others go by what was trimmed since: they had read it, or began from a later checkpoint
        state.put_before(segments)
    queue.passed(record)
    first_pos = state.backlog.first_pos
    given = state.apply(record.seqnum, record.time, kind)
    line.saved_records += 1
    line.saved_bytes += len(record.data)
    if isinstance(kind, Push | Carry):
        queue.bodies.keep(record.seqnum, kind, state)
        if state.backlog.first_pos > first_pos:  # it let go of what has expired, and maybe nobody consumes
            queue.bodies.pass_by(state, None)
            queue.upkeep.consider(logbook, line)
    else:
        queue.bodies.pass_by(state, given)
    for handed in state.handed:
        if handed.taker == queue.taker:
            queue.handed(line, handed)
            queue.look_after(logbook)
            queue.upkeep.consider(logbook, line)
    if given is not None:
        assert isinstance(kind, records.Act)
        if kind.taker == queue.taker:
            queue.served(line, given)
            line.give_back_unknown()
            queue.upkeep.consider(logbook, line)
    elif isinstance(kind, Join):
        if kind.taker == queue.taker:
            queue.dealing.said(kind.group)
            queue.upkeep.consider(logbook, line)
    elif isinstance(kind, Saved):
        queue.upkeep.saved(logbook, line, kind)
    return True


def _pass_by(queue: Following, record: Record) -> None:
    """A record that does not count. It is logged when they are 1, 10, 100, …: strangers may append many."""
    line = queue.lines[0]
    state = line.state
    before = state.passed_by
    if record.seqnum >= line.resume:
        state.pass_by(record.seqnum)
        line.saved_records += 1  # so that a checkpoint drops it
        line.saved_bytes += len(record.data)
    queue.passed(record)
    if state.passed_by > before and str(state.passed_by).rstrip("0") == "1":
        _log.warning(
            "queue %s: record %d is not a valid queue record and is passed by; %d so far",
            queue.queue,
            record.seqnum,
            state.passed_by,
        )
