"""What this machine gives to worker processes, and what they have of it."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

from boki.engine.functions.orders import Budget

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def affordable_workers() -> int:
    """Most worker processes of this engine: each needs a file descriptor here, as do disks and connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = Budget().engine_workers
    return most if soft == resource.RLIM_INFINITY else max(1, min(most, soft // 2))


def resident_bytes(pid: int) -> int:
    """Memory of the process in use; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0  # it has just ended
