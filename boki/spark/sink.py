"""The sinks: a DataFrame, or the micro-batches of a stream, appended to LogBooks exactly once (`boki.spark.lane`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from boki.errors import BokiError, InvalidArgument
from boki.spark.commit import commit, give_up
from boki.spark.gateway import Gateway
from boki.spark.lane import Attempt, Lane
from boki.spark.ledger import LaneNote
from boki.spark.options import WriteOptions
from boki.spark.slots import take_slot
from boki.spark.steps import Steps, run

_NO_JSON = re.compile(r"variant|geometry|geography|interval( (year|month).*)?$")
"""Types of values that Python has none for, or only as Spark itself stores them."""
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class Written(WriterCommitMessage):
    """What one task has written. `write`: the id under which it did."""

    def __init__(self, write: str, lanes: Sequence[LaneNote]) -> None:
        self.write = write
        self.lanes = tuple(lanes)


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once. Under a `writeId` of the user's, a job that runs again adds what is missing."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool, fresh_id: str) -> None:
        check_rows(schema, options, overwrite=overwrite)
        self._options = options
        greet(options)
        self._write, self._batch = options.write_id or "", 0
        if options.write_id is None:
            with _open(options) as gateway:
                self._write, self._batch = run(gateway, take_slot(fresh_id))

    def write(self, iterator: Iterator[Any]) -> Written:
        """Append the rows of one task. Runs on an executor."""
        return Written(self._write, write_rows(iterator, self._options, self._write, self._batch, _partition()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        lanes = [lane for message in messages if isinstance(message, Written) for lane in message.lanes]
        with _open(self._options) as gateway:
            run(gateway, commit(self._write, self._batch, lanes, is_final=self._options.write_id is not None))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - as Spark calls it
        """The job has failed. What was appended stays; under a `writeId` the next run continues from there."""
        if self._options.write_id is None:
            with suppress(BokiError), _open(self._options, is_known=False) as gateway:
                run(gateway, give_up(self._write, self._batch))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query, each once."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        check_rows(schema, options, overwrite=overwrite)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        """Append the rows of one task. Runs on an executor."""
        context = TaskContext.get()
        write = context.getLocalProperty(_QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
        if not write or batch is None:
            raise InvalidArgument("Spark does not say which query and batch this is: write from a streaming query")
        is_first = int(batch) == 0  # whoever starts a query is told soon that nothing answers
        lanes = write_rows(iterator, self._options, write, int(batch), _partition(), is_known=not is_first)
        return Written(write, lanes)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks of the batch are done."""
        written = [message for message in messages if isinstance(message, Written)]
        if written:
            lanes = [lane for message in written for lane in message.lanes]
            with _open(self._options) as gateway:
                run(gateway, commit(written[0].write, batchId, lanes))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The batch has failed. Whoever runs it again continues from what exists."""


class _open:  # noqa: N801 - used as a statement
    """A gateway for as long as the block."""

    def __init__(self, options: WriteOptions, *, is_known: bool = True) -> None:
        self._gateway = Gateway(options.gateway, options.token, is_known=is_known)

    def __enter__(self) -> Gateway:
        return self._gateway

    def __exit__(self, *_: object) -> None:
        self._gateway.close()


def write_rows(
    batches: Iterable[Any], options: WriteOptions, write: str, batch: int, partition: int, *, is_known: bool = True
) -> list[LaneNote]:
    """Append the rows of a partition; what each book got. `is_known`: the gateway has answered this query before."""
    with _open(options, is_known=is_known) as gateway:
        return run(gateway, writing(batches, options, Attempt(write, batch, partition)))


def writing(batches: Iterable[Any], options: WriteOptions, attempt: Attempt) -> Steps[list[LaneNote]]:
    """The same, step by step."""
    from boki.spark.rows import Sorter

    sorter = Sorter(options.book, is_json=options.is_json)
    lanes: dict[str, Lane] = {}
    yield from attempt.start()
    for arrow in batches:
        for book in sorter.add(arrow):
            if book not in lanes:
                lanes[book] = yield from attempt.lane(book)
            yield from lanes[book].drain(sorter.held[book], is_last=False)
    for book, lane in lanes.items():
        yield from lane.drain(sorter.held[book], is_last=True)
    return [lane.end() for lane in lanes.values()]


def greet(options: WriteOptions) -> None:
    """Find out in the driver, and soon, whether anything answers there."""
    gateway = Gateway(options.gateway, options.token)
    try:
        gateway.some_books("", 1)
    finally:
        gateway.close()


def check_rows(schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
    """`InvalidArgument` says which column is missing or of another type."""
    from boki.spark.rows import check_target

    if overwrite:
        raise InvalidArgument('a LogBook is only appended to: say mode("append")', field="mode")
    if options.book is not None:
        check_target(options.book)
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name in kinds:
        if name.lower() in {"tags", "book"} and name not in {"tags", "book"}:
            raise InvalidArgument(
                f"the column {name} differs from {name.lower()}, which says where a row goes or how it is found, by "
                f"capitals only: call it {name.lower()}, or otherwise",
                field=name,
            )
    if options.book is None and kinds.get("book") != "string":
        raise InvalidArgument(
            "name the book: by the option book, or for each row by a column book string", field="book"
        )
    if kinds.get("tags", "array<string>") != "array<string>":
        raise InvalidArgument(f"the column tags must be array<string>, not {kinds['tags']}", field="tags")
    if options.is_json:
        for field in schema.fields:
            _check_json_type(field.name, field.dataType)
        return
    if kinds.get("data") not in {"binary", "string"}:
        raise InvalidArgument(
            "the rows need a column data, binary or string: select one, or say json=true to write each row as JSON",
            field="data",
        )
    if unknown := sorted(set(kinds) - {"data", "tags", "book"}):
        raise InvalidArgument(
            f"a record has no {', '.join(unknown)}: the columns are data, tags and book; select them, or say json=true "
            "to write each row as JSON",
            field=unknown[0],
        )


def _check_json_type(name: str, kind: DataType) -> None:
    """Members of JSON objects have names: a map whose keys are none has no form there."""
    match kind:
        case MapType():
            if not isinstance(kind.keyType, StringType):
                raise InvalidArgument(
                    f"the column {name} has keys of type {kind.keyType.simpleString()}, and a JSON object has strings "
                    "only: cast the keys, or select map_entries of the column",
                    field=name,
                )
            _check_json_type(f"{name}{{}}", kind.valueType)
        case ArrayType():
            _check_json_type(f"{name}[]", kind.elementType)
        case StructType():
            for field in kind.fields:
                _check_json_type(f"{name}.{field.name}", field.dataType)
        case _ if _NO_JSON.match(kind.simpleString()):
            raise InvalidArgument(
                f"the column {name} is of type {kind.simpleString()}, which has no form in JSON: cast it to a string, "
                "or to what it holds",
                field=name,
            )
        case _:
            pass


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None, "runs in a task"
    return context.partitionId()
