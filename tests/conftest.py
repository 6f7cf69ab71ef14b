"""What holds for every test: Hypothesis draws the same examples every time, and a slow machine fails nothing."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("boki", deadline=None, derandomize=True)
settings.load_profile("boki")
