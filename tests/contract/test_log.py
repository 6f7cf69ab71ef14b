"""Every implementation of the LogBook API does what `tests.contract.scenarios` says."""

from __future__ import annotations

import pytest

from tests.contract.conftest import Run
from tests.contract.scenarios import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_log(run: Run, scenario: str) -> None:
    """The scenario's docstring says the property."""
    run(scenario)
