"""The workflow of `golden` that is a plain `def`."""

from __future__ import annotations

from boki.libs.bokiflow import step, workflow
from boki.libs.bokiflow.blocking import flow


@step
def halve(n: int) -> int:
    return n // 2


@workflow
def blocking(n: int) -> int:
    found = halve(n)
    flow.sleep(10)
    return halve(found)
