"""Every decoder of bytes that may be damaged or a stranger's: it reads them, or raises what it documents."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from boki.api.http.exchange import HttpAnswer, json_answer, log_answer
from boki.coordination.values import decode, encode
from boki.engine.index.book import BookState
from boki.engine.index.layout import SMALL_STATE_KEY
from boki.engine.index.small_state import read_applied
from boki.errors import BokiError, ConnectionLost
from boki.gateway.server.http.binary import decode_request
from boki.libs.fold.codec import RecordCodec
from boki.log.batch import Batch, encode_batch
from boki.log.chunk import Chunk, Group, encode_chunk
from boki.log.cuts import OrderTable
from boki.log.metalog import Cut, OpenShard, Trim, decode_entry, encode_entry
from boki.log.view import View
from boki.protocol.messages import StateFetched
from boki.storage.state import Checkpoint
from boki.storage.takeover import Takeover
from tests.members import ENGINE, SHARD, view
from tests.world import MemoryDisk

SEEDS = 150
NESTED = (b"\x91" * 5000 + b"\xc0", b"\x81\xa1a" * 5000 + b"\xc0", b"[" * 5000, b"")
"""What makes decoders recurse, and nothing at all."""
CHUNK = encode_chunk("book", [Group([(b"x", ("tag", "other"))], (), "key"), Group([(b"y", ())])])
ENTRIES: RecordCodec[Any] = RecordCodec("boki:calls", 1, Trim | OpenShard)
TRIM = Trim("book", "täg", 7, False, ENGINE, 1)


def table() -> OrderTable:
    made = OrderTable(1, 0)
    made.apply_cut(Cut(10, ((SHARD, 3), (SHARD + 1, 2))))
    made.apply_cut(Cut(20, ((SHARD, 5),)))
    return made


def read_chunk(data: bytes) -> None:
    chunk = Chunk(data)
    chunk.verify_columns()
    chunk.groups()
    chunk.tag_rows()


def read_batch(data: bytes) -> None:
    _ = Batch(data).chunks


def read_small_state(data: bytes) -> None:
    disk = MemoryDisk()
    disk.rows[SMALL_STATE_KEY] = data
    read_applied(disk)


def read_peer_state(data: bytes) -> None:
    takeover = Takeover()
    takeover.take(ENGINE, StateFetched(0, data, size_bytes=len(data)), 0)


DECODERS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "chunk": (read_chunk, CHUNK),
    "batch": (read_batch, encode_batch(1, 0, SHARD, 0, [(CHUNK, 2)])),
    "metalog entry": (decode_entry, encode_entry(TRIM)),
    "entry of a system book": (ENTRIES.decode, ENTRIES.encode(TRIM)),
    "order table": (OrderTable.decode, table().encode()),
    "book state": (BookState.decode, BookState(*range(6)).encode()),
    "small state of the index": (read_small_state, msgspec.msgpack.encode((1, {0: 5}, [1], 1))),
    "peer's state": (read_peer_state, msgspec.msgpack.encode(Checkpoint({0: 5}))),
    "value in ZooKeeper": (lambda data: decode("/view", data, View), encode(view())),
    "long value in ZooKeeper": (lambda data: decode("/text", data, str), encode("x" * 9000)),
    "binary request": (decode_request, msgspec.msgpack.encode([0, {}, 1, ["Sync", "book"]])),
    "JSON answer": (lambda data: json_answer(HttpAnswer(200, {}, data)), b'{"a": "\xc3\xa4", "b": [1, 2]}'),
    "error answer": (lambda data: json_answer(HttpAnswer(404, {}, data)), b'{"code": "no", "message": "\xc3\xa4"}'),
    "binary answer": (lambda data: log_answer(HttpAnswer(200, {}, data), {}), msgspec.msgpack.encode([0, {}, None])),
}


def mutated(rng: Random, whole: bytes) -> bytes:
    """Some bytes exchanged, cut, doubled, or put in."""
    data = bytearray(whole)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case _:
                data[at:at] = data[: rng.randrange(len(data) + 1)]
    return bytes(data)


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_raises_only_what_it_documents(name: str) -> None:
    """Seeded mutations, deep nesting and nothing: each is read or refused, by an error of Boki's."""
    read, whole = DECODERS[name]
    rng = Random(name)
    refused = 0
    versioned = [whole[:1] + nested for nested in NESTED]
    for data in (*NESTED, *versioned, *(mutated(rng, whole) for _ in range(SEEDS))):
        try:
            read(data)
        except BokiError:
            refused += 1
    assert refused or name == "peer's state"  # which is refused by a line of the log


@pytest.mark.parametrize("body", [b"[]", b"7", b"null", b'"text"', b"[" * 5000, b'{"id": "\xff"}'])
def test_an_answer_that_is_no_json_object_is_no_answer_of_a_gateway(body: bytes) -> None:
    """A proxy in between may answer 200, too."""
    with pytest.raises(ConnectionLost, match=r"the answer is no JSON object"):
        json_answer(HttpAnswer(200, {}, body))


def test_a_chunk_without_records_has_no_groups() -> None:
    """Its columns may pass the check."""
    chunk = Chunk(encode_chunk("book", []))
    chunk.verify_columns()
    assert chunk.groups() == []
