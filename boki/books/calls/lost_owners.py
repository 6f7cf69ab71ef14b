"""Which owners of logged calls are lost, so that their unfinished calls may be taken over once they are fenced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from boki.books.calls.waiting import NOBODY, Owner
from boki.log.ids import NodeId
from boki.log.membership import Member, Membership, Role

_VANISHED_US: Final = 1_000_000
"""A node whose entry another client has removed makes it again within this time."""


class LostOwners:
    """Judges by membership, which is a hint: an engine that is wrongly presumed lost is fenced, and restarts.

    An owner whose name has a newer incarnation is lost at once, also if that is this engine; one that is not
    registered, after a grace. That is short if its node did not say that it stops, and is gone with all its roles:
    ZooKeeper has not heard from it for a whole session. Times are microseconds.
    """

    def __init__(self, me: Owner, grace_us: int) -> None:
        self._me = me
        self._grace_us = grace_us
        self._membership = Membership(number=-1)
        self._missing_since: dict[Owner, int] = {}
        self._seen: dict[NodeId, Member] = {}
        """Engines as they were registered last."""

    @property
    def has_missing(self) -> bool:
        """Whether any owner that was asked about is not registered."""
        return bool(self._missing_since)

    def on_membership(self, membership: Membership) -> None:
        """Who is registered now."""
        if membership.number >= self._membership.number:
            self._membership = membership
            self._seen |= {member.node: member for member in membership.of(Role.ENGINE)}

    def among(self, owners: Iterable[Owner], now_us: int) -> list[Owner]:
        """Those of these owners that are lost."""
        missing: dict[Owner, int] = {}
        lost = []
        for owner in owners:
            newest = self._newest(owner.node)
            if owner == NOBODY or owner.incarnation < newest:
                lost.append(owner)
            elif owner.incarnation > newest:
                missing[owner] = self._missing_since.get(owner, now_us)
                if now_us - missing[owner] >= self._grace_of(owner):
                    lost.append(owner)
        self._missing_since = missing
        return lost

    def _grace_of(self, owner: Owner) -> int:
        seen = self._seen.get(NodeId(owner.node))
        if seen is None or seen.incarnation != owner.incarnation or seen.is_leaving:
            return self._grace_us
        has_vanished = all(member.process != seen.process for member in self._membership.members)
        return min(_VANISHED_US, self._grace_us) if has_vanished else self._grace_us

    def _newest(self, node: str) -> int:
        """The incarnation of that engine that is there; 0 if none is."""
        member = self._membership.find(NodeId(node))
        registered = member.incarnation if member is not None else 0
        return max(registered, self._me.incarnation) if node == self._me.node else registered
