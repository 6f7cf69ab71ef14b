"""Options of `format("logbook")` without Spark: checked where a query is defined, and named where they are wrong."""

from __future__ import annotations

import pytest

from boki.errors import InvalidArgument, TooLarge
from boki.spark.options import (
    READ_OPTIONS,
    STREAM_OPTIONS,
    STREAM_WRITE_OPTIONS,
    WRITE_OPTIONS,
    Books,
    Bound,
    read_options,
    write_options,
)
from boki.spark.pipeline import Pipeline

BAD = [
    ({"book": ""}, "the option book is missing"),
    ({"book": " , "}, "book must be 1 to 128 characters"),
    ({"book": "a,,b"}, "book must be 1 to 128 characters"),
    ({"book": "a/b"}, "book must be 1 to 128 characters"),
    ({"book": "a*,b"}, r"a \* stands behind a single prefix"),
    ({"book": "*a"}, r"a \* stands behind a single prefix"),
    ({"book": "a**"}, r"a \* stands behind a single prefix"),
    ({"book": "a", "path": "b"}, "the option book says 'a' and the path 'b'"),
    ({"book": "a", "gateway": "localhost"}, "the URL of a gateway looks like"),
    ({"book": "a", "gateway": "http://h:99999"}, "gateway: the URL of a gateway looks like"),
    ({"book": "a", "gateway": "http://h:x"}, "gateway: the URL of a gateway looks like"),
    ({"book": "a", "gateway": ""}, "the URL of a gateway looks like"),
    ({"book": "a", "tag": ""}, "a tag must not be empty"),
    ({"book": "a", "tag": "t" * 300}, "a tag may have at most 255 bytes"),
    ({"book": "a", "start": "9", "stop": "3"}, "start is after stop"),
    ({"book": "a", "start": "2026-01-02", "stop": "2026-01-01T23:00:00+00:00"}, "start is after stop"),
    ({"book": "a", "start": "soon"}, "start must be a seqnum in digits or a time such as"),
    ({"book": "a", "start": "-5"}, "start must be a seqnum in digits or a time such as"),
    ({"book": "a", "start": str(1 << 63)}, "start must be a seqnum in digits or a time such as"),
    ({"book": "a", "start": "latest"}, "start=latest is for streams"),
    ({"book": "a", "stop": ""}, "stop must be a seqnum in digits or a time such as"),
    ({"book": "a", "stop": "1969-12-31"}, "stop must be a time after 1970"),
    ({"book": "a", "partitions": "0"}, "partitions must be a whole number, 1 to 10,000, not '0'"),
    ({"book": "a", "partitions": "-1"}, "partitions must be a whole number"),
    ({"book": "a", "partitions": "1.5"}, "partitions must be a whole number"),
    ({"book": "a", "partitions": "1000000"}, "partitions must be a whole number"),
    ({"book": "a", "partitions": "٣"}, "partitions must be a whole number"),
    ({"book": "a", "partitions": "9" * 5000}, "partitions must be a whole number, 1 to 10,000, not '999"),
    ({"book": "a", "start": "9" * 5000}, "start must be a seqnum in digits or a time such as"),
    ({"book": "a", "stop": "9" * 5000}, "stop must be a seqnum in digits or a time such as"),
    ({"book": "a", "json": "yes"}, "json must be true or false, not 'yes'"),
    ({"book": "a", "onTrimmed": "perhaps"}, "onTrimmed must be fail or skip, not 'perhaps'"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_option_is_named_with_what_it_may_be(given: dict[str, str], message: str) -> None:
    """Whatever the option: nothing is guessed, and nothing that is wrong does nothing."""
    with pytest.raises(InvalidArgument, match=message) as caught:
        read_options(given, is_stream=False)
    assert caught.value.details["field"] in {*READ_OPTIONS, "tags", "url"}


def test_a_system_tag_is_read_of_books_that_are_named() -> None:
    """What is left of a book after a trim of all else is in no list of books, and would be left out silently."""
    assert read_options({"book": "orders.eu", "tag": "!audit"}, is_stream=False).tag == "!audit"
    with pytest.raises(InvalidArgument, match=r"book=orders\.\* would leave it out. Name the books"):
        read_options({"book": "orders.*", "tag": "!audit"}, is_stream=True)


@pytest.mark.parametrize("name", ["tags", "Partition", "maxRecordsPerBatch", "writeId", "startingOffsets"])
def test_an_unknown_option_of_a_read_is_refused_with_the_allowed_ones(name: str) -> None:
    """Also one that is for something else: for streams, or for writing."""
    with pytest.raises(
        InvalidArgument, match=f"there is no option {name.lower()} to read a LogBook: there are"
    ) as caught:
        read_options({"book": "a", name: "1"}, is_stream=False)
    assert all(option in caught.value.message for option in READ_OPTIONS)


def test_unknown_options_of_streams_and_writes_are_refused_with_the_allowed_ones() -> None:
    """Each of the four has its own options."""
    with pytest.raises(InvalidArgument, match="no option stop to stream from a LogBook") as caught:
        read_options({"book": "a", "stop": "7"}, is_stream=True)
    assert all(option in caught.value.message for option in STREAM_OPTIONS)
    for is_stream, allowed in ((False, WRITE_OPTIONS), (True, STREAM_WRITE_OPTIONS)):
        with pytest.raises(InvalidArgument, match="no option tag to write a LogBook") as caught:
            write_options({"book": "a", "tag": "t"}, is_stream=is_stream)
        assert caught.value.message.endswith(", ".join(allowed))
    with pytest.raises(InvalidArgument, match="maxRecordsPerBatch must be a whole number"):
        read_options({"book": "a", "maxRecordsPerBatch": "none"}, is_stream=True)
    with pytest.raises(InvalidArgument, match="writeId must not begin with !"):
        write_options({"book": "a", "writeId": "!batch:0"}, is_stream=False)
    with pytest.raises(TooLarge, match="writeId may have at most 100 bytes") as large:
        write_options({"book": "a", "writeId": "ü" * 51}, is_stream=False)
    assert large.value.details == {"field": "writeId", "limit": 100}
    for bad in ("", "a\nb"):
        with pytest.raises(
            InvalidArgument, match="writeId must not be empty, and must not hold control char"
        ) as caught:
            write_options({"book": "a", "writeId": bad}, is_stream=False)
        assert caught.value.details["field"] == "writeId"


@pytest.mark.parametrize("token", ["secret\n", "secr\ret", "s€cret", "\0secret", "secret\x85"])
def test_a_token_that_cannot_be_sent_is_refused_unseen(token: str) -> None:
    """For reads, writes and pipelines: by the name of the option, and without what it was."""
    for is_stream in (False, True):
        for options in (read_options, write_options):
            with pytest.raises(InvalidArgument, match="the token holds a line break, or another character") as caught:
                options({"book": "a", "token": token}, is_stream=is_stream)
            assert caught.value.details == {"field": "token"}
            assert "cret" not in str(caught.value)
    with pytest.raises(ValueError, match="token: the token holds a line break") as told:
        Pipeline(name="p", book="b", schema="n int", output="lake", token=token)
    assert "cret" not in str(told.value)
    assert read_options({"book": "a", "token": "geheim-ü ~"}, is_stream=False).token == "geheim-ü ~"


def test_what_is_said_is_what_is_meant() -> None:
    """Books once each, in either spelling of names, by option or by path; bounds as seqnums or times, or none."""
    found = read_options({"BOOK": "a, b ,a", "ONTRIMMED": "Skip", "maxrecordsperbatch": "7"}, is_stream=True)
    assert found.books == Books(("a", "b"))
    assert (found.on_trimmed, found.max_records, found.starts_now) == ("skip", 7, False)
    assert read_options({"path": "a"}, is_stream=False).books == Books(("a",))
    assert read_options({"path": "a", "book": "a"}, is_stream=False).books == Books(("a",))
    assert read_options({"book": "a*"}, is_stream=False).books == Books(prefix="a")
    assert read_options({"book": "*"}, is_stream=False).books == Books(prefix="")
    bounds = read_options({"book": "a", "start": "3", "stop": "3"}, is_stream=False)
    assert (bounds.start, bounds.stop) == (Bound(3), Bound(3))
    zero = read_options({"book": "a", "start": "0", "stop": "0"}, is_stream=False)
    assert (zero.start, zero.stop) == (Bound(0), Bound(0))
    times = read_options({"book": "a", "start": "1970-01-01T01:00:01+01:00", "stop": "9"}, is_stream=False)
    assert (times.start, times.stop) == (Bound(0, 1_000_000), Bound(9))
    now = read_options({"book": "a", "start": "latest"}, is_stream=True)
    assert (now.starts_now, now.start, now.stop) == (True, Bound(0), None)
