"""Where the example functions are."""

from __future__ import annotations

from pathlib import Path

from boki.errors import BokiError


def functions_folder() -> Path:
    """The example functions: installed inside the package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "examples", package.parent / "functions"):
        if (folder / "flights.py").exists():
            return folder
    raise BokiError("the example functions are not installed: run this from a clone, or install the wheel again")
