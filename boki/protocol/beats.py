"""How early a tick may come: shells tick all cores of a machine on common beats, and a timer is never exact."""

from __future__ import annotations

from typing import Final

EARLY_US: Final = 25_000
"""What is repeated is done at a tick that comes so much early, and needs no other one a moment later."""
