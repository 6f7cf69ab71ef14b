"""The failure classes of `tests.libs.bokiflow.classes`, in the modes of `tests.libs.bokiflow.modes`.

A run of the tests has a sample; `--flow-modes all` (or `--whole`) runs every case in every mode.
"""

from __future__ import annotations

import pytest

from tests.libs.bokiflow.classes import Case, all_cases
from tests.libs.bokiflow.modes import EIGHT, MODES, Mode, all_of, sample_of, wants_all

CASES = all_cases()
SPINNING = "handlers_take_turns"
"""On a cluster this is a regression, too: an execution that had ended spun until its last answer could be sent."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the modes."""
    if "mode" not in metafunc.fixturenames:
        return
    pairs = all_of(CASES) if wants_all(metafunc.config) else sample_of(CASES)
    more = (next(case for case in CASES if case.name == SPINNING), EIGHT[1])
    pairs += [] if more in pairs else [more]
    metafunc.parametrize(("case", "mode"), pairs, ids=[f"{case.name}-{mode.name}" for case, mode in pairs])


def test_failure_classes(case: Case, mode: Mode) -> None:
    """What users of other systems suffered from does not happen here."""
    mode.run(case)


def test_there_are_enough_cases_and_each_names_its_source() -> None:
    """At least two hundred, none of them twice."""
    assert len(CASES) >= 200
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.source for case in CASES)


def test_the_sample_has_every_case_and_every_mode() -> None:
    """So nothing is ever left out for long."""
    sample = sample_of(CASES)
    assert {case.name for case, _ in sample} == {case.name for case in CASES}
    assert {mode.name for _, mode in sample} == {mode.name for mode in MODES}
    assert len(all_of(CASES)) > 10 * len(CASES)
