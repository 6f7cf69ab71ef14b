"""Entries of the system books as record data: a byte of version, then msgpack."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import msgspec

from boki.errors import CorruptData, VersionTooNew

T = TypeVar("T")

_encode: Final = msgspec.msgpack.Encoder().encode


class EntryCodec(Generic[T]):
    """How the entries of one system book are written; `kinds` is the union of their types."""

    def __init__(self, book: str, version: int, kinds: Any) -> None:
        self._book = book
        self._version = version
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kinds)

    def encode(self, entry: T) -> bytes:
        """The record data of an entry."""
        return bytes((self._version,)) + _encode(entry)

    def decode(self, data: bytes) -> T:
        """The entry; `VersionTooNew` or `CorruptData` if these are not its bytes."""
        if data and data[0] > self._version:
            raise VersionTooNew(
                f"a record of book {self._book} has version {data[0]}, newer than this Boki's {self._version}: upgrade"
            )
        try:
            return self._decoder.decode(memoryview(data)[1:])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CorruptData(f"a record of book {self._book} cannot be read: {error}") from None
