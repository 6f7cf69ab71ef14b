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


class _Both(Hooks):
    """Hooks that are installed over others: what either wants happens."""

    def __init__(self, outer: Hooks, inner: Hooks) -> None:
        self._parts = (outer, inner)
        self.replays = outer.replays or inner.replays

    def dies(self, moment: str, step: str) -> bool:
        """See `Hooks.dies`. Both are asked, because they count."""
        outer, inner = (part.dies(moment, step) for part in self._parts)
        return outer or inner


class _Installed:
    """The hooks of this process."""

    hooks: Hooks = _NONE


def hooks() -> Hooks:
    """The hooks that are installed."""
    return _Installed.hooks


@contextmanager
def installed(new: Hooks) -> Iterator[None]:
    """Have these be hooks of this process, beside those that are installed."""
    before = _Installed.hooks
    _Installed.hooks = new if before is _NONE else _Both(before, new)
    try:
        yield
    finally:
        _Installed.hooks = before
