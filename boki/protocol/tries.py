"""When tries of calls are worth their while (`Call.is_tried`). Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from boki.protocol.calls import PINNED, ChosenId

_MISSES: Final = 3
"""A function whose tries had no result this often in a row is not tried for a while."""
_REST_US: Final = 10_000_000
"""For this long: its bodies may have had an effect, or no worker of it had started yet."""
_MOST_FUNCTIONS: Final = 10_000


def is_worth_a_try(chosen: ChosenId) -> bool:
    """Whether the call runs a body that is replayed, with a payload of its own: it asks for a version to run."""
    return PINNED in chosen.attributes and not chosen.attends and not chosen.copies


class Misses:
    """By function: how many tries in a row had no result, and when the last one was."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._misses: dict[str, tuple[int, int]] = {}

    def rests(self, function: str) -> bool:
        """Whether the function is not to be tried now."""
        misses, last_us = self._misses.get(function, (0, 0))
        return misses >= _MISSES and self._clock() < last_us + _REST_US

    def note(self, function: str, *, has_missed: bool) -> None:
        """A try of the function is over."""
        misses, _ = self._misses.pop(function, (0, 0))
        if not has_missed:
            return
        self._misses[function] = misses + 1, self._clock()
        if len(self._misses) > _MOST_FUNCTIONS:
            del self._misses[next(iter(self._misses))]
