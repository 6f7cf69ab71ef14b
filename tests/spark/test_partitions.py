"""Books whose names are no names of folders: told apart as a file system does."""

from __future__ import annotations

from pathlib import Path

import pytest

from boki.spark.partitions import without_folder


@pytest.mark.parametrize("colons", [0, 60, 61, 62, 128])
def test_a_name_that_no_file_system_takes(tmp_path: Path, colons: int) -> None:
    """It is refused exactly if a folder cannot be called so."""
    book = ":" * colons + "x" * (128 - colons)
    try:
        (tmp_path / f"book={book.replace(':', '%3A')}").mkdir()
    except OSError:
        assert "more than 255 bytes" in without_folder(["a", book])[book]
    else:
        assert without_folder(["a", book]) == {}


def test_a_name_that_spark_takes_for_none() -> None:
    """Rows of such a book would be read back without it."""
    assert list(without_folder(["a", "__HIVE_DEFAULT_PARTITION__", "__hive_default_partition__"])) == [
        "__HIVE_DEFAULT_PARTITION__"
    ]
