"""The blocking side of the public API: what plain `def` functions are given, as `redis` is to `redis.asyncio`."""

from __future__ import annotations

from boki.runtime.blocking_context import Context
from boki.runtime.blocking_logbook import LogBook, Subscription

__all__ = ["Context", "LogBook", "Subscription"]
