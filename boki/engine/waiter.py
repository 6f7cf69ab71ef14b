"""Whoever waits for an operation, while it goes through the engine's machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Waiter:
    """`token` is the shell's. `book` tells whose log's position the answer is stamped with; None: no book's."""

    book: str | None
    token: Any
