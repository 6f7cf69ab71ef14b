"""What a supervisor tells other commands, in a file: who it is, where its cluster listens, and how its processes are.

The file is replaced as a whole, so that a reader never sees half of it. It may be older than the truth, when the
supervisor was killed: whoever acts on a process compares its mark first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from boki.errors import CorruptData
from boki.host.private_files import write_new_file
from boki.launch.up.identity import is_same

FILE_NAME: Final = "supervisor.json"


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """One process. `pid` 0: it does not run now."""

    node: str
    role: str
    state: str
    pid: int = 0
    mark: str = ""
    restarts: int = 0
    exit_code: int | None = None
    log: str = ""
    plays: tuple[str, ...] = ()
    """The names of its roles, if it plays several."""

    @property
    def names(self) -> tuple[str, ...]:
        """Under which names it takes part in the cluster."""
        return self.plays or (self.node,)


class SupervisorState(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor and its cluster."""

    pid: int
    mark: str
    url: str
    zookeeper: str
    chroot: str
    stop_s: float = 40.0
    """How long a stop may take before something is wrong."""
    is_stopping: bool = False
    processes: tuple[ProcessState, ...] = ()

    @property
    def is_running(self) -> bool:
        """Whether that very supervisor still runs."""
        return is_same(self.pid, self.mark)

    def process_of(self, node: str) -> ProcessState | None:
        """The process that is the node, or plays the role of that name."""
        return next((process for process in self.processes if node in (process.node, *process.plays)), None)

    def pid_of(self, node: str) -> int:
        """The process of a node or role; 0 if it does not run."""
        process = self.process_of(node)
        return process.pid if process is not None else 0


def write_state(folder: Path, state: SupervisorState) -> None:
    """Replace the file in `folder`."""
    new = folder / f"{FILE_NAME}.new"
    write_new_file(new, msgspec.json.format(msgspec.json.encode(state), indent=1).decode() + "\n")
    new.replace(folder / FILE_NAME)


def read_state(folder: Path) -> SupervisorState | None:
    """What the last supervisor of this folder has told; None if there was none."""
    try:
        return msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=SupervisorState)
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # another user's is none of ours
        return None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptData(
            f"{folder / FILE_NAME} is not what a supervisor writes: {error}; the next `boki up` writes it again"
        ) from None


def readable_state(folder: Path) -> SupervisorState | None:
    """The same for those who start or stop a supervisor: None also if the file is damaged. A power cut may have done
    that, and has ended the supervisor; two cannot run, because of the lock on the data directory.
    """
    try:
        return read_state(folder)
    except CorruptData:
        return None
