"""The bytes on the wire between nodes, version 1.

One ZeroMQ message is a **pack**: messages of one node to one other on one lane, in order. Its first frame is::

    "boki" ‖ version (1 byte) ‖ length of the envelope (2 bytes, big-endian) ‖ envelope ‖ body

The **envelope** says who speaks to whom: a msgpack array of `Envelope`'s fields. It is the same for everything between
two incarnations on all lanes, so both sides keep it as bytes and compare it by one look into a dictionary. It is in
every pack, because a connection may come to lead to another process without either side having noticed.

The **body** is a msgpack array of messages, each an array that begins with its class's name. What is large rides as a
frame of its own, behind the first one; its place in the body is taken by a mark, and marks and frames match in order:
``StoreBatch+`` and ``IndexBatch+`` (the frame is the batch), ``BatchesFetched+`` (with the message without its batches,
and how many frames follow) and ``+`` (the frame is the message, encoded).

A **refusal** goes back on the same connection: "boki" ‖ 0 ‖ the reason in UTF-8, in all versions of this format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

import msgspec

from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.protocol.messages import BatchesFetched, IndexBatch, Message, StoreBatch

VERSION: Final = 1
MAGIC: Final = b"boki"
APART_BYTES: Final = 4096
"""What is at least this large rides in a frame of its own: below, copying it costs less than a frame."""
MAX_FRAMES: Final = 32_768
"""The most frames of one pack."""
MAX_PACK_MESSAGES: Final = 4096
"""The most messages of one pack."""
REFUSAL: Final = MAGIC + b"\x00"
MAX_REFUSAL_BYTES: Final = 1024

_ENVELOPE_AT: Final = len(MAGIC) + 3
_MAX_ENVELOPE_BYTES: Final = 2048


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who speaks to whom."""

    cluster: str
    sender: NodeId
    role: Role
    incarnation: int
    to: NodeId
    to_incarnation: int


class Refusal(Exception):
    """Why a pack is not taken."""


class _StoreBatchApart(Message, frozen=True, tag="StoreBatch+"):
    """The next frame is the batch."""


class _IndexBatchApart(Message, frozen=True, tag="IndexBatch+"):
    """The next frame is the batch."""


class _BatchesFetchedApart(Message, frozen=True, tag="BatchesFetched+"):
    """The next frames are its batches."""

    message: BatchesFetched
    count: int


class _Apart(Message, frozen=True, tag="+"):
    """The next frame is the message."""


_MARKS: Final = frozenset({_StoreBatchApart, _IndexBatchApart, _BatchesFetchedApart, _Apart})

_encoder: Final = msgspec.msgpack.Encoder()
_envelope_decoder: Final = msgspec.msgpack.Decoder(Envelope)
_STORE_APART: Final = _encoder.encode(_StoreBatchApart())
_INDEX_APART: Final = _encoder.encode(_IndexBatchApart())
_APART: Final = _encoder.encode(_Apart())


def encode_envelope(envelope: Envelope) -> bytes:
    """How every pack under this envelope begins."""
    data = _encoder.encode(envelope)
    assert len(data) <= _MAX_ENVELOPE_BYTES, f"names are too long: {envelope}"
    return MAGIC + bytes((VERSION,)) + len(data).to_bytes(2, "big") + data


def split_envelope(frame: bytes | memoryview) -> tuple[bytes, memoryview]:
    """What `decode_envelope` reads, and the body. `Refusal` if the frame is not of this version's form."""
    if len(frame) < _ENVELOPE_AT or frame[: len(MAGIC)] != MAGIC:
        raise Refusal("this is not Boki's protocol between nodes")
    if frame[4] != VERSION:
        raise Refusal(f"protocol version {frame[4]}, and here it is {VERSION}: run the same Boki on all nodes")
    end = _ENVELOPE_AT + (frame[5] << 8 | frame[6])
    if not _ENVELOPE_AT < end <= min(len(frame), _ENVELOPE_AT + _MAX_ENVELOPE_BYTES):
        raise Refusal(f"an envelope of {end - _ENVELOPE_AT} bytes in a frame of {len(frame)}")
    return bytes(frame[:end]), memoryview(frame)[end:]


def decode_envelope(prefix: bytes) -> Envelope:
    """Who speaks to whom. `Refusal` if that cannot be read."""
    try:
        return _envelope_decoder.decode(memoryview(prefix)[_ENVELOPE_AT:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refusal(f"an envelope that cannot be read: {error}") from None


def encode_refusal(reason: str) -> bytes:
    """The frame that tells a sender why it is not heard."""
    return REFUSAL + reason.encode(errors="backslashreplace")[:MAX_REFUSAL_BYTES]


def encode_message(message: Message) -> tuple[bytes, Sequence[bytes]]:
    """The message's place in a body, and the frames that belong to it."""
    match message:
        case StoreBatch(batch) if len(batch) >= APART_BYTES:
            return _STORE_APART, (batch,)
        case IndexBatch(batch) if len(batch) >= APART_BYTES:
            return _INDEX_APART, (batch,)
        case BatchesFetched() if sum(map(len, message.batches)) >= max(1, len(message.batches)) * APART_BYTES:
            bare = msgspec.structs.replace(message, batches=())
            return _encoder.encode(_BatchesFetchedApart(bare, len(message.batches))), message.batches
        case _:
            data = _encoder.encode(message)
            return (data, ()) if len(data) < APART_BYTES else (_APART, (data,))


def join_pack(prefix: bytes, places: Sequence[bytes]) -> bytes:
    r"""The first frame of a pack: the envelope, and the places of its messages.

    >>> join_pack(b"e", [b"a", b"b"])
    b'e\x92ab'
    """
    count = len(places)
    assert count <= MAX_PACK_MESSAGES
    head = bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
    return b"".join((prefix, head, *places))


class Decoder:
    """Reads packs that hold messages of `kinds`, and nothing else."""

    def __init__(self, kinds: Iterable[type[Message]]) -> None:
        known: Any = reduce(or_, kinds)
        marked: Any = reduce(or_, _MARKS, known)
        self._pack: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(list[marked])
        self._single: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(known)

    def decode(self, body: memoryview, frames: Sequence[bytes]) -> list[Message]:
        """The messages of a pack, in order; `Refusal` if it is not of the form above."""
        try:
            messages: list[Message] = self._pack.decode(body)
        except Exception as error:  # noqa: BLE001 - a stranger's bytes: whatever they bring about, they are refused
            raise Refusal(f"a pack that cannot be read: {error}") from None
        if len(messages) > MAX_PACK_MESSAGES:
            raise Refusal(f"a pack of {len(messages)} messages, and {MAX_PACK_MESSAGES} are allowed")
        if not frames and _MARKS.isdisjoint(map(type, messages)):
            return messages
        rest = iter(frames)
        try:
            whole = [self._join(message, rest) if type(message) in _MARKS else message for message in messages]
        except _Exhausted:
            raise Refusal("a pack with fewer frames than its messages speak of") from None
        except Exception as error:  # noqa: BLE001 - as above
            raise Refusal(f"a message that cannot be read: {error}") from None
        if next(rest, None) is not None:
            raise Refusal("a pack with more frames than its messages speak of")
        return whole

    def _join(self, mark: Message, frames: Iterator[bytes]) -> Message:
        """The message that a mark and the next frames stand for."""
        match mark:
            case _StoreBatchApart():
                return StoreBatch(_next(frames))
            case _IndexBatchApart():
                return IndexBatch(_next(frames))
            case _BatchesFetchedApart(message, count):
                return msgspec.structs.replace(message, batches=tuple(_next(frames) for _ in range(count)))
            case _:
                whole: Message = self._single.decode(_next(frames))
                return whole


class _Exhausted(Exception):
    """There is no next frame."""


def _next(frames: Iterator[bytes]) -> bytes:
    for frame in frames:
        return frame
    raise _Exhausted
