"""Records: where to read on, and their data as JSON."""

from __future__ import annotations

import pytest

from boki.errors import InvalidArgument
from boki.log.record import Record


def record(data: bytes) -> Record:
    return Record(41, ("tag",), data, None, 7)


def test_reading_goes_on_behind_a_record() -> None:
    """The next seqnum is the first that may hold a later record."""
    assert record(b"").next_seqnum == 42


def test_json_data() -> None:
    """What was written as JSON is read as its value."""
    assert record(b'{"a": [1, 2.5, null, "\xc3\xb6"]}').json() == {"a": [1, 2.5, None, "ö"]}


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'"\xff"', b"1 2", b"[" * 100_000])
def test_other_data_says_which_record_it_is_of(data: bytes) -> None:
    """A record that is not JSON is the reader's mistake, and the message names the record."""
    with pytest.raises(InvalidArgument, match="record 41 does not hold JSON"):
        record(data).json()


def test_records_are_values() -> None:
    """Equal if they say the same, and nobody can change one."""
    assert record(b"x") == record(b"x")
    with pytest.raises(AttributeError):
        record(b"x").data = b"y"  # type: ignore[misc]
