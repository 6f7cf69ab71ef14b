"""BokiQueue: message queues in a LogBook, with leases, groups, delays, dead letters and replay. See docs/queues.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from boki.libs.bokiqueue.consuming import consume
    from boki.libs.bokiqueue.messages import DeadLetter, LeaseLost, Message, NoSuchGroup, NoSuchQueue, QueueFull
    from boki.libs.bokiqueue.operating import GroupStats, QueueStats, queue_names
    from boki.libs.bokiqueue.queue import Outbox, Queue

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

_MODULES: Final = {
    **dict.fromkeys(("GroupStats", "QueueStats", "queue_names"), "operating"),
    **dict.fromkeys(("DeadLetter", "LeaseLost", "Message", "NoSuchGroup", "NoSuchQueue", "QueueFull"), "messages"),
    "consume": "consuming",
    **dict.fromkeys(("Outbox", "Queue"), "queue"),
}


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the CLI imports `face` whenever it starts, and nothing else of the queue."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
