"""What a sequencer says of itself: to controllers, which judge it by that, and to operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from boki.log.ids import LogId, Term
from boki.protocol.messages import Pong
from boki.sequencer.metalog_store import MetalogStore, Phase
from boki.sequencer.primary import Primary

_STALL_US: Final = 1_000_000
"""A primary whose entry has waited this long for a majority that it may be cut off from the others."""
_MAX_STALL_US: Final = 16_000_000
_STALL_SYNCS: Final = 3
"""An entry that comes during a sync waits for that one and for its own."""


def stall_us(sync_us: int) -> int:
    """How long an entry may wait for a majority, where this disk's last sync took `sync_us`. The next primary's disk is
    mostly like this one: a term that ends sooner than an entry is synced is followed by others like it.
    """
    return min(max(_STALL_US, _STALL_SYNCS * sync_us), _MAX_STALL_US)


def pong(
    number: int,
    term: Term,
    incarnation: int,
    kept_from_term: Term,
    stores: Collection[MetalogStore],
    primaries: Mapping[LogId, Primary],
    now_us: int,
) -> Pong:
    """The answer to a ping. `stores`: those of the current term."""
    is_sealed = any(store.phase is not Phase.OPEN for store in stores)
    wants_new_term = any(
        primary.is_nearly_full
        or (store.committed < store.length and now_us - primary.proposed_at > stall_us(primary.sync_us))
        for store in stores
        if (primary := primaries.get(store.log)) is not None
    )
    leads = () if is_sealed else tuple(sorted(primaries))
    return Pong(number, term, incarnation, is_sealed, leads, wants_new_term, kept_from_term)


def figures(term: Term, stores: Collection[MetalogStore], primaries: Mapping[LogId, Primary]) -> dict[str, Any]:
    """What an operator wants to know, as JSON values: per log, how many entries are here, and known committed."""
    return {
        "term": term,
        "leads": sorted(primaries),
        "is_sealed": any(store.phase is not Phase.OPEN for store in stores),
        "logs": {str(store.log): {"entries": store.length, "committed": store.committed} for store in stores},
    }
