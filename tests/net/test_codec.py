"""The bytes on the wire: what goes in comes out, version 1 stays as it is, and nothing else gets through."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.log.metalog import Cut
from boki.net.codec import (
    APART_BYTES,
    MAX_PACK_MESSAGES,
    Decoder,
    Envelope,
    Refusal,
    decode_envelope,
    encode_envelope,
    encode_message,
    encode_refusal,
    join_pack,
    split_envelope,
)
from boki.net.traffic import RULES
from boki.protocol.messages import AppendEntry, BatchesFetched, Holding, IndexBatch, Message, Ping, StoreBatch
from tests.net.strategies import ANY_MESSAGE, MESSAGES

ENVELOPE = Envelope("c1", NodeId("engine-1"), Role.ENGINE, 7, NodeId("storage-1"), 3)
PREFIX = encode_envelope(ENVELOPE)
DECODER = Decoder(RULES)


def encode(*messages: Message) -> tuple[bytes, list[bytes]]:
    """A pack's first frame, and the others."""
    encoded = [encode_message(message) for message in messages]
    return join_pack(PREFIX, [place for place, _ in encoded]), [frame for _, frames in encoded for frame in frames]


def decode(first: bytes, frames: list[bytes]) -> list[Message]:
    """What an inlet makes of a pack."""
    prefix, body = split_envelope(memoryview(first))
    decode_envelope(prefix)
    return DECODER.decode(body, frames)


@pytest.mark.parametrize("kind", sorted(MESSAGES, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_every_message_comes_out_as_it_went_in(kind: type[Message]) -> None:
    """For each class that travels, whatever its fields hold, and however large they are."""

    @settings(max_examples=15, deadline=None)
    @given(MESSAGES[kind])
    def holds(message: Message) -> None:
        first, frames = encode(message)
        assert decode(first, frames) == [message]

    holds()


@settings(max_examples=50, deadline=None)
@given(st.lists(ANY_MESSAGE, max_size=20))
def test_a_pack_keeps_its_messages_in_order(messages: list[Message]) -> None:
    """Frames of their own find the messages that they belong to."""
    first, frames = encode(*messages)
    assert decode(first, frames) == messages


def test_a_pack_may_hold_many_messages() -> None:
    """More than fit into the short head, up to the limit; one more is refused."""
    pings: list[Message] = [Ping(number) for number in range(MAX_PACK_MESSAGES)]
    assert decode(*encode(*pings)) == pings
    body = b"\xdc" + (MAX_PACK_MESSAGES + 1).to_bytes(2, "big") + encode_message(Ping(1))[0] * (MAX_PACK_MESSAGES + 1)
    with pytest.raises(Refusal, match="4097 messages"):
        decode(PREFIX + body, [])


@pytest.mark.parametrize("kind", [StoreBatch, IndexBatch])
def test_a_large_batch_is_not_copied_into_the_body(kind: type[StoreBatch | IndexBatch]) -> None:
    """It rides as a frame of its own, which is the very object that was sent."""
    batch = bytes(APART_BYTES)
    place, frames = encode_message(kind(batch))
    assert len(place) < 20
    assert frames[0] is batch


def test_fetched_batches_ride_apart_if_they_are_large() -> None:
    """Many small ones stay together: each frame costs more than copying a few bytes."""
    large = BatchesFetched(1, 1, 0, 5, 0, Holding.HAVE, (bytes(APART_BYTES), bytes(2 * APART_BYTES)))
    assert len(encode_message(large)[1]) == 2
    small = BatchesFetched(1, 1, 0, 5, 0, Holding.HAVE, (b"x" * 100,) * 1000)
    assert len(encode_message(small)[1]) == 1
    assert decode(*encode(large, small)) == [large, small]


BEGIN = "626f6b6901002096a26331a8656e67696e652d31a6656e67696e6507a973746f726167652d3103"
END = "92aa53746f72654261746368c405736d616c6c91ab53746f726542617463682b"
ENTRY_BEFORE = "96ab417070656e64456e7472790200059193a3637574cf00060a24181e40009192ce007000000a04"
ENTRY = "97ab417070656e64456e7472790200059194a3637574cf00060a24181e40009192ce007000000ac20400"


def test_version_1_stays_as_it_is() -> None:
    """Golden bytes: another Boki that speaks version 1 must understand these forever. Fields may come at an end: who
    does not know them overlooks them, and who does, reads what was sent without.
    """
    entry = AppendEntry(2, 0, 5, (Cut(1_700_000_000_000_000, ((7 << 20, 10),)),), 4)
    messages = (Ping(1), entry, StoreBatch(b"small"), StoreBatch(bytes(APART_BYTES)))
    first, frames = encode(*messages)
    assert first.hex() == f"{BEGIN}9492a450696e6701{ENTRY}{END}"
    assert frames == [bytes(APART_BYTES)]
    before = bytes.fromhex(f"{BEGIN}9492a450696e6701{ENTRY_BEFORE}{END}")
    assert decode(before, frames) == list(messages)
    assert encode_refusal("no").hex() == "626f6b69006e6f"


def test_a_field_that_is_not_known_is_overlooked() -> None:
    """As by a node of the version before that field."""

    class AppendEntryBefore(Message, frozen=True, tag="AppendEntry"):
        term: int
        log: int
        index: int
        entries: tuple[list[object], ...]
        committed: int

    entry = msgspec.msgpack.decode(bytes.fromhex(ENTRY), type=AppendEntryBefore)
    assert entry.committed == 4


def test_other_versions_are_refused_by_name() -> None:
    """Whatever follows the version byte of another version is not looked at."""
    with pytest.raises(Refusal, match="protocol version 2, and here it is 1"):
        split_envelope(memoryview(b"boki\x02whatever"))
    with pytest.raises(Refusal, match="not Boki's protocol"):
        split_envelope(memoryview(b"GET / HTTP/1.1\r\n"))


@pytest.mark.parametrize(
    ("body", "frames", "reason"),
    [
        (b"", [], "cannot be read"),
        (b"\xc0", [], "cannot be read"),
        (b"\xdd\xff\xff\xff\xff", [], "cannot be read"),
        (b"\x91\x92\xa4Ping\xa1x", [], "cannot be read"),
        (b"\x91\x92\xa4Pong\xff", [], "cannot be read"),
        (b"\x91\x91\xa4Nope", [], "cannot be read"),
        (b"\x91" + msgspec.msgpack.encode(["InstallView", []]), [], "cannot be read"),
        (b"\x91\x92\xa4Ping\x01trailing", [], "cannot be read"),
        (b"\x91" * 100_000, [], "cannot be read"),
        (b"\x91\x92\xa4Ping\x01", [b"one too many"], "more frames"),
        (b"\x91\x91\xabStoreBatch+", [], "fewer frames"),
        (b"\x92\x91\xabStoreBatch+\x91\xabIndexBatch+", [b"one"], "fewer frames"),
        (b"\x91\x91\xa1+", [b"\x91\xabStoreBatch+"], "cannot be read"),
        (b"\x91\x91\xa1+", [b"\x91\xa1+"], "cannot be read"),
        (b"\x91\x91\xa1+", [b""], "cannot be read"),
    ],
)
def test_what_is_no_pack_is_refused(body: bytes, frames: list[bytes], reason: str) -> None:
    """Each way to be wrong that was thought of ends in a `Refusal`, before anything is delivered."""
    with pytest.raises(Refusal, match=reason):
        decode(PREFIX + body, frames)


def test_a_count_of_frames_is_checked_before_it_is_believed() -> None:
    """A message that claims more frames than there are does not make room for them."""
    bare = BatchesFetched(1, 1, 0, 5, 0, Holding.HAVE, ())
    for count in (1 << 40, 1, -1):
        body = b"\x91" + msgspec.msgpack.encode(["BatchesFetched+", bare, count])
        with pytest.raises(Refusal):
            decode(PREFIX + body, [b"a", b"b"] if count < 0 else [])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_packs_are_refused_or_read_and_nothing_else(data: st.DataObject) -> None:
    """Whatever bytes change, go or come: a `Refusal` or messages, never another exception."""
    first, frames = encode(*data.draw(st.lists(ANY_MESSAGE, min_size=1, max_size=3)))
    start = data.draw(st.integers(0, len(first)))
    stop = data.draw(st.integers(start, min(len(first), start + 8)))
    damaged = first[:start] + data.draw(st.binary(max_size=8)) + first[stop:]
    with contextlib.suppress(Refusal):
        assert all(type(message) in RULES for message in decode(damaged, frames))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.lists(st.binary(max_size=20), max_size=3))
def test_noise_is_refused(noise: bytes, frames: list[bytes]) -> None:
    """Bytes that no Boki wrote."""
    for first in (noise, b"boki" + noise, b"boki\x01" + noise):
        with pytest.raises(Refusal):
            decode(first, frames)
