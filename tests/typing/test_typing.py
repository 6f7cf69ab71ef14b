"""The public API is typed: mypy infers what users need, and refuses what would fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["invoke", "flows"])
def test_what_mypy_infers_and_refuses(name: str) -> None:
    """Exactly the lines that say so are errors; all `assert_type`s hold."""
    examples = HERE / f"{name}.py"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "--no-pretty", str(examples)],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    found = {int(line) for line in re.findall(rf"{name}\.py:(\d+)(?::\d+)?: error", done.stdout)}
    lines = examples.read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if "  # error: " in line}
    assert len(expected) > 10
    assert found == expected, done.stdout + done.stderr
