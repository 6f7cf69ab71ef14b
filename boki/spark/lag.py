"""How far a pipeline is behind, book by book: what its progress book says against what the log has.

The log counts the records of a book, and not those of a part of it: these are counted by reading them, up to a limit.
"""

from __future__ import annotations

from typing import Final

import msgspec

from boki.api.log_calls import records_of
from boki.errors import InvalidArgument
from boki.log.operations import BookInfo, Read
from boki.spark.gateway import Gateway
from boki.spark.offsets import Offset
from boki.spark.options import ReadOptions, read_options
from boki.spark.pipeline import Pipeline
from boki.spark.planning import Planner
from boki.spark.progress import BookProgress, Progress, read_progress

MOST_COUNTED: Final = 10_000
"""This many records of each book are read in order to be counted, or a page more."""


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far the pipeline is behind in one book."""

    book: str
    records: int
    dead: int
    behind: int
    """Records that are not in the Parquet yet."""
    has_more: bool = False
    """There may be more than `behind`: the counting has ended at `MOST_COUNTED`."""
    behind_s: float
    """Between the last record that is in the Parquet (or else the first that is not) and the last one there is, by the
    log's time."""


def lags(pipeline: Pipeline) -> list[Lag]:
    """The lag of each book, by name. `NotFound` if one that is named was never there, and so never read."""
    gateway = Gateway(pipeline.gateway, pipeline.token)
    try:
        return lags_at(pipeline, gateway)
    finally:
        gateway.close()


def lags_at(pipeline: Pipeline, gateway: Gateway) -> list[Lag]:
    """The same, asked of that gateway."""
    options = read_options(pipeline.source_options, is_stream=True)
    planner = Planner(options, gateway)
    progress = read_progress(gateway, pipeline.progress_book, pipeline.name)
    tail = planner.tail()
    start = _reached(progress)
    if start is None and options.starts_now:
        start = tail  # it would begin now
    if set(options.books.names) - progress.books.keys():
        planner.check_books()
    infos = dict.fromkeys(progress.books) | dict(planner.books())
    return [_lag(gateway, options, name, infos[name], progress, start or Offset(), tail) for name in sorted(infos)]


def _reached(progress: Progress) -> Offset | None:
    """Where the last batch ends; None if that is not known."""
    if progress.done is None:
        return None
    try:
        return Offset.from_json(progress.done.batch.position)
    except InvalidArgument:
        return None


def _lag(
    gateway: Gateway,
    options: ReadOptions,
    name: str,
    info: BookInfo | None,
    progress: Progress,
    start: Offset,
    tail: Offset,
) -> Lag:
    done = progress.books.get(name, BookProgress())
    low, high = max(done.last_seqnum + 1, start.bound(name), options.start.seqnum), tail.bound(name)
    behind, behind_us, has_more = 0, 0, False
    if low < high:
        first = records_of(gateway.first(name, options.tag, low, high, options.start.time_us))
        if first:
            info = info or gateway.book(name)
            if info is not None and options.tag is None and first[0].seqnum <= info.first_seqnum:
                behind = info.record_count  # all of it
            else:
                behind, _ = gateway.count(name, options.tag, first[0].seqnum, high, MOST_COUNTED)
                has_more = behind >= MOST_COUNTED
            last = records_of(gateway.find(Read(name, options.tag, 0, high, backward=True)))
            behind_us = last[-1].time - (done.last_time_us or first[0].time)
    behind_s = max(0, behind_us) / 1e6
    return Lag(book=name, records=done.records, dead=done.dead, behind=behind, has_more=has_more, behind_s=behind_s)
