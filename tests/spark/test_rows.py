"""Rows as chunks: every row that a record may hold is written, in requests that the gateway takes, and others never."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DayTimeIntervalType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from boki.errors import InvalidArgument, TooLarge
from boki.log.limits import Limits
from boki.log.operations import Append
from boki.spark.commit import commit
from boki.spark.lane import Attempt
from boki.spark.rows import CHUNK_ROWS, Sorter
from boki.spark.sink import check_rows, writing
from tests.spark.memory_gateway import MemorySystem
from tests.spark.sink_world import Actor, datas, frame, options, task, written

HIDDEN = ("!spark:", "spark:untagged")


def all_rows(system: MemorySystem, book: str = "b") -> list[tuple[str, tuple[str, ...]]]:
    return [
        (record.data.decode(), tuple(tag for tag in record.tags if not tag.startswith(HIDDEN)))
        for record in system.records(book)
    ]


def test_rows_keep_their_tags_wherever_chunks_begin_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With chunks of any size, rows with no, one and many tags, also such as the book is called."""
    tags = [[], ["b"], ["x", "b", "y"], [], ["y"], [f"t{i}" for i in range(14)], []]
    wanted = [(str(at), tuple(names)) for at, names in enumerate(tags)]
    for size in range(1, len(tags) + 1):
        monkeypatch.setattr("boki.spark.rows.CHUNK_ROWS", size)
        system = MemorySystem()
        for batch in range(2):
            lanes = written(system, [frame(*map(str, range(len(tags))), tags=tags)], batch=batch)
            assert sum(times for times, _ in lanes[0].runs) == -(-len(tags) // size)
            Actor(system, commit("w", batch, lanes)).finish()
        assert all_rows(system) == wanted * 2


def appended(system: MemorySystem, batches: list[Any]) -> list[int]:
    """The sizes of the requests that a task made."""
    actor = task(system, batches)
    sizes: list[int] = []
    while not actor.is_done:
        if isinstance(actor.next, Append) and actor.next.book == "b":
            sizes.append(len(actor.next.chunk))
        actor.step()
    assert actor.error is None, actor.error
    return sizes


def test_rows_with_long_tags_are_cut_into_chunks_that_a_request_holds() -> None:
    """Fourteen tags of 255 bytes, each row's others: thirty megabytes in a full chunk, and none is over the limit."""
    system = MemorySystem()
    count = 3000
    tags = [[f"{at:06}.{number:02}".ljust(255, "x") for number in range(14)] for at in range(count)]
    sizes = appended(system, [frame(*map(str, range(count)), tags=tags)])
    assert max(sizes) <= system.log.limits.request_bytes
    assert sum(sizes) > 10_000_000
    assert len(sizes) < 10
    assert datas(system) == Counter(map(str, range(count)))


def test_the_largest_rows_fit_and_larger_ones_are_named() -> None:
    """A row of the limit, with all the tags there may be; one byte or one tag more is refused with both numbers."""
    limits = Limits()
    tags = [[f"{number:02}".ljust(255, "x") for number in range(14)]] * 3
    system = MemorySystem()
    largest = "x" * limits.record_bytes
    appended(system, [frame(largest, largest, largest, tags=tags)])
    assert datas(system)[largest] == 3
    for batch, message in [
        (frame(largest + "x"), "a row has 1,048,577 bytes of data, and a record may have 1,048,576"),
        (frame("x", tags=[[str(number) for number in range(15)]]), "a row has 15 tags, and may have 14"),
    ]:
        with pytest.raises(TooLarge, match=message):
            written(MemorySystem(), [batch])


def test_a_system_with_narrower_limits_gets_smaller_chunks() -> None:
    """Whoever set a request's limit lower is not refused forever; a row that is over it is, by name."""
    system = MemorySystem(limits=Limits(request_bytes=2000, record_bytes=1500))
    sizes = appended(system, [frame(*["y" * 100] * 100)])
    assert len([size for size in sizes if size > 2000]) < 5
    assert datas(system).total() == 100
    with pytest.raises(TooLarge, match="has 1,600 bytes of data, and the limit is 1,500"):
        written(MemorySystem(limits=system.log.limits), [frame("x" * 1600)])


def test_full_chunks_have_so_many_rows() -> None:
    """The batches that Spark hands over do not decide it, and nothing is held back at the end."""
    system = MemorySystem()
    whole = frame(*["x"] * 5000)
    lanes = written(system, [whole, whole, whole])
    assert lanes[0].sizes == [CHUNK_ROWS, 15_000 - CHUNK_ROWS]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (frame("a", None), "a row has no data: the column data is null"),
        (frame("a", "b", tags=[["t"], [None]]), "a tag is null"),
        (frame("a", "b", tags=[["t"], [""]]), "a tag must not be empty"),
        (frame("a", "b", tags=[["t"], ["t", "t"]]), "a row carries a tag twice"),
        (frame("a", "b", tags=[["t"], ["a\x07"]]), "control characters"),
        (frame("a", "b", tags=[["t"], ["x" * 256]]), "at most 255 bytes"),
        (frame("a", "b", tags=[["t"], ["!spark:w:0"]]), "tags that start with !spark: are the sink's own"),
        (frame("a", "b", tags=[["t"], ["spark:untagged"]]), "are the sink's own, and so is spark:untagged"),
        (frame("a", "b", books=["b", None]), "a row has no book: the column book is null"),
        (frame("a", "b", books=["b", "a b"]), "book must be 1 to 128 characters"),
        (frame("a", "b", books=["b", ""]), "book must be 1 to 128 characters"),
        (frame("a", "b", books=["b", "boki:calls"]), "belongs to the runtime"),
        (frame("a", "b", books=["b", "spark:sinks"]), "is the sinks' own ledger"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_bad_rows_are_refused_before_any_of_their_batch_is_appended(
    batch: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the column and what is wrong; the good rows before a bad one are not appended, even as full
    chunks.
    """
    monkeypatch.setattr("boki.spark.rows.CHUNK_ROWS", 1)
    system = MemorySystem()
    with pytest.raises(InvalidArgument, match=message):
        written(system, [batch])
    assert datas(system) == Counter()


def test_tags_that_are_null_are_none() -> None:
    """A null in the column tags is a row without tags."""
    system = MemorySystem()
    written(system, [frame("a", "b", tags=[None, ["t"]])])
    assert all_rows(system) == [("a", ()), ("b", ("t",))]


def test_maps_as_json_are_objects() -> None:
    """Wherever they stand; what has keys that are no strings is refused when the write is defined, by its column."""
    system = MemorySystem()
    kind = pa.map_(pa.string(), pa.struct([("m", pa.map_(pa.string(), pa.int32()))]))
    batch = pa.RecordBatch.from_pydict({"a": pa.array([[("x", {"m": [("y", 1)]})], [], None], kind)})
    Actor(system, writing([batch], options(is_json=True), Attempt("w", 0, 0))).finish()
    assert [data for data, _ in all_rows(system)] == ['{"a":{"x":{"m":{"y":1}}}}', '{"a":{}}', '{"a":null}']
    by_date = MapType(DateType(), IntegerType())
    deep = StructType([StructField("l", ArrayType(MapType(StringType(), by_date)))])
    for schema, name in (
        (StructType([StructField("a", MapType(IntegerType(), IntegerType()))]), "a"),
        (StructType([StructField("s", deep)]), "s.l[]{}"),
    ):
        with pytest.raises(InvalidArgument, match=r"has keys of type .*, and a JSON object has strings only") as told:
            check_rows(schema, options(is_json=True), overwrite=False)
        assert told.value.details["field"] == name


def test_times_as_json_are_of_utc() -> None:
    """Whatever the session's time zone is, at any depth: so the same rows are the same in every session, and written
    where Python does not know the zone. A time that JSON has no form for is refused.
    """
    there, second = pa.timestamp("us", tz="GMT+03:00"), 1_000_000
    kind = pa.struct([("m", pa.map_(pa.string(), pa.list_(there))), ("plain", pa.timestamp("us"))])
    batch = pa.RecordBatch.from_pydict(
        {"t": pa.array([second], there), "s": pa.array([{"m": [("k", [second, None])], "plain": second}], kind)}
    )
    system = MemorySystem()
    Actor(system, writing([batch], options(is_json=True), Attempt("w", 0, 0))).finish()
    time = "1970-01-01T00:00:01"
    expected = f'{{"t":"{time}Z","s":{{"m":{{"k":["{time}Z",null]}},"plain":"{time}"}}}}'
    assert [data for data, _ in all_rows(system)] == [expected]
    for far in (pa.array([-(10**8)], pa.date32()), pa.array([10**18], there)):
        with pytest.raises(InvalidArgument, match="a date or a time that is not of the years 1 to 9999"):
            Sorter("b", is_json=True).add(pa.RecordBatch.from_pydict({"far": far}))


def test_columns_that_no_json_has_are_refused() -> None:
    """When the write is defined: what Python has no value for, and what it has only as Spark stores it; and names that
    would be taken for members, though they are meant for the record.
    """
    for kind in (VariantType(), YearMonthIntervalType()):
        with pytest.raises(InvalidArgument, match=r"the column s\.v\[\] is of type .*, which has no form in JSON"):
            schema = StructType([StructField("s", StructType([StructField("v", ArrayType(kind))]))])
            check_rows(schema, options(is_json=True), overwrite=False)
    check_rows(StructType([StructField("v", DayTimeIntervalType())]), options(is_json=True), overwrite=False)
    for name in ("Tags", "BOOK"):
        schema = StructType([StructField("n", IntegerType()), StructField(name, StringType())])
        with pytest.raises(
            InvalidArgument, match=f"the column {name} differs from {name.lower()}, .* by capitals only"
        ):
            check_rows(schema, options(is_json=True), overwrite=False)


def test_rows_as_json_are_held_to_the_size_of_a_record() -> None:
    """An object of the columns but for book and tags; one that is too large is refused before anything is appended."""
    system = MemorySystem()
    batch = pa.RecordBatch.from_pydict({"n": [1, 2], "s": ["a", None], "tags": [["t"], []]})
    Actor(system, writing([batch], options(is_json=True), Attempt("w", 0, 0))).finish()
    assert all_rows(system) == [('{"n":1,"s":"a"}', ("t",)), ('{"n":2,"s":null}', ())]
    large = pa.RecordBatch.from_pydict({"n": [1, 2], "s": ["a", "x" * (1 << 20)]})
    with pytest.raises(TooLarge, match="a row has 1,048,590 bytes of data"):
        Sorter("b", is_json=True).add(large)
