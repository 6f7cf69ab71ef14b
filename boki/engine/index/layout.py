"""Where the index keeps what on its disk: every key it writes, in one place.

All keys start with ``i/``. Names are preceded by their length, so that no book or tag, whatever characters it holds,
can be taken for another; seqnums are big-endian, so that a scan meets them in order::

    i/s                       positions and terms (small, read when the index starts)
    i/p <term> <log> <page>   when a page of the order history begins (small, read when the index starts)
    i/o <term> <log> <page>   a page of the order history
    i/b <book>                what is known of a book as a whole
    i/w [book] <start>        a part of the row of a book's records
    i/r [book] [tag] <start>  a part of the row of a tag
    i/f [book] [tag]          the floor of a tag, behind how many records trims of that tag have taken away, if any
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from boki.log.ids import LogId, Term

SMALL_STATE_KEY: Final = b"i/s"
HISTORY_STARTS: Final = b"i/p"
HISTORY_PAGES: Final = b"i/o"
BOOKS: Final = b"i/b"
BOOK_ROWS: Final = b"i/w"
TAG_ROWS: Final = b"i/r"
TAG_FLOORS: Final = b"i/f"

_LENGTH: Final = Struct(">H")
_PAGE: Final = Struct(">IBQ")
_NUMBER: Final = Struct(">Q")

number_bytes = _NUMBER.pack


def read_number(data: bytes) -> int:
    """The number behind `number_bytes`, at the end of a key or alone."""
    number: int = _NUMBER.unpack_from(data, len(data) - _NUMBER.size)[0]
    return number


def floor_bytes(floor: int, removed: int) -> bytes:
    """The value of a tag's floor. It ends with the floor, and is nothing else if no record is to be counted."""
    return number_bytes(removed) + number_bytes(floor) if removed else number_bytes(floor)


def read_floor(value: bytes) -> tuple[int, int]:
    """(floor, removed) behind `floor_bytes`.

    >>> read_floor(floor_bytes(7, 3)), read_floor(floor_bytes(7, 0))
    ((7, 3), (7, 0))
    """
    removed = _NUMBER.unpack_from(value)[0] if len(value) > _NUMBER.size else 0
    return read_number(value), removed


def _name(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def book_key(book: str) -> bytes:
    """Of what is known of the book as a whole."""
    return BOOKS + book.encode()


def row_prefix(book: str, tag: str | None) -> bytes:
    """What the keys of a row's parts start with; the part's start follows."""
    if tag is None:
        return BOOK_ROWS + _name(book)
    return TAG_ROWS + _name(book) + _name(tag)


def tag_floor_key(book: str, tag: str) -> bytes:
    """Of the floor of a tag."""
    return TAG_FLOORS + _name(book) + _name(tag)


def tags_prefix(kind: bytes, book: str) -> bytes:
    """What all keys of that kind (`TAG_ROWS` or `TAG_FLOORS`) start with that belong to the book."""
    return kind + _name(book)


def read_tag_key(key: bytes) -> tuple[str, str, bytes]:
    """(book, tag, rest) of a key that starts with `TAG_ROWS` or `TAG_FLOORS`."""
    names: list[str] = []
    at = len(TAG_ROWS)
    for _ in range(2):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(key, at)[0]
        names.append(key[start:at].decode())
    return names[0], names[1], key[at:]


def page_key(kind: bytes, term: Term, log: LogId, first_seqnum: int) -> bytes:
    """Of a page of the order history (`HISTORY_PAGES`), or of when it begins (`HISTORY_STARTS`)."""
    return kind + _PAGE.pack(term, log, first_seqnum)


def read_page_key(key: bytes) -> tuple[Term, LogId, int]:
    """(term, log, first seqnum) of a page's key."""
    term, log, first_seqnum = _PAGE.unpack_from(key, len(HISTORY_PAGES))
    return term, log, first_seqnum


def after_prefix(prefix: bytes) -> bytes:
    r"""The first key that is larger than every key with that prefix.

    >>> after_prefix(b"i/r")
    b'i/s'
    >>> after_prefix(b"a\xff")
    b'b'
    """
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,))
