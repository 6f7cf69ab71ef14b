"""Implementations whose time can be moved also do what depends on it."""

from __future__ import annotations

import pytest

from tests.contract.conftest import Run
from tests.contract.scenarios import TIMED


@pytest.mark.parametrize("scenario", TIMED)
def test_log_in_time(run_timed: Run, scenario: str) -> None:
    """The scenario's docstring says the property."""
    run_timed(scenario)
