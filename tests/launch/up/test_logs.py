"""Log files: bounded, and readable from their end."""

import errno
import os
from pathlib import Path

import pytest

from boki.launch.up.logs import bound, last_lines, older, open_log


def test_a_file_that_has_grown_too_large_begins_anew_while_it_is_written(tmp_path: Path) -> None:
    """Its writer continues with the same descriptor; the older part is kept once."""
    file = tmp_path / "logs/engine-1.log"
    log = open_log(file)
    try:
        os.write(log, b"first\n")
        assert not bound(file, 6)
        os.write(log, b"second\n")
        assert bound(file, 6)
        os.write(log, b"third\n")
        assert file.read_bytes() == b"third\n"
        assert older(file).read_bytes() == b"first\nsecond\n"
    finally:
        os.close(log)


def test_a_full_disk_keeps_no_older_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that has no room would be tried again and again, and take all room that becomes free."""
    file = tmp_path / "engine-1.log"
    file.write_bytes(b"first\n")
    older(file).write_bytes(b"before\n")

    def no_room(source: Path, copy: Path) -> None:
        copy.write_bytes(source.read_bytes()[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", no_room)
    assert bound(file, 1)
    assert file.read_bytes() == b""
    assert not older(file).exists()


def test_the_last_lines_are_those_that_say_something(tmp_path: Path) -> None:
    """Empty lines are left out, bytes that are no text do no harm, and no file says nothing."""
    file = tmp_path / "a.log"
    assert last_lines(file) == []
    assert not bound(file)
    file.write_bytes(b"a\n\nb\xff\n\n" + b"c\n")
    assert last_lines(file, 2) == ["b\ufffd", "c"]
