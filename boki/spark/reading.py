"""A task's reads: page after page of its segments, each turned into an Arrow batch as the schema has it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pyarrow as pa

from boki.errors import InvalidArgument, TooLarge
from boki.log.operations import Found, Read
from boki.spark.columns import FIELDS, Columns, columns_of
from boki.spark.gaps import note_gap
from boki.spark.gateway import Gateway, has_answered
from boki.spark.json_rows import parse
from boki.spark.options import ReadOptions
from boki.spark.ranges import Segment, Task
from boki.spark.schemas import ERROR_COLUMN, Layout

_PAGE_RECORDS = 10_000


def read_task(task: Task, options: ReadOptions, layout: Layout) -> Iterator[Any]:
    """Arrow batches of everything that the task is to read."""
    _spare_imports()
    gateway = Gateway(options.gateway, options.token, task.positions, is_known=has_answered(options.gateway))
    try:
        if not has_answered(options.gateway):
            gateway.greet()  # this process may not reach what the driver reaches, and a page may take its time
        yield from _one_ahead(_batches(gateway, task, options, layout))
    finally:
        gateway.close()


@cache
def _spare_imports() -> None:
    """Leave what this process has imported out of the garbage that Spark collects after every task: 30 ms each time."""
    gc.freeze()


def _one_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """The same, each made while Spark takes in the one before it: else it waits for the log, and the log for Spark."""
    maker = ThreadPoolExecutor(1, "boki-read")
    try:
        batch = maker.submit(next, batches, None)
        while (made := batch.result()) is not None:
            batch = maker.submit(next, batches, None)
            yield made
    finally:
        maker.shutdown(wait=False, cancel_futures=True)  # whoever has enough waits for no page


def _batches(gateway: Gateway, task: Task, options: ReadOptions, layout: Layout) -> Iterator[Any]:
    for segment in task.segments:
        for found in _pages(gateway, segment, options):
            columns = columns_of(found.slabs, wants_tags="tags" in layout.names)
            if columns is not None:
                yield _batch(columns, segment.book, layout)


def _pages(gateway: Gateway, segment: Segment, options: ReadOptions) -> Iterator[Found]:
    at, floor = segment.start, segment.floor
    limit = _PAGE_RECORDS
    while at < segment.stop:
        read = Read(segment.book, options.tag, at, segment.stop, limit, start_time_us=options.start.time_us)
        try:
            found = gateway.find(read)
        except TooLarge as error:
            if not 0 < error.details.get("limit", 0) < limit:
                raise
            limit = error.details["limit"]  # the system's pages are smaller than usual
            continue
        if floor is None:
            floor = found.first_seqnum
        if found.first_seqnum > max(at, floor):
            note_gap(segment.book, max(at, floor), min(found.first_seqnum, segment.stop), options.on_trimmed)
            floor = found.first_seqnum
        if found.slabs:
            yield found
        if found.is_end:
            return
        at = found.next_start


def _batch(columns: Columns, book: str, layout: Layout) -> Any:
    arrays: dict[str, Any] = {name: columns.of(name, book) for name in FIELDS if name in layout.names}
    if layout.json_names:
        parsed = parse(columns.data, layout.json_schema)
        if parsed.first_error is not None and not layout.has_error:
            at, why = parsed.first_error
            raise InvalidArgument(
                f"record {columns.seqnum[at].as_py()} of book {book!r} does not fit the schema: {why}. Add a column "
                f"{ERROR_COLUMN} string to the schema to have such records as rows of nulls that say why",
                book=book,
            )
        arrays |= parsed.columns
        arrays[ERROR_COLUMN] = parsed.errors
    return pa.RecordBatch.from_arrays([arrays[name] for name in layout.names], schema=layout.arrow)
