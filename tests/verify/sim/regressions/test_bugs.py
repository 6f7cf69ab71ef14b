"""Bugs that the simulator once found do not come back unseen.

`boki sim --seed N --shrink` writes further regressions beside this file: options under which a promise was broken.
"""

from __future__ import annotations

import pytest

from boki.verify.sim.shrinking import first_broken
from tests.verify.sim.bugs import BUGS, broken_with


@pytest.mark.parametrize("name", BUGS)
def test_a_mended_bug_breaks_nothing(name: str) -> None:
    """The history under which it shows keeps every promise."""
    assert first_broken(BUGS[name].options) is None


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_that_is_put_back_is_noticed(name: str) -> None:
    """Else that history proves nothing any more: `python -m tests.verify.sim.bugs` finds another seed."""
    assert broken_with(BUGS[name], BUGS[name].options) == BUGS[name].promise
