"""The queues that a process follows: one registry for each connection to the log."""

from __future__ import annotations

import asyncio

from boki import LogBook
from boki.libs.bokiqueue.acts import Following
from boki.libs.bokiqueue.bodies import BodyStore
from boki.libs.fold.registry import Registry


class Queues(Registry[Following]):
    """The queues that are followed over one connection, and the bodies that they keep together."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = BodyStore()

    async def come_to_rest(self, patience_s: float) -> None:
        """Until nothing goes on beside what is waited for: checkpoints, trims, giving back."""
        for followed in self:
            followed.cleanup.hurry()
        await self.tasks.come_to_rest(patience_s)


def queues_of(logbook: LogBook) -> Queues:
    """The queues that are followed over this connection to the log."""
    return logbook.session.shared(Queues)


def following(logbook: LogBook, queue: str, shards: int) -> Following:
    """The queue, as all calls of this connection share it."""
    queues, now_s = queues_of(logbook), asyncio.get_running_loop().time()
    found = queues.find(logbook.name, queue, now_s)
    if found is None or found.shards != shards or found.follower.is_over:
        found = Following(queue, shards, tasks=queues.tasks, store=queues.bodies)
        queues.put(logbook.name, queue, found, now_s)
    return found


def adopt(logbook: LogBook, followed: Following) -> None:
    """Let all calls of this connection share that one."""
    queues_of(logbook).put(logbook.name, followed.queue, followed)
