"""Names and numbers: seqnums, shards, tags, books, and the limits they are held to.

**Seqnum** (Boki section 4.1, squeezed into 63 bits so that it is a signed long everywhere)::

    | 20 bits term | 8 bits log | 35 bits position |

Numeric order is (term, log, position) order. A book lives in one log per term, so its seqnums grow strictly; they are
not dense. Terms count from 1, so 0 is never a seqnum and means "none".

**Shard**: records that one incarnation of one engine appends to one log within one term. Never reused: an engine that
restarts is a new incarnation with new shards. The id holds the incarnation, so no two engines can pick the same one.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, NewType

from msgspec import Meta

from boki.errors import InvalidArgument, TooLarge

TERM_BITS: Final = 20
LOG_BITS: Final = 8
POSITION_BITS: Final = 35
MAX_TERM: Final = (1 << TERM_BITS) - 1
MAX_LOG: Final = (1 << LOG_BITS) - 1
MAX_POSITION: Final = (1 << POSITION_BITS) - 1
MAX_SEQNUM: Final = (1 << 63) - 1
"""Larger than or equal to every seqnum; `read_prev` starts here."""

SHARD_ORDINAL_BITS: Final = 20

NodeId = NewType("NodeId", str)
Natural = Annotated[int, Meta(ge=0, le=MAX_SEQNUM)]
"""A count, index or id: a signed long that is not negative. What decodes messages and what is on disks refuses others,
so no core sees a number that its disk could not hold.
"""
Term = Annotated[int, Meta(ge=0, le=MAX_TERM)]
LogId = Annotated[int, Meta(ge=0, le=MAX_LOG)]
ShardId = Natural

SYSTEM_BOOK_PREFIX: Final = "boki:"
"""Books of the runtime itself. Users can read them and cannot write them."""
SYSTEM_TAG_PREFIX: Final = "!"
"""Tags that outlive a whole-book trim: what fences must outlive its zombies. Libraries use them; anybody may."""
KEY_TAG_PREFIX: Final = "\x01k"
"""The tag that makes `key=` work. It starts with a control character, which no user's tag may hold."""

_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def make_seqnum(term: Term, log: LogId, position: int) -> int:
    """Pack a place in the order into a seqnum.

    >>> make_seqnum(1, 0, 0)
    8796093022208
    """
    return term << (LOG_BITS + POSITION_BITS) | log << POSITION_BITS | position


def split_seqnum(seqnum: int) -> tuple[Term, LogId, int]:
    """The (term, log, position) that a seqnum stands for.

    >>> split_seqnum(make_seqnum(3, 1, 42))
    (3, 1, 42)
    """
    return seqnum >> (LOG_BITS + POSITION_BITS), seqnum >> POSITION_BITS & MAX_LOG, seqnum & MAX_POSITION


def make_shard(incarnation: int, ordinal: int) -> ShardId:
    """The id of an incarnation's `ordinal`-th shard."""
    return incarnation << SHARD_ORDINAL_BITS | ordinal


def shard_incarnation(shard: ShardId) -> int:
    """The engine incarnation that a shard belongs to."""
    return shard >> SHARD_ORDINAL_BITS


def check_name(name: object, what: str) -> str:
    """`name` itself, if it may name a book or a function; else `InvalidArgument`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{what} must be 1 to 128 characters of A-Z a-z 0-9 . _ : -, not {_shorten(name)}", field=what
        )
    return name


def check_not_dots(name: str, what: str) -> str:
    """`name` itself, if it can stand in a URL: clients and proxies take `.` and `..` out of paths."""
    if name in {".", ".."}:
        raise InvalidArgument(f"{what} must not be {name!r}, which URLs cannot hold: choose another name", field=what)
    return name


def check_tag(tag: object, max_bytes: int) -> str:
    """`tag` itself, if a user may write it; else `InvalidArgument` or `TooLarge`."""
    if not isinstance(tag, str):
        raise InvalidArgument(f"a tag must be a str, not {type(tag).__name__}: {_shorten(tag)}", field="tags")
    if not tag:
        raise InvalidArgument(
            "a tag must not be empty: leave it out (a read without one is of the whole book)", field="tags"
        )
    if len(tag) > max_bytes or (not tag.isascii() and len(tag.encode("utf-8", "surrogatepass")) > max_bytes):
        raise TooLarge(
            f"a tag may have at most {max_bytes} bytes of UTF-8: {_shorten(tag)}", field="tags", limit=max_bytes
        )
    if not tag.isprintable() and _CONTROL.search(tag):
        raise InvalidArgument(f"a tag must not hold control characters: {_shorten(tag)}", field="tags")
    return tag


def is_system_tag(tag: str) -> bool:
    """Whether a tag is exempt from whole-book trims."""
    return tag.startswith((SYSTEM_TAG_PREFIX, KEY_TAG_PREFIX))


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
