"""What an operator wants to know of an engine."""

from __future__ import annotations

from typing import Any

from boki.engine.appends import Appends
from boki.engine.cache import RecordCache
from boki.engine.index.index import Index
from boki.engine.reads import Reads
from boki.engine.watches import Watches


def figures(
    incarnation: int, appends: Appends, reads: Reads, watches: Watches, index: Index, cache: RecordCache
) -> dict[str, Any]:
    """As JSON values."""
    return {
        "incarnation": incarnation,
        "appended_records": appends.record_count,
        "batches": appends.batch_count,
        "unordered_bytes": appends.pending_bytes,
        "waiting_reads": reads.pending_count,
        "watched_rows": watches.count,
        "index_bytes": index.memory_bytes_used,
        "cache_bytes": cache.used_bytes,
        "cache_hits": cache.hits,
        "cache_misses": cache.misses,
    }
