"""What kind of file system a folder is on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
"""Where a sync means nothing."""


def file_system_of(path: Path) -> str:
    """The type of the file system that holds the path, such as `ext4`; empty where the platform does not say."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return ""
    best, kind = "", ""
    real = os.path.realpath(path)
    for line in mounts.read_text(encoding="utf-8").splitlines():
        _, mounted_at, this_kind, *_ = line.split(" ")
        holds = mounted_at == "/" or real == mounted_at or real.startswith(mounted_at + "/")
        if holds and len(mounted_at) >= len(best):
            best, kind = mounted_at, this_kind
    return kind
