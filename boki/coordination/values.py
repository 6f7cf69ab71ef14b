"""How values stand in ZooKeeper: JSON, with a version and the token of its writer, compressed where it is long."""

from __future__ import annotations

import zlib
from typing import Any, Final, TypeVar

import msgspec

from boki.errors import ConfigError, VersionTooNew

VERSION: Final = 1
"""Of everything that stands there. What is newer is refused by name."""
_PLAIN, _PACKED = b"J", b"Z"
_PACK_BYTES: Final = 4096
_MAX_BYTES: Final = 32 << 20
"""What a value may be when it is unpacked: a placement of 100,000 shards has a third of it."""
_T = TypeVar("_T")


class _Written(msgspec.Struct, frozen=True):
    """How every value is wrapped."""

    version: int
    writer: str
    value: msgspec.Raw


def encode(value: Any, writer: str = "") -> bytes:
    """The value as it is stored. A node of ZooKeeper holds at most a megabyte, so long ones are compressed."""
    body = msgspec.json.encode(_Written(VERSION, writer, msgspec.Raw(msgspec.json.encode(value))))
    return _PACKED + zlib.compress(body) if len(body) > _PACK_BYTES else _PLAIN + body


def decode(path: str, data: bytes, kind: type[_T]) -> _T:
    """What stands at `path`. `VersionTooNew` if a newer Boki wrote it, `ConfigError` if it is not Boki's."""
    try:
        return msgspec.json.decode(_unwrap(path, data).value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"ZooKeeper's {path} is damaged: {error}") from None


def writer_of(path: str, data: bytes) -> str:
    """The token of its writer."""
    return _unwrap(path, data).writer


def _unpack(packed: bytes) -> bytes:
    """A megabyte that was made to be a gigabyte is refused, before it is that."""
    unpacking = zlib.decompressobj()
    body = unpacking.decompress(packed, _MAX_BYTES)
    if not unpacking.eof:
        raise zlib.error(f"it is cut off, or has more than {_MAX_BYTES} bytes")
    return body


def _unwrap(path: str, data: bytes) -> _Written:
    try:
        body = _unpack(data[1:]) if data[:1] == _PACKED else data[1:]
        written = msgspec.json.decode(body, type=_Written)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, zlib.error) as error:
        raise ConfigError(f"ZooKeeper's {path} is not Boki's ({error}): choose another chroot") from None
    if written.version > VERSION:
        raise VersionTooNew(
            f"ZooKeeper's {path} was written by data version {written.version}, and this Boki knows {VERSION}: upgrade"
        )
    return written
