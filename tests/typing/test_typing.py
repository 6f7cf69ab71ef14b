"""The public API is typed: mypy infers what users need, and refuses what would fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent / "invoke.py"


def test_what_mypy_infers_and_refuses() -> None:
    """Exactly the lines that say so are errors; all `assert_type`s hold."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "--no-pretty", str(EXAMPLES)],
        cwd=EXAMPLES.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    found = {int(line) for line in re.findall(r"invoke\.py:(\d+)(?::\d+)?: error", done.stdout)}
    lines = EXAMPLES.read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if "  # error: " in line}
    assert len(expected) > 10
    assert found == expected, done.stdout + done.stderr
