"""Which LogBooks can have a folder `book=…` of their own, as Spark spells it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""How Spark calls the folder of rows that have no book."""
_MOST_BYTES: Final = 255
"""Of a name on nearly all file systems."""


def why_no_folder(book: str) -> str | None:
    """Why rows of the book cannot be written; None: they can. Of what a name may hold, Spark escapes colons only.

    >>> why_no_folder("flights:2026")
    >>> why_no_folder("__HIVE_DEFAULT_PARTITION__")
    "the book's name is Spark's own for rows that are of no book: they would be read back without it"
    >>> why_no_folder(":" * 128)
    "the book's name is too long for the name of a folder: book=… with %3A for each colon has more than 255 bytes"
    """
    if book == _NULL:
        return "the book's name is Spark's own for rows that are of no book: they would be read back without it"
    if len("book=" + book.replace(":", "%3A")) <= _MOST_BYTES:
        return None
    return (
        "the book's name is too long for the name of a folder: book=… with %3A for each colon has more than "
        f"{_MOST_BYTES} bytes"
    )


def without_folder(books: Iterable[str]) -> dict[str, str]:
    """Those of the books that have none, and why.

    >>> list(without_folder(["a", "__HIVE_DEFAULT_PARTITION__"]))
    ['__HIVE_DEFAULT_PARTITION__']
    """
    return {book: why for book in books if (why := why_no_folder(book)) is not None}
