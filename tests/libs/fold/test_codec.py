"""Records as bytes: versions, strangers, and what is written for readers of an older version."""

from __future__ import annotations

import msgspec
import pytest

from boki.errors import CorruptData, VersionTooNew
from boki.libs.fold.codec import RecordCodec


class Added(msgspec.Struct, frozen=True, array_like=True, tag=1):
    amount: int


class Named(msgspec.Struct, frozen=True, array_like=True, tag=2):
    name: str


KINDS = Added | Named
OLD: RecordCodec[KINDS] = RecordCodec("a counter", 1, KINDS)
NEW: RecordCodec[KINDS] = RecordCodec("a counter", 2, KINDS, since={Named: 2})


def test_what_is_written_is_read() -> None:
    """Every record comes back as it was, and its bytes are those that stand in logs."""
    for record in (Added(7), Named("ä")):
        assert NEW.decode(NEW.encode(record)) == NEW.own(NEW.encode(record)) == record
    assert NEW.encode(Added(7)).hex() == "01920107"
    assert NEW.encode(Named("a")).hex() == "029202a161"


def test_without_since_all_records_have_the_newest_version() -> None:
    """So a reader of the version before refuses each of them."""
    codec: RecordCodec[KINDS] = RecordCodec("a counter", 3, KINDS)
    assert codec.encode(Added(7))[0] == 3
    with pytest.raises(VersionTooNew):
        NEW.decode(codec.encode(Added(7)))


def test_an_older_boki_reads_what_has_not_changed_and_refuses_the_rest_by_name() -> None:
    """A record of a new kind is never taken for a stranger's: those who know it would decide otherwise."""
    assert OLD.own(NEW.encode(Added(7))) == Added(7)
    assert OLD.is_newer(NEW.encode(Named("a")))
    assert not OLD.is_newer(NEW.encode(Added(7)))
    for read in (OLD.own, OLD.decode):
        with pytest.raises(VersionTooNew, match="a record of a counter has version 2, newer than this Boki's 1"):
            read(NEW.encode(Named("a")))


@pytest.mark.parametrize("data", [b"", b"\x01", b"hello", b'{"a": 1}', b"\x01hello", b"\x00\x92\x01\x07", b"\xff\x92"])
def test_strangers_bytes_are_passed_by(data: bytes) -> None:
    """Whatever does not begin like a record is nobody's record, of no version."""
    assert OLD.own(data) is None
    assert not OLD.is_own(data)
    with pytest.raises(CorruptData):
        OLD.decode(data)


@pytest.mark.parametrize("data", [b"\x01\x92\x01", b"\x01\x92\x09\x07", b"\x01\x92\x01\xa1a", b"\x01" + b"\x91" * 5000])
def test_damaged_records_are_passed_by(data: bytes) -> None:
    """Bytes that begin like a record and are none are refused where they must be one, and are skipped elsewhere."""
    assert OLD.own(data) is None
    with pytest.raises(CorruptData, match="a record of a counter cannot be read"):
        OLD.decode(data)


def test_versions_that_are_no_longer_read_are_refused() -> None:
    """`oldest` is the first version that this code still knows."""
    codec: RecordCodec[KINDS] = RecordCodec("a counter", 3, KINDS, oldest=2)
    assert codec.decode(b"\x02\x92\x01\x07") == Added(7)
    with pytest.raises(CorruptData, match="has no version that was ever written"):
        codec.decode(b"\x01\x92\x01\x07")
