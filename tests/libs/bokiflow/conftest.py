"""Modes in which suites of workflows are run: as they are, and with a replay after every event (Restate's lever)."""

from collections.abc import Iterator

import pytest

from boki.testing import flows


@pytest.fixture(params=["as it is", "forced replay"])
def each_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test in each mode."""
    if request.param == "as it is":
        yield
    else:
        with flows.forced_replay():
            yield
