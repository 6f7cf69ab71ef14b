"""Which owners of logged calls are lost, so that their unfinished calls may be taken over once they are fenced."""

from __future__ import annotations

from collections.abc import Iterable

from boki.books.calls.waiting import NOBODY, Owner
from boki.log.ids import NodeId
from boki.log.membership import Membership


class LostOwners:
    """Judges by membership, which is a hint: an engine that is wrongly presumed lost is fenced, and restarts.

    An owner whose name has a newer incarnation is lost at once, also if that is this engine; one that is not
    registered, after a grace. Times are microseconds.
    """

    def __init__(self, me: Owner, grace_us: int) -> None:
        self._me = me
        self._grace_us = grace_us
        self._membership = Membership(number=-1)
        self._missing_since: dict[Owner, int] = {}

    @property
    def has_missing(self) -> bool:
        """Whether any owner that was asked about is not registered."""
        return bool(self._missing_since)

    def on_membership(self, membership: Membership) -> None:
        """Who is registered now."""
        if membership.number >= self._membership.number:
            self._membership = membership

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
                if now_us - missing[owner] >= self._grace_us:
                    lost.append(owner)
        self._missing_since = missing
        return lost

    def _newest(self, node: str) -> int:
        """The incarnation of that engine that is there; 0 if none is."""
        member = self._membership.find(NodeId(node))
        registered = member.incarnation if member is not None else 0
        return max(registered, self._me.incarnation) if node == self._me.node else registered
