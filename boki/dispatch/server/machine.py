"""What this machine gives to worker processes, and what they have of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from boki.dispatch.orders import Budget
from boki.host.process import file_limit

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def affordable_workers() -> int:
    """Most worker processes of this engine: each needs two file descriptors here, for its socket and its tally. Half of
    all are left for disks and connections.
    """
    return max(1, min(Budget().engine_workers, file_limit() // 4))


def resident_bytes(pid: int) -> int:
    """Memory of the process in use; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0  # it has just ended
