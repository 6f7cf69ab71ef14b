"""Where tests take hold of workflows: what they want to happen around steps. Nothing is installed in a worker.

The public side is `boki.testing.flows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


class Hooks:
    """What happens around steps. A test installs a subclass."""

    replays = False
    """Whether an execution begins again, by a replay, after everything that it has recorded."""

    def dies(self, moment: str, step: str) -> bool:  # noqa: ARG002
        """Whether the process dies now: `moment` is "before" or "after" the body of the step, before its record."""
        return False


_NONE: Final = Hooks()


class _Installed:
    """The hooks of this process."""

    hooks: Hooks = _NONE


def hooks() -> Hooks:
    """The hooks that are installed."""
    return _Installed.hooks


@contextmanager
def installed(new: Hooks) -> Iterator[None]:
    """Have these be the hooks of this process."""
    before, _Installed.hooks = _Installed.hooks, new
    try:
        yield
    finally:
        _Installed.hooks = before
