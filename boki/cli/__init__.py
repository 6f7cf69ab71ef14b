"""The command `boki`. One file per group of commands; everything heavy is imported by the command that needs it, so
that `boki --help` answers at once.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit: 0 it worked, 1 it failed, 2 it was asked wrongly, 130 it was interrupted."""
    from boki.cli.app import app

    app(prog_name="boki")
