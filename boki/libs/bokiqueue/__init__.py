"""BokiQueue: message queues in a LogBook, with leases, groups, delays, dead letters and replay. See docs/queues.md."""

from __future__ import annotations

from boki.libs.bokiqueue.administration import DeadLetter, GroupStats, QueueStats, queue_names
from boki.libs.bokiqueue.consuming import consume
from boki.libs.bokiqueue.messages import Message
from boki.libs.bokiqueue.outbox import Outbox
from boki.libs.bokiqueue.queue import Queue
from boki.libs.bokiqueue.refusals import LeaseLost, NoSuchGroup, NoSuchQueue, QueueFull

__all__ = [
    "DeadLetter",
    "GroupStats",
    "LeaseLost",
    "Message",
    "NoSuchGroup",
    "NoSuchQueue",
    "Outbox",
    "Queue",
    "QueueFull",
    "QueueStats",
    "consume",
    "queue_names",
]
