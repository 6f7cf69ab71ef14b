"""Which shards the consumers of a process take from: a pure function of who says in the log that it is there.

A process whose consumers wait for a group of a queue with several shards says so in the stream of shard 0, for
`MEMBER_US`, and says it again while they wait. The shards are dealt out to those who are there, in the order of their
names. Nothing depends on it but speed: the fold gives a message once whoever asks, so there is no handing over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from boki.libs.bokiqueue.snapshots import Member

MEMBER_US: Final = 30_000_000
"""So long a process counts as there after it has said so: this is how long the shards of one that died lie still.

With less than half of it left it says so again.
"""


def present(members: Mapping[tuple[str, bytes], Member], group: str, now_us: int) -> list[Member]:
    """Those who are there for the group, in the order of their names."""
    found = [member for member in members.values() if member.group == group and member.until_us > now_us]
    return sorted(found, key=lambda member: member.taker)


def share(members: list[Member], taker: bytes, shards: int) -> frozenset[int] | None:
    """The shards of that process; None, so all, if it is alone or does not count as there yet.

    >>> two = [Member("", b"a", 9), Member("", b"b", 9)]
    >>> sorted(share(two, b"b", 5)), share(two, b"c", 5), share(two[:1], b"a", 5)
    ([1, 3], None, None)
    """
    names = [member.taker for member in members]
    if taker not in names or len(names) == 1:
        return None
    if len(names) > shards:
        # more processes than shards: each shard is that of several
        return frozenset([names.index(taker) % shards])
    return frozenset(range(names.index(taker), shards, len(names)))


def next_change_us(members: Iterable[Member], taker: bytes, now_us: int, renew_us: int) -> int:
    """When this process should look again: it must say that it is there, or another one counts no more."""
    due = [member.until_us - (renew_us if member.taker == taker else 0) for member in members]
    return max(now_us, min(due, default=now_us))
