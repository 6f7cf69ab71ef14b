"""Beats: what a process does regularly comes together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from boki.host.clock import beat_delay_s

PERIODS_MS = (50, 100, 250, 500)


@given(st.integers(0, 10**12), st.sampled_from(PERIODS_MS))
def test_a_beat_is_a_multiple_of_its_period_and_never_at_once(time_ms: int, period_ms: int) -> None:
    """Whenever it is asked for, in whole milliseconds, which is what uvloop's timers count."""
    delay_ms = round(beat_delay_s(time_ms / 1000, period_ms / 1000) * 1000)
    assert period_ms // 2 <= delay_ms <= period_ms * 3 // 2
    assert (time_ms + delay_ms) % period_ms == 0


@given(st.integers(0, 10**9), st.sampled_from(PERIODS_MS), st.integers(-10, 40))
def test_a_timer_that_is_early_or_late_finds_the_next_beat(number: int, period_ms: int, late_ms: int) -> None:
    """A little early it does not come twice, and a little late it does not leave one out."""
    delay_ms = round(beat_delay_s((number * period_ms + late_ms) / 1000, period_ms / 1000) * 1000)
    if -period_ms < 2 * late_ms < period_ms:
        assert late_ms + delay_ms == period_ms
