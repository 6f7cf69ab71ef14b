"""Where the processes of a module have its code from."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from boki.log.limits import Limits
from boki.worker.frames import Fork, ProcessKind


class Origin(NamedTuple):
    """Where a version of a module comes from: its folder, and the sources that are pinned, if they are."""

    folder: Path
    pinned: dict[str, bytes] | None

    def plan(
        self, child: int, kind: ProcessKind, module: str, memory_bytes: int, limits: Limits, log_level: int
    ) -> Fork:
        """A process of it, for the zygote."""
        return Fork(
            child=child,
            kind=kind,
            module=module,
            path=str(self.folder / f"{module}.py"),
            folder=str(self.folder),
            memory_bytes=memory_bytes,
            limits=limits,
            pin_sources=self.pinned is not None,
            sources=self.pinned or {},
            log_level=log_level,
        )
