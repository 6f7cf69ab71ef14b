"""Whether a process is still the one that was meant: its number alone is given to others once it has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

_BOOT_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD: Final = 19  # of those behind the name, which may hold spaces: `man 5 proc`, field 22
_POLL_S: Final = 0.02


def start_mark(pid: int) -> str:
    """What no other process with that number shares: the boot and the moment of its start. Empty if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return "" if fields[0] == "Z" else f"{_BOOT_FILE.read_text(encoding='ascii').strip()}/{fields[_START_FIELD]}"
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends between the opening and the reading
        if _BOOT_FILE.exists():
            return ""
    # Not Linux.
    shown = subprocess.run(["/bin/ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()


def is_same(pid: int, mark: str) -> bool:
    """Whether the process that had this mark still runs."""
    return pid > 0 and bool(mark) and start_mark(pid) == mark


def send(pid: int, mark: str, number: signal.Signals) -> bool:
    """Signal that process, and no other that has its number now. False if it is gone."""
    if not is_same(pid, mark):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def wait_gone(pid: int, mark: str, timeout_s: float) -> bool:
    """Wait until that process has ended; False if it has not in time. It need not be a child."""
    deadline = time.monotonic() + timeout_s
    while is_same(pid, mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def resident_bytes(pid: int) -> int:
    """The memory that the process holds; 0 where that is not known."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
