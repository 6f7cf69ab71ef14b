"""Fencing engines that are gone: nothing more of theirs is ordered, so that others may take their work over.

An engine is known by its open shards. If its incarnation is not registered any more, a `CloseShard(is_lost=True)` is
requested in every log where it has one, until a storage node shows the shard closed. Registration is a hint, so an
engine that still lives may be fenced by mistake: it finds its fence in the metalog, stops, and comes back as another
incarnation. If its name is registered again already, it surely is gone, and is fenced at once.
"""

from __future__ import annotations

from typing import Final

from boki.controller.inventory import Inventory
from boki.log.ids import shard_incarnation
from boki.log.membership import Membership, Role
from boki.log.metalog import CloseShard
from boki.log.view import View
from boki.protocol.effects import Effect, Send
from boki.protocol.messages import RequestEntry

_REPEAT_US: Final = 500_000


class Fences:
    """Engines that were seen and are not registered; they are given `grace_us` to come back."""

    def __init__(self, grace_us: int) -> None:
        self._grace_us = grace_us
        self._gone_since: dict[int, int] = {}
        self._repeat_at = 0
        self.fencing: dict[int, int] = {}
        """Incarnations that are being fenced, and how many open shards they have."""

    def tick(self, inventory: Inventory, membership: Membership, view: View, now_us: int) -> list[Effect]:
        """The requests that are due, for open shards of the view's term."""
        if now_us < self._repeat_at or not membership.number:
            return []
        self._repeat_at = now_us + _REPEAT_US
        here = {member.incarnation for member in membership.of(Role.ENGINE)}
        newest = {member.node: member.incarnation for member in membership.of(Role.ENGINE)}
        gone: dict[int, int] = {}
        self.fencing = {}
        requests: dict[tuple[int, int], Effect] = {}
        for (term, log, shard), row in sorted(inventory.shards(view.term).items()):
            incarnation = shard_incarnation(shard)
            if row.is_closed or term != view.term or log >= view.log_count or incarnation in here:
                continue
            since = gone[incarnation] = self._gone_since.get(incarnation, now_us)
            is_replaced = row.engine is not None and newest.get(row.engine, 0) > incarnation
            if is_replaced or now_us - since >= self._grace_us:
                self.fencing[incarnation] = self.fencing.get(incarnation, 0) + 1
                fence = RequestEntry(term, log, CloseShard(shard, is_lost=True))
                requests.setdefault((log, incarnation), Send(view.primaries[log], fence))
        self._gone_since = gone
        return list(requests.values())
