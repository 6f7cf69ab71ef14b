"""Log files: bounded, and readable from their end."""

import os
from pathlib import Path

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


def test_the_last_lines_are_those_that_say_something(tmp_path: Path) -> None:
    """Empty lines are left out, bytes that are no text do no harm, and no file says nothing."""
    file = tmp_path / "a.log"
    assert last_lines(file) == []
    assert not bound(file)
    file.write_bytes(b"a\n\nb\xff\n\n" + b"c\n")
    assert last_lines(file, 2) == ["b\ufffd", "c"]
