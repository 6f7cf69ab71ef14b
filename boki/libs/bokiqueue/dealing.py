"""Taking part in a group of a queue with several shards: this process says that it is there, and is dealt shards.

Those who wait take from the shards that are dealt to their process (see `membership`). If these have nothing, they take
from others, too, whose messages have waited for a moment: whoever those shards are dealt to has left, or is busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from boki import BokiError, LogBook
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.demand import Want
from boki.libs.bokiqueue.figures import waiting_since_us
from boki.libs.bokiqueue.membership import next_change_us, present, share

if TYPE_CHECKING:
    from boki.libs.bokiqueue.following import Following

ABANDONED_US: Final = 100_000
"""Messages that have waited so long are taken also by those to whom their shard is not dealt."""


class Dealing:
    """The shards of one queue that those who wait in this process take from."""

    def __init__(self, queue: Following, member_us: int) -> None:
        self._queue = queue
        self._member_us = member_us
        self._saying: set[str] = set()
        self.look_again_us = 0
        """When they may be others, by the log's time; 0: not before something happens."""

    def bind(self, logbook: LogBook) -> None:
        """Say which shards those who wait take from, and in the log that this process is there."""
        queue = self._queue
        waiting = [one for one in queue.waiters if isinstance(one, Want) and one.patience_s is not None and not one.op]
        now_us = queue.clock.lately_us()
        self.look_again_us = 0
        for group in dict.fromkeys(want.group for want in waiting if not want.is_done):
            members = present(queue.lines[0].state.members, group, now_us)
            shards = share(members, queue.taker, queue.shards)
            if shards is not None:
                shards |= self._abandoned(group, shards, now_us)
            for want in waiting:
                if want.group == group:
                    want.lines = shards
            mine = [member for member in members if member.taker == queue.taker]
            if not mine or mine[0].until_us - now_us < self._member_us // 2:
                self._say(logbook, group)
            else:
                self._look_again(next_change_us(members, queue.taker, now_us, self._member_us // 2))

    def _look_again(self, due_us: int) -> None:
        self.look_again_us = min(self.look_again_us or due_us, due_us)

    def _abandoned(self, group: str, own: frozenset[int], now_us: int) -> frozenset[int]:
        since_us = {line.shard: waiting_since_us(line.state, group) for line in self._queue.lines}
        if any(0 < since_us[shard] <= now_us for shard in own):
            return frozenset()
        due_us = {shard: since + ABANDONED_US for shard, since in since_us.items() if since and shard not in own}
        for later_us in due_us.values():
            if later_us > now_us:
                self._look_again(later_us)
        return frozenset(shard for shard, since in due_us.items() if since <= now_us)

    def _say(self, logbook: LogBook, group: str) -> None:
        if group not in self._saying:
            self._saying.add(group)
            self._queue.spawn(self._append_join(logbook, group))

    async def _append_join(self, logbook: LogBook, group: str) -> None:
        queue = self._queue
        join = records.Join(0, group, queue.taker, self._member_us)
        try:
            await logbook.append(records.encode(join), records.record_tags(queue.queue, 0, queue.shards))
        except BokiError:
            self._saying.discard(group)  # then without being dealt shards: nothing depends on it

    def said(self, group: str) -> None:
        """The fold has come to it."""
        self._saying.discard(group)
