"""Settling messages of several shards: an act for each shard, and which of the messages it was not true for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from boki import BokiError, LogBook
from boki.libs.bokiqueue.demand import MAX_SETTLED
from boki.libs.bokiqueue.following import Following
from boki.libs.bokiqueue.records import Settle
from boki.libs.bokiqueue.refusals import LeaseLost, uncertain

Handle = tuple[int, int, int]
"""Shard, position and token: what a receipt says."""
_NAMED: Final = 10


async def settle_all(
    shared: Following, logbook: LogBook, group: str, verb: int, handles: Sequence[Handle], span_us: int, reason: str
) -> list[str]:
    """Do it to all of them; the receipts of those that are not leased so. An error that comes when others of them
    are settled says that its outcome is unknown.
    """
    by_shard: dict[int, list[tuple[int, int]]] = {}
    for shard, pos, token in handles:
        by_shard.setdefault(shard, []).append((pos, token))
    lost: list[str] = []
    is_begun = False
    for shard, messages in by_shard.items():
        for start in range(0, len(messages), MAX_SETTLED):
            some = messages[start : start + MAX_SETTLED]
            try:
                verdicts = await shared.settle(logbook, shard, Settle(group, verb, some, span_us, reason))
            except BokiError as error:
                if is_begun and error.outcome == "not_applied":
                    raise uncertain(error) from error
                raise
            is_begun = True
            lost += [f"{shard}-{pos}-{token}" for (pos, token), held in zip(some, verdicts, strict=True) if not held]
    return lost


def leases_lost(queue: str, receipts: list[str], count: int) -> LeaseLost:
    """The error of who wanted to settle so many, and these were not leased."""
    named = ", ".join(receipts[:_NAMED]) + (f" and {len(receipts) - _NAMED:,} more" if len(receipts) > _NAMED else "")
    return LeaseLost(
        f"{len(receipts)} of {count} messages of queue {queue!r} are not leased by this consumer any more: nothing was "
        f"changed for them, and others are given them, or have settled them. Their receipts: {named}",
        queue=queue,
        receipts=receipts,
    )
