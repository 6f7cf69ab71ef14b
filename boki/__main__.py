"""`python -m boki` is the command `boki`."""

from boki.cli import main

main()
