"""The count of begun calls outlives the process that writes it."""

from __future__ import annotations

import os
import signal

from boki.worker.tally import Tally


def test_what_a_killed_process_has_written_is_read_afterwards() -> None:
    """The last store before SIGKILL is there; the first value is 0."""
    tally, fd = Tally.create()
    assert tally.begun == 0
    pid = os.fork()
    if pid == 0:
        Tally(fd).begun = 1 << 40
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)
    assert tally.begun == 1 << 40
    tally.close()
