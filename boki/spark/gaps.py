"""Gaps: what to do about records that trims have taken away before they were read."""

from __future__ import annotations

import logging
from functools import lru_cache

from boki.errors import Trimmed
from boki.spark.options import OnTrimmed

_log = logging.getLogger("boki.spark")


def note_gap(book: str, start: int, stop: int, on_trimmed: OnTrimmed) -> None:
    """Records of the book from `start` until `stop` were trimmed before they were read: `Trimmed`, or a warning."""
    gap = (
        f"book {book!r}: records with {start} <= seqnum < {stop} were trimmed before this query had read them, as far "
        "as there were any"
    )
    if on_trimmed == "fail":
        raise Trimmed(
            f"{gap}. Start from {stop} (a stream: with a new checkpoint), or say onTrimmed=skip",
            book=book,
            next_seqnum=stop,
        )
    _warn(f"{gap}, and are skipped")


@lru_cache(1024)
def _warn(text: str) -> None:
    """Once in a process: a stream without news looks at the same gap again and again."""
    _log.warning(text)
