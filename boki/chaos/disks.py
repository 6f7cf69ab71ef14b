"""Bad days of a disk, inside of a real node: this module stands in front of the real database of a process.

`python -m boki.chaos.disks DIRECTORY start ROLE …` runs `boki start ROLE …` with it. Whoever puts a file into DIRECTORY
brings the fault about: `fail-sync` (the next sync fails, as after an I/O error), `full` (the file system has nothing
left, while the file is there). Only processes that were started this way can be hurt.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from boki.host import disk
from boki.host.rocksdb import RocksDb

FAIL_SYNC = "fail-sync"
FULL = "full"


def install(directory: Path) -> None:
    """From now on, disks of this process fail as the files in `directory` say."""

    class FailingDb(RocksDb):
        """The real database, until it is told to fail."""

        def sync(self) -> None:
            if (directory / FAIL_SYNC).exists():
                raise OSError("Input/output error (made by chaos)")
            super().sync()

    class FullDisk(disk.Disk):
        """The real disk, whose file system has no room when it is told so."""

        @property
        def free_bytes(self) -> int:
            return 0 if (directory / FULL).exists() else super().free_bytes

    # Whatever is imported from here on gets these.
    setattr(disk, "RocksDb", FailingDb)  # noqa: B010 - replacing a name of another module is the point
    setattr(disk, "Disk", FullDisk)  # noqa: B010


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    sys.argv = ["boki", *sys.argv[2:]]
    runpy.run_module("boki", run_name="__main__")
