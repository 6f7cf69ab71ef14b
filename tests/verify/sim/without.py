"""How an ablation takes a safeguard away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def without(target: Any, name: str, replacement: Any) -> Iterator[None]:
    with patch.object(target, name, replacement):
        yield
