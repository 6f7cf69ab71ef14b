"""Views, batches and nodes for tests of the roles' cores."""

from __future__ import annotations

from typing import Any

from boki.log.batch import encode_batch
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import NodeId, make_shard
from boki.log.view import View

ENGINE = NodeId("engine-1")
SHARD = make_shard(7, 0)


def view(term: int = 1, *, storage: int = 3, sequencers: int = 3, **changes: Any) -> View:
    """A view over nodes named storage-1.., sequencer-1.., whose incarnation is always 1."""
    names = tuple(NodeId(f"sequencer-{n}") for n in range(1, sequencers + 1))
    settings: dict[str, Any] = {
        "term": term,
        "log_count": 1,
        "sequencers": names,
        "primaries": (names[0],),
        "incarnations": dict.fromkeys(names, 1),
        "storage": tuple(NodeId(f"storage-{n}") for n in range(1, storage + 1)),
        "replicas": storage,
        "write_quorum": storage // 2 + 1,
    }
    return View(**(settings | changes))


def batch(
    first_lid: int,
    *data: bytes,
    book: str = "book",
    tags: tuple[str, ...] = ("tag",),
    term: int = 1,
    shard: int = SHARD,
) -> bytes:
    """A batch of one chunk with one record for each `data`."""
    chunk = encode_chunk(book, [Group([(payload, tags)]) for payload in data])
    return encode_batch(term, 0, shard, first_lid, [(chunk, len(data))])


def chunk_of(book: str, *data: bytes, tags: tuple[str, ...] = ()) -> bytes:
    """A chunk with one record for each `data`."""
    return encode_chunk(book, [Group([(payload, tags)]) for payload in data])
