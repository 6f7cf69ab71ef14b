"""The public surface: what can be imported from `boki`, and that the errors are the tree that their page draws."""

from __future__ import annotations

import re
import subprocess
import sys
from types import ModuleType

import boki
from boki import errors

NOT_OURS = {"annotations", "TYPE_CHECKING", "Any"}


def test_all_is_what_can_be_imported() -> None:
    """`__all__` names every public thing of the package, and nothing else."""
    missing = [name for name in boki.__all__ if not hasattr(boki, name)]
    assert missing == []
    public = {
        name
        for name, value in vars(boki).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name not in NOT_OURS
    }
    assert public <= set(boki.__all__)
    assert sorted(boki.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name)) == boki.__all__


def test_what_is_not_public_is_said_to_be_missing() -> None:
    """A name that is wrong is an `AttributeError`, as for any module."""
    assert not hasattr(boki, "Clients")


def test_every_error_is_public() -> None:
    """Whatever may be raised can be caught by a name of the package."""
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert kinds <= set(boki.__all__)
    assert kinds < set(errors.__all__)


def test_the_tree_of_errors_is_the_one_that_is_drawn() -> None:
    """The docstring of `boki.errors` shows each class under its parent, once."""
    drawn: dict[str, str] = {}
    stack: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^(?P<indent>[│ ]*)(?:[├└]── )?(?P<name>[A-Z]\w+)(?:  |$)", line)
        if match is None or match["name"] not in vars(errors):
            continue
        depth = len(match["indent"]) // 4 + ("──" in line)
        del stack[depth:]
        drawn[match["name"]] = stack[-1] if stack else ""
        stack.append(match["name"])
    actual = {
        kind.__name__: "" if kind is errors.BokiError else kind.__bases__[0].__name__
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.BokiError)
    }
    assert drawn == actual


def test_codes_are_stable_names() -> None:
    """Each error has its own, and comes back from the wire as itself, with all that it says."""
    kinds = [getattr(errors, name) for name in errors.__all__]
    kinds = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, errors.BokiError)]
    assert len({kind.code for kind in kinds}) == len(kinds)
    for kind in kinds:
        error = kind("what happened", next_seqnum=5)
        back = errors.BokiError.from_body(error.body())
        assert type(back) is kind
        assert (back.message, back.outcome, back.retryable) == (error.message, error.outcome, error.retryable)
        assert back.next_seqnum == 5


def test_importing_boki_is_light() -> None:
    """A worker that imports it loads no server, no HTTP, no database and no test tools."""
    heavy = {"aiohttp", "zmq", "rocksdict", "kazoo", "typer", "rich", "prometheus_client", "pydantic", "hypothesis"}
    code = f"import sys, boki, boki.blocking; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
