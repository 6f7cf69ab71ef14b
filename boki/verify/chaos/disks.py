"""Bad days of a disk, inside of a real node: this module stands in front of the real database of a process.

`python -m boki.verify.chaos.disks FOLDER …` is the zygote of a cluster whose disks can fail, so all that it forks can
be hurt, and nobody else. Whoever puts a file into FOLDER/NODE brings the fault about: `fail-sync` (syncs fail, as after
an I/O error), `full` (the file system has nothing left, while the file is there). A node that has felt it says so in a
file of its own: `full.felt`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from boki.host import disk
from boki.host.rocksdb import Memory, RocksDb
from boki.launch.up import zygote

FAIL_SYNC = "fail-sync"
FULL = "full"


class FaultFolder:
    """The faults of one node's disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, fault: str) -> bool:
        """Whether that fault is on. To the node it is felt from now on."""
        is_on = (self._folder / fault).exists()
        if is_on:
            self._felt(fault).touch()
        return is_on

    def is_felt(self, fault: str) -> bool:
        """Whether the node has met it."""
        return self._felt(fault).exists()

    def begin(self, fault: str) -> None:
        """Bring it about."""
        (self._folder / fault).touch()

    def end(self, fault: str) -> None:
        """Take it back."""
        (self._folder / fault).unlink(missing_ok=True)
        self._felt(fault).unlink(missing_ok=True)

    def _felt(self, fault: str) -> Path:
        return self._folder / f"{fault}.felt"


def faults_of(folder: Path, path: Path) -> FaultFolder:
    """The faults of the disk at `path`, which is NODE/disk somewhere."""
    return FaultFolder(folder / path.parent.name)


def install(folder: Path) -> None:
    """From now on, disks of this process fail as the files in `folder` say."""

    class FailingDb(RocksDb):
        """The real database, until it is told to fail."""

        def __init__(self, path: Path, memory: Memory) -> None:
            super().__init__(path, memory)
            self._faults = faults_of(folder, path)

        def sync(self) -> None:
            if self._faults.has(FAIL_SYNC):
                raise OSError("Input/output error (made by chaos)")
            super().sync()

    class FullDisk(disk.Disk):
        """The real disk, whose file system has no room when it is told so."""

        @property
        def free_bytes(self) -> int:
            return 0 if faults_of(folder, self.path).has(FULL) else super().free_bytes

    # Whatever is imported from here on gets these.
    setattr(disk, "RocksDb", FailingDb)  # noqa: B010 - replacing a name of another module is the point
    setattr(disk, "Disk", FullDisk)  # noqa: B010


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    zygote.main()
