"""The counting rules of the log: each is one line and decides whether data survives, so each has a name."""

from __future__ import annotations

from collections.abc import Iterable


def majority(member_count: int) -> int:
    """How many of the members any decision needs, so that two decisions always share one.

    >>> [majority(n) for n in (1, 2, 3, 4, 5)]
    [1, 2, 2, 3, 3]
    """
    return member_count // 2 + 1


def quorum_reached(reports: Iterable[int], quorum: int) -> int:
    """The largest position that at least `quorum` of the reports have reached; 0 if there are too few reports.

    With a shard's replicas and the write quorum: how far its records are durable (Boki 4.3 takes the minimum instead,
    so that one lost replica stops the shard). With the sequencers and their majority: how far the metalog is committed.

    >>> quorum_reached([9, 4, 7], 2)
    7
    >>> quorum_reached([9], 2)
    0
    """
    reached = sorted(reports, reverse=True)
    return reached[quorum - 1] if len(reached) >= quorum else 0
