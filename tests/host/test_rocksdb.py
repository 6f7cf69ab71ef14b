"""A database as one of our processes has it open."""

from __future__ import annotations

from pathlib import Path

import pytest

from boki.host.rocksdb import RocksDb
from boki.protocol.effects import Put


@pytest.mark.parametrize("is_backward", [False, True])
def test_a_database_that_was_closed_during_a_scan_opens_at_once(tmp_path: Path, is_backward: bool) -> None:
    """Even if somebody still holds the scan, as what is left of an engine whose session has expired may."""
    first = RocksDb(tmp_path)
    first.write([Put(b"a", b"1"), Put(b"b", b"2"), Put(b"c", b"3")])
    first.sync()
    scan = first.scan(b"a", b"z", backward=is_backward)
    assert next(scan) == ((b"c", b"3") if is_backward else (b"a", b"1"))
    first.close()
    second = RocksDb(tmp_path)
    assert [key for key, _ in second.scan(b"a", b"z")] == [b"a", b"b", b"c"]
    with pytest.raises(RuntimeError, match="was closed before"):
        next(scan)
    second.close()
