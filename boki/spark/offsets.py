"""How far a reader of LogBooks is, as a value that a checkpoint keeps: a position in every physical log.

A book lives in one physical log per term, and seqnums grow with the term, so two forms are enough:

- `logs`: the next seqnum of each physical log of one term. Whatever lies below the one of its book's log is read. This
  is what an index hands out, and it stays true when terms and logs change: all of an older term is below.
- `below`: one seqnum for all logs. This is how a reader that takes small steps goes through terms that have ended,
  whose number of logs it need not know.

A batch that is run again after a restart must have the same rows, so what lies between two offsets is up to them alone.
What could not be told later is therefore kept with the end of a batch: `books` and `origin`. So is what a query reads
at all (`reads`): with other books or another tag it would pass over all that lies below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from boki.errors import InvalidArgument
from boki.log.ids import MAX_POSITION, MAX_SEQNUM, make_seqnum, split_seqnum
from boki.log.view import place_book


class Offset(msgspec.Struct, frozen=True):
    """Everything below is read; see the module. `logs` empty: `below` counts."""

    logs: tuple[int, ...] = ()
    below: int = 0
    books: tuple[tuple[str, int], ...] | None = None
    """The books that the batch before this is of, and of each from where on it has its records, if that is further on
    than the batch before it ended: what had been trimmed when the query started was never promised. None: unknown.
    """
    origin: tuple[int, ...] = ()
    """Of the first batch of a query that started at the log's end: where that was."""
    reads: str = ""
    """Of which books and tag everything below is read, and nothing is of others. Empty: unknown."""

    @property
    def is_beginning(self) -> bool:
        """Whether nothing lies below."""
        return not self.logs and not self.below

    def bound(self, book: str) -> int:
        """Records of the book with a lower seqnum are read.

        >>> Offset(below=7).bound("any")
        7
        """
        return self.logs[place_book(book, len(self.logs))] if self.logs else self.below

    def is_reached_by(self, tail: Offset) -> bool:
        """Whether a system whose logs end there can have handed this out.

        >>> Offset((5,)).is_reached_by(Offset((7,))), Offset((8,)).is_reached_by(Offset((7,)))
        (True, False)
        """
        term, newest = (split_seqnum(max(offset.logs, default=offset.below))[0] for offset in (self, tail))
        if term < newest:
            return True
        is_alike = term == newest and len(self.logs) == len(tail.logs)
        return is_alike and all(mine <= end for mine, end in zip(self.logs, tail.logs, strict=True))

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps. Seqnums are strings: JSON's readers may not have 63 bits."""
        value: dict[str, Any] = {"logs": _by_log(self.logs)} if self.logs else {"below": str(self.below)}
        if self.books is not None:
            value["books"] = {name: str(since) for name, since in self.books}
        if self.origin:
            value["origin"] = _by_log(self.origin)
        if self.reads:
            value["reads"] = self.reads
        return value

    @staticmethod
    def from_json(value: Any) -> Offset:
        """The offset behind `to_json`'s value; `InvalidArgument` if it is none.

        >>> Offset.from_json({"logs": {"0": "12", "1": "13"}})
        Offset(logs=(12, 13), below=0, books=None, origin=(), reads='')
        """
        try:
            match value:
                case {"logs": dict() as logs, **more} if logs:
                    return Offset(_of_logs(logs), **_more(more))
                case {"below": str() as text, **more}:
                    return Offset(below=_seqnum(text), **_more(more))
        except (AttributeError, KeyError, ValueError, TypeError):
            pass
        raise InvalidArgument(
            f"the checkpoint holds no offset of a LogBook source, but {value!r:.100}: use the checkpoint of this query",
            field="offset",
        )


def _by_log(seqnums: tuple[int, ...]) -> dict[str, str]:
    return {str(log): str(seqnum) for log, seqnum in enumerate(seqnums)}


def _of_logs(value: dict[str, str]) -> tuple[int, ...]:
    return tuple(_seqnum(value[str(log)]) for log in range(len(value)))


def _seqnum(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > MAX_SEQNUM:
        raise ValueError(text)
    return int(text)


def _more(value: dict[Any, Any]) -> dict[str, Any]:
    """The fields that not every offset has."""
    if unknown := value.keys() - {"books", "origin", "reads"}:
        raise KeyError(unknown)
    books, reads = value.get("books"), value.get("reads", "")
    if not isinstance(reads, str):
        raise TypeError(reads)
    return {
        "books": None if books is None else tuple((name, _seqnum(since)) for name, since in books.items()),
        "origin": _of_logs(value.get("origin", {})),
        "reads": reads,
    }


def advance(start: Offset, tail: Offset, first: Mapping[str, int], limit: int) -> Offset:
    """An offset after `start` with at most `limit` records between, and at least one if there is any.

    `first`: of each book that has a record between `start` and `tail`, the first one. Positions of a log are counted,
    each of which is one record at most, of whatever book. `start` itself if there is nothing to read.
    """
    if not first:
        return start
    term = min(split_seqnum(seqnum)[0] for seqnum in first.values())
    by_log: dict[int, int] = {}
    for seqnum in first.values():
        seqnum_term, log, _ = split_seqnum(seqnum)
        if seqnum_term == term:
            by_log[log] = min(seqnum, by_log.get(log, seqnum))
    if _is_of(tail, term):
        return _step(tail, by_log, limit, ends=tail.logs)
    if _is_of(start, term):
        return _step(start, by_log, limit, ends=None)
    # A term that has ended: nothing can come any more into the logs that are passed over.
    return Offset(below=_beyond(min(by_log.values()), limit))


def _is_of(offset: Offset, term: int) -> bool:
    return bool(offset.logs) and split_seqnum(offset.logs[0])[0] == term


def _step(known: Offset, first: Mapping[int, int], limit: int, ends: tuple[int, ...] | None) -> Offset:
    """Share the limit out among the logs that have something; one that gets nothing stays where its first record is."""
    share = max(1, limit // len(first))
    logs = list(known.logs)
    for turn, (log, seqnum) in enumerate(sorted(first.items())):
        logs[log] = _beyond(seqnum, share) if turn < limit else seqnum
        if ends is not None:
            logs[log] = min(logs[log], ends[log])
    return Offset(tuple(logs))


def _beyond(seqnum: int, count: int) -> int:
    """`count` positions further, or the end of the term's log."""
    term, log, position = split_seqnum(seqnum)
    return make_seqnum(term, log, min(position + count, MAX_POSITION))
