"""The blocking side of the public API: what plain `def` functions are given, as `redis` is to `redis.asyncio`."""

from __future__ import annotations

from boki.api.blocking_context import Context
from boki.api.blocking_logbook import LogBook, Subscription
from boki.api.borrowed_port import run

__all__ = ["Context", "LogBook", "Subscription", "run"]
