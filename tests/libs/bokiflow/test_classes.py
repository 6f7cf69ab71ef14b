"""The failure classes of `tests.libs.bokiflow.classes`, each in every mode that is cheap to switch.

With `BOKI_FLOW_MODES=all` also in those that multiply: a crash at every moment under forced replay and with every wait
suspended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest

import boki.testing
from boki.libs.bokiflow import execution
from boki.testing import flows
from tests.libs.bokiflow.classes import CASES, Case, calls, forget, messages, steps, time

assert [steps, messages, calls, time]  # their cases are in the list

PLAIN, REPLAY, LOG, CRASH = "as it is", "forced replay", "waits in the log only", "a crash at every step"
MODES: list[tuple[str, ...]] = [(PLAIN,), (REPLAY,), (LOG,), (CRASH,)]
if os.environ.get("BOKI_FLOW_MODES") == "all":
    MODES += [(CRASH, REPLAY), (CRASH, LOG), (REPLAY, LOG), (CRASH, REPLAY, LOG)]


@contextmanager
def mode_of(mode: tuple[str, ...]) -> Iterator[None]:
    """What is switched for a mode."""
    with ExitStack() as stack:
        if REPLAY in mode:
            stack.enter_context(flows.forced_replay())
        if LOG in mode:  # whatever waits is suspended at once: its timers and messages come from the log alone
            stack.enter_context(patch.object(execution, "_LINGER_US", 0))
        yield


@pytest.mark.parametrize("mode", MODES, ids=" and ".join)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_failure_classes(case: Case, mode: tuple[str, ...]) -> None:
    """What users of other systems suffered from does not happen here."""
    with mode_of(mode):
        if CRASH not in mode:
            forget()
            async with boki.testing.context() as ctx:
                await case.run(ctx)
        elif case.crashes:
            async for ctx in flows.every_crash():
                forget()
                await case.run(ctx)


def test_there_are_enough_cases_and_each_names_its_source() -> None:
    """At least sixty, none of them twice."""
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.source for case in CASES)
