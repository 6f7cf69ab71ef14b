"""A check that the mutators of a replicated object are deterministic: the same calls in several processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from json import dumps
from os import environ
from typing import Any, Final

from boki import InvalidArgument
from boki.libs.bokistore.machines import ReplicatedObject, check_kind

RUNS: Final = (("0", ""), ("1", ""), ("4242", ""), ("0", "saved"))
"""Hash seeds, and whether the state is saved and loaded before each call."""
_PROGRAM: Final = """
import importlib, json, sys
from boki.libs.bokistore.machines import replay
sys.path[:0] = json.loads(sys.argv[1])
kind = importlib.import_module(sys.argv[2])
for name in sys.argv[3].split("."):
    kind = getattr(kind, name)
state, outcomes = replay(kind, json.loads(sys.stdin.read()), is_saved=bool(sys.argv[4]))
print(state.decode())
print(json.dumps([[outcome.result, outcome.error] for outcome in outcomes]))
"""


def check_deterministic(kind: type[ReplicatedObject], calls: Iterable[tuple[str, Sequence[Any]]]) -> None:
    """Carry out the calls of mutators, by name and arguments, in processes of their own with different hash seeds, and
    in one that begins with the saved state before each call.

    `AssertionError`: they came to different states or results. For tests; the class must be in a module that can be
    imported.
    """
    check_kind(kind)
    if "<locals>" in kind.__qualname__ or kind.__module__ == "__main__":
        raise InvalidArgument(f"{kind.__qualname__} must stand in a module, not in a function, to be imported again")
    arguments = [dumps(sys.path), kind.__module__, kind.__qualname__]
    text = dumps([[name, list(values)] for name, values in calls])
    seen: dict[str, str] = {}
    for seed, saved in RUNS:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, *arguments, saved],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            env={**environ, "PYTHONHASHSEED": seed},
        )
        if done.returncode:
            raise InvalidArgument(f"{kind.__qualname__} cannot be replayed: {done.stderr.strip()[-500:]}")
        run = f"PYTHONHASHSEED {seed}{' and the state saved before each call' if saved else ''}"
        seen.setdefault(done.stdout, run)
    assert len(seen) == 1, (
        f"{kind.__qualname__} is not deterministic: with {' and with '.join(seen.values())} the same calls "
        f"come to {' and to '.join(text.strip()[:200] for text in seen)}"
    )
