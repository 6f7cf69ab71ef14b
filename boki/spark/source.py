"""`format("logbook")`: LogBooks as a data source of Spark, for batch and streaming reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final
from uuid import uuid4

import msgspec
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from boki.errors import InvalidArgument
from boki.spark.gateway import Gateway
from boki.spark.offsets import Offset
from boki.spark.options import ReadOptions, read_options, write_options
from boki.spark.planning import Planner
from boki.spark.ranges import Task
from boki.spark.schemas import SCHEMA, layout

_MOST_CHARACTERS: Final = 1000
_SHOWN: Final = 100


class LogBookSource(DataSource):
    """What Spark makes of `format("logbook")`. See docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "logbook"

    def schema(self) -> str:
        """The columns of a record."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read of all that is there when it is planned."""
        return BatchReader(read_options(self.options, is_stream=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A streaming read."""
        return StreamReader(read_options(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from boki.spark.sink import BatchWriter  # who only reads need not wait for it

        return BatchWriter(write_options(self.options, is_stream=False), schema, overwrite, uuid4().hex)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        """A streaming write."""
        from boki.spark.sink import StreamWriter

        return StreamWriter(write_options(self.options, is_stream=True), schema, overwrite)


class _Partition(InputPartition):
    """What one task reads."""

    def __init__(self, task: Task) -> None:
        self.task = task


class BatchReader(DataSourceReader):
    """Reads the records that were acknowledged before the read was planned, and no other."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        layout(schema, is_json=options.is_json)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks, after the one look at where every log ends."""
        gateway = Gateway(self._options.gateway, self._options.token)
        try:
            planner = Planner(self._options, gateway)
            tail = planner.tail()
            planner.check_books()
            return _partitions(planner.tasks(Offset(), tail))
        finally:
            gateway.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Arrow batches of one task. Runs on an executor."""
        return _read(partition, self._options, self._schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what lies between two offsets. One object in the driver plans; copies of it on executors read."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: Offset | None = None
        """Where a query that takes what is available now ends."""
        self._initial: Offset | None = None
        self._has_planned = False
        """Whether it has planned a batch, be it one that an earlier run of the query had begun."""
        self._reads = _reads_of(options)
        self._is_known = False
        """Whether the gateway has answered before."""
        layout(schema, is_json=options.is_json)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query starts. Asked for twice, and the same both times."""
        if self._initial is None:
            with self._planner() as planner:
                tail = planner.tail()
                planner.check_books()
            initial = tail if self._options.starts_now else Offset()
            self._initial = msgspec.structs.replace(initial, reads=self._reads)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option maxRecordsPerBatch."""
        limit = self._options.max_records
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends; `start` if there is nothing for it."""
        begin = self._own(start)
        with self._planner() as planner:
            tail = planner.tail()
            planner.check_reached(begin, tail)
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            end = planner.step(begin, self._target or tail, most)
        if self._options.starts_now and begin == self._initial and not self._has_planned:
            # after a restart the log's end is elsewhere: the first batch, with or without records, says where it was
            end = msgspec.structs.replace(end, origin=begin.logs)
        return start if end == begin else msgspec.structs.replace(end, reads=self._reads).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From here on there is nothing new."""
        with self._planner() as planner:
            self._target = planner.tail()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch: the same records whenever it is planned."""
        until = self._own(end)
        since = Offset(until.origin) if until.origin else self._own(start)
        self._has_planned = True
        with self._planner() as planner:
            planner.check_reached(until, planner.tail())  # an index that answers from here on has come as far
            return _partitions(planner.tasks(since, until))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Arrow batches of one task. Runs on an executor."""
        return _read(partition, self._options, self._schema)

    def _own(self, value: dict[str, Any]) -> Offset:
        """The offset; `InvalidArgument` if it is of a query that reads something else. Where it starts may change."""
        offset = Offset.from_json(value)
        if offset.reads not in {"", self._reads}:
            raise InvalidArgument(
                f"the checkpoint is of a query that reads {offset.reads:.200}, and this one reads {self._reads:.200}: "
                "what came before would be missing. Give it a new checkpoint, or the options book and tag as they were",
                field="book",
            )
        return offset

    @contextmanager
    def _planner(self) -> Iterator[Planner]:
        """A planner whose connections are closed behind it: plans may be far apart."""
        gateway = Gateway(self._options.gateway, self._options.token, is_known=self._is_known)
        try:
            yield Planner(self._options, gateway)
            self._is_known = True
        finally:
            gateway.close()


def _reads_of(options: ReadOptions) -> str:
    """What a query reads, in a few words: very many books as a digest, since each offset says it."""
    text = f"{options.books}, tag {options.tag}" if options.tag is not None else str(options.books)
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_SHOWN]}… ({blake2b(text.encode(), digest_size=8).hexdigest()})"


def _partitions(tasks: Sequence[Task]) -> list[InputPartition]:
    return [_Partition(task) for task in tasks or [Task((), {})]]  # Spark asks for one, if only for nothing


def _read(partition: InputPartition, options: ReadOptions, schema: StructType) -> Iterator[Any]:
    from boki.spark.reading import read_task

    assert isinstance(partition, _Partition), "Spark gives back what it was given"
    return read_task(partition.task, options, layout(schema, is_json=options.is_json))
