"""The command `boki`. One file per group of commands; everything heavy is imported by the command that needs it, so
that `boki --help` answers at once.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

_TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """Run the command line and exit: 0 it worked, 1 it failed, 2 it was asked wrongly, 130 it was interrupted,
    141 nobody reads its output any more.
    """
    from boki.cli.app import app

    signal.signal(signal.SIGTERM, _terminate)
    app(prog_name="boki")


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """Leave by way of every `finally`, so that child processes and temporary directories do not stay behind."""
    sys.exit(_TERMINATED)
