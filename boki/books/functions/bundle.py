"""Bundles: the files of a functions folder as bytes, the same bytes for the same files, and back.

A bundle is two letters, a version byte and a sorted list of (path, content). It holds no times, owners, modes or
links, so equal folders have equal hashes, and unpacking one can make nothing but files below its folder. Whoever takes
a bundle from elsewhere lets `read_bundle` look at it first: it refuses every path that is not a plain relative one.

`boki.books.functions.folder` makes one of a folder.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

import msgspec

from boki.errors import InvalidArgument, TooLarge, VersionTooNew
from boki.log.limits import MIB

MAGIC: Final = b"BF"
VERSION: Final = 1
MAX_BUNDLE_BYTES: Final = 16 * MIB
MAX_FILES: Final = 4000
_HEAD_BYTES: Final = 3
_MAX_PATH_BYTES: Final = 512
_MAX_NAME_BYTES: Final = 255
_SHORT_LIST: Final = 0x90
_LIST_SIZES: Final = {0xDC: 2, 0xDD: 4}
"""Bytes of the length that follows these marks of a msgpack list."""
_MAX_DEPTH: Final = 32
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\\]")


class File(msgspec.Struct, frozen=True, array_like=True):
    """One file: its path below the folder, with slashes, and its content."""

    path: str
    content: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final[msgspec.msgpack.Decoder[tuple[File, ...]]] = msgspec.msgpack.Decoder(tuple[File, ...])


def pack_files(files: list[File]) -> bytes:
    """Files as a bundle, in whatever order they come."""
    bundle = MAGIC + bytes((VERSION,)) + _encode(sorted(files, key=lambda file: file.path))
    _check(files)
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise too_large("")
    return bundle


def read_bundle(bundle: bytes) -> tuple[File, ...]:
    """The files of a bundle from anywhere, if it is one and all its paths lie below its folder."""
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise too_large("")
    if bundle[:2] != MAGIC or len(bundle) < _HEAD_BYTES:
        raise InvalidArgument("this is no bundle of functions: boki deploy makes one of a folder", field="bundle")
    if bundle[2] > VERSION:
        raise VersionTooNew(f"a bundle of version {bundle[2]} is newer than this Boki's {VERSION}: upgrade")
    _check_count(_claimed_count(bundle))  # before anything is made of it: an empty file needs four bytes there
    try:
        files = _decoder.decode(memoryview(bundle)[_HEAD_BYTES:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidArgument(f"this is no bundle of functions: {why}", field="bundle") from None
    _check(files)
    return files


def bundle_hash(bundle: bytes) -> str:
    """What identifies a bundle: the SHA-256 of its bytes, in hex."""
    return sha256(bundle).hexdigest()


def module_names(files: tuple[File, ...] | list[File]) -> list[str]:
    """The modules that register functions."""
    return [file.path.removesuffix(".py") for file in files if re.fullmatch(r"[^_./][^/]*\.py", file.path)]


def _claimed_count(bundle: bytes) -> int:
    """How many files the head of the list claims; 0 if it is no list, which its decoder says."""
    kind = bundle[_HEAD_BYTES] if len(bundle) > _HEAD_BYTES else 0
    if kind & 0xF0 == _SHORT_LIST:
        return kind & 0x0F
    size = _LIST_SIZES.get(kind, 0)
    return int.from_bytes(bundle[_HEAD_BYTES + 1 : _HEAD_BYTES + 1 + size], "big")


def _check_count(count: int) -> None:
    if count > MAX_FILES:
        raise TooLarge(
            f"a bundle may have at most {MAX_FILES:,} files, not {count:,}: leave data out of the folder",
            field="bundle",
            limit=MAX_FILES,
        )


def _check(files: tuple[File, ...] | list[File]) -> None:
    _check_count(len(files))
    paths = {file.path for file in files}
    if len(paths) < len(files):
        raise InvalidArgument("a file is twice in the bundle", field="bundle")
    for path in paths:
        _check_path(path)
        parents = path.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            if "/".join(parents[:depth]) in paths:
                raise InvalidArgument(f"{path!r} lies below another file of the bundle", field="bundle")
    if not module_names(files):
        raise InvalidArgument(
            "there is no module in it: functions are registered by .py files at the top of the folder, whose names do "
            "not start with an underscore",
            field="bundle",
        )


def _check_path(path: str) -> None:
    parts = path.split("/")
    is_plain = all(parts) and not any(part.startswith(".") for part in parts)  # no "..", no "/abs", nothing hidden
    is_sane = _CONTROL.search(path) is None and ":" not in parts[0]
    if not is_plain or not is_sane:
        raise InvalidArgument(f"a bundle must not hold the path {path[:100]!r}", field="bundle")
    if any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
        raise TooLarge(
            f"a name in a bundle may have at most {_MAX_NAME_BYTES} bytes, as in file systems: {path[:100]!r}",
            field="bundle",
            limit=_MAX_NAME_BYTES,
        )
    if len(path.encode()) > _MAX_PATH_BYTES or len(parts) > _MAX_DEPTH:
        raise TooLarge(
            f"paths in a bundle may have {_MAX_PATH_BYTES} bytes and {_MAX_DEPTH} levels: {path[:100]!r}",
            field="bundle",
        )


def too_large(what: str) -> TooLarge:
    """The error for a bundle over the limit; `what` says with what it crossed it, or is empty."""
    return TooLarge(
        f"a bundle may have at most {MAX_BUNDLE_BYTES:,} bytes, and {what}this one has more: leave data out of the "
        "folder, and append it to a LogBook or fetch it when the function runs",
        field="bundle",
        limit=MAX_BUNDLE_BYTES,
    )
