"""Shells that run in the simulator as they are: a lint excuses them for `asyncio`, and that must be all."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "boki"
SHELLS = sorted(
    path
    for pattern in (
        "libs/bokiqueue/*.py",
        "libs/bokistore/[!b]*.py",  # plain functions, in `blocking.py`, are not simulated
        "libs/fold/*.py",
        "gateway/server/cluster*.py",
        "books/calls/*.py",
        "engine/server/*_requests.py",
        "engine/server/*_service.py",
    )
    for path in ROOT.glob(pattern)
)
OF_THE_WORLD = {"time", "random", "secrets", "uuid", "datetime", "os", "socket", "threading", "subprocess", "tempfile"}
EXCUSED = {
    ("following.py", "secrets"): "the simulator gives each process its name (`taker=`)",
    ("retrying.py", "random"): "whoever repeats brings the generator (`rng=`)",
    ("steps.py", "time"): "the driver for plain functions pauses",
    ("determinism.py", "os"): "a check for the tests of applications, which the simulator does not call",
    ("determinism.py", "subprocess"): "the same",
    ("past.py", "datetime"): "a time that the caller gives may be a `datetime`",
    ("memory.py", "os"): "the simulator gives each process its nonces (`Memory.draw`)",
    ("memory.py", "threading"): "a lock for plain functions, which the simulator does not run",
    ("recent.py", "threading"): "a lock that a single thread never waits for",
    ("store.py", "random"): "the pauses between tries, of a method that the simulator does without",
    ("cluster.py", "os"): "a process number for operators, which nothing goes by",
}


@pytest.mark.parametrize("path", SHELLS, ids=lambda path: path.name)
def test_a_shell_that_is_simulated_has_no_clock_and_no_chance_of_its_own(path: Path) -> None:
    """The loop has the time; the rest comes as arguments. Else a seed would not be one history."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    assert {name for name in names & OF_THE_WORLD if (path.name, name) not in EXCUSED} == set()
