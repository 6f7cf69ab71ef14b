"""Records of a library as record data: one byte of version, then a MessagePack array whose first item names the kind.

Anyone who may append to a book may append under a library's tags, so a reader meets three kinds of bytes: records of a
version that it knows, records of a newer version, and bytes of strangers. The first byte and the beginning of an array
tell them apart; no text has both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from boki.errors import CorruptData, VersionTooNew

R = TypeVar("R")
T = TypeVar("T")

MAX_VERSION: Final = 31
"""Versions are control characters, so that no text looks like a record."""
_ARRAYS: Final = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))
"""How an array begins in MessagePack."""

_encode: Final = msgspec.msgpack.Encoder().encode


class RecordCodec(Generic[R]):
    """Encodes and decodes the records of one library, or of one system book.

    `kind` names them in errors, after "a record of". `union` is the union of their types: tagged, array-like structs.
    Versions from `oldest` to `version` can be read. `since` names the types that an older version does not know or
    would read wrongly, each with the version that brought it; the others are written as `oldest`, so that an older
    Boki still reads them. Without `since` every record is written as `version`.
    """

    def __init__(
        self, kind: str, version: int, union: Any, *, oldest: int = 1, since: Mapping[type, int] | None = None
    ) -> None:
        assert 0 < oldest <= version <= MAX_VERSION, "versions are 1 to 31"
        self._kind = kind
        self.version = version
        self._oldest = oldest
        self._since = since or {}
        self._default = bytes((version if since is None else oldest,))
        self._decoder: msgspec.msgpack.Decoder[R] = msgspec.msgpack.Decoder(union)

    def encode(self, record: R) -> bytes:
        """The record's data."""
        version = self._since.get(type(record))
        return (self._default if version is None else bytes((version,))) + _encode(record)

    def decode(self, data: bytes) -> R:
        """The record; `VersionTooNew` or `CorruptData` if these are not its bytes."""
        version = data[0] if data else 0
        if self.version < version <= MAX_VERSION:
            raise VersionTooNew(
                f"a record of {self._kind} has version {version}, newer than this Boki's {self.version}: upgrade"
            )
        if not self._oldest <= version <= self.version:
            raise CorruptData(f"a record of {self._kind} has no version that was ever written: it is a stranger's")
        try:
            return self._decoder.decode(memoryview(data)[1:])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CorruptData(f"a record of {self._kind} cannot be read: {error}") from None

    def is_own(self, data: bytes) -> bool:
        """Whether a version of the library, perhaps a newer one, wrote this: by its first two bytes."""
        return len(data) > 1 and 0 < data[0] <= MAX_VERSION and data[1] in _ARRAYS

    def is_newer(self, data: bytes) -> bool:
        """Whether a newer version of the library wrote this."""
        return self.is_own(data) and data[0] > self.version

    def own(self, data: bytes) -> R | None:
        """The record, or None: the bytes are a stranger's or damaged, and every fold passes them by alike.

        `VersionTooNew`: a newer version wrote it, and to pass it by would mean to disagree with those who know it.
        """
        if not self.is_own(data):
            return None
        try:
            return self.decode(data)
        except CorruptData:
            return None


def runs(items: Sequence[T], size_of: Callable[[T], int], most_bytes: int, most: int = 10_000) -> Iterator[list[T]]:
    """The items in runs that fit together: by their sizes in bytes, and their number. Each run has one at least."""
    start = size_bytes = 0
    for at, item in enumerate(items):
        own = size_of(item)
        size_bytes += own
        if at > start and (size_bytes > most_bytes or at - start == most):
            yield list(items[start:at])
            start, size_bytes = at, own
    if items:
        yield list(items[start:])
