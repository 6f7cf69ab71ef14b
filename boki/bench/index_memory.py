"""How much memory the index takes for a record: a process of its own that holds nothing but an index.

The figure is the growth of the process's resident memory, so it counts what the allocator and Python add, and not only
what the index believes that it uses (which is printed beside it). Records come in chunks of 1,000, one cut each.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from boki.bench.rows import Row
from boki.engine.index.index import Index
from boki.errors import Unavailable
from boki.log.batch import Batch, encode_batch
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import LogId, NodeId, ShardId, Term
from boki.log.metalog import Cut, OpenShard
from boki.log.view import View

CHUNK_RECORDS = 1_000
SHARED_BY = 100
_TERM, _LOG, _SHARD = Term(1), LogId(0), ShardId(1)
_NODE = NodeId("n")


def measure(record_count: int, *, unique: bool) -> dict[str, float]:
    """Fill an index in another process: resident bytes and the index's own bytes, for each record."""
    arguments = [sys.executable, "-P", "-m", __name__, str(record_count), "unique" if unique else "shared"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"the process that fills an index failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def row(record_count: int, *, unique: bool, replicas: int, durability: str) -> Row:
    """The measurement as a row."""
    found = measure(record_count, unique=unique)
    return Row(
        bench="memory",
        inflight=1,
        size_bytes=0,
        replicas=replicas,
        durability=durability,
        ops_per_s=None,
        p50_ms=None,
        p99_ms=None,
        errors=0,
        details={"records": record_count, "tags": "2 unique" if unique else f"2 shared by {SHARED_BY}", **found},
    )


class _EmptyDisk:
    """An index that begins reads nothing."""

    def get(self, _key: bytes) -> bytes | None:
        return None

    def scan(self, _start: bytes, _stop: bytes, *, backward: bool = False) -> Iterable[tuple[bytes, bytes]]:  # noqa: ARG002
        return ()


def _tags(number: int, record_count: int, *, unique: bool) -> tuple[str, str]:
    """Two tags from independent sets, so that the records of one are spread over those of the other."""
    if unique:
        return f"order:{number}", f"customer:{number}"
    distinct = max(1, record_count // SHARED_BY)
    return f"order:{number % distinct}", f"customer:{number * 7919 % distinct}"


def fill(record_count: int, tags: Callable[[int], tuple[str, ...]]) -> dict[str, float]:
    """Fill an index in this process with records that have the tags of their number."""
    view = View(
        term=_TERM,
        log_count=1,
        sequencers=(_NODE,),
        primaries=(_NODE,),
        incarnations={_NODE: 1},
        storage=(_NODE,),
        replicas=1,
        write_quorum=1,
    )
    index = Index(_EmptyDisk(), memory_bytes=1 << 40, key_window_us=1)
    index.begin_term(view)
    index.apply(_LOG, OpenShard(_SHARD, _NODE, (_NODE,)))
    before_bytes = resident_bytes()
    for first in range(0, record_count, CHUNK_RECORDS):
        numbers = range(first, min(first + CHUNK_RECORDS, record_count))
        group = Group([(b"", tags(number)) for number in numbers])
        chunk = encode_chunk("orders", [group])
        batch = Batch(encode_batch(_TERM, _LOG, _SHARD, first, [(chunk, len(numbers))]))
        index.apply(_LOG, Cut(1 + first, ((_SHARD, numbers.stop),)), [batch])
    after_bytes = resident_bytes()
    return {
        "bytes_per_record": round((after_bytes - before_bytes) / record_count, 1),
        "own_bytes_per_record": round(index.memory_bytes_used / record_count, 1),
    }


def resident_bytes() -> int:
    """Resident memory of this process."""
    gc.collect()
    resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return resident_pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    count, is_unique = int(sys.argv[1]), sys.argv[2] == "unique"
    print(json.dumps(fill(count, lambda number: _tags(number, count, unique=is_unique))))
