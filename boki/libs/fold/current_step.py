"""The step of a workflow that runs here: BokiFlow sets it, and libraries write it down with what the step does."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

CURRENT_STEP: Final[ContextVar[str]] = ContextVar("boki_current_step", default="")
"""The step's place in its workflow and its name, counted from 0, such as "3 charge"; "" outside of a step."""
