"""Memory of the ticks that a schedule has started, however long ago: spans of its times. Pure.

A tick is started at most once, also by a backfill a year later, when its workflow is forgotten. Ticks that follow each
other by the same times (cron line or interval, and zone) share one span, so a schedule that leaves nothing out needs
one. Ticks that were skipped, missed or passed while it was paused are gaps between spans.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Final

import msgspec

from boki import InvalidArgument
from boki.libs.bokiflow.schedules.spec import Spec, next_tick, times_of

MAX_SPANS: Final = 1_000
MAX_TIMES: Final = 20
"""Maximum number of times of which the ticks are told apart: those that a schedule had before are forgotten first."""
_ANY: Final = Spec()
"""Times of which each moment is a tick: of ticks whose times are not known any more."""

Span = tuple[int, int]
"""The first and the last of ticks that follow each other."""
Settled = Callable[[int, int], bool]
"""Whether no tick between these two is still to be started."""


class Spans(msgspec.Struct, frozen=True, array_like=True):
    """Ticks of the same times that were started: disjoint, in order."""

    times: Spec
    spans: tuple[Span, ...]


class Started:
    """The ticks that were started. It forgets none: what it cannot keep apart counts as started."""

    def __init__(self, kept: Iterable[Spans] = ()) -> None:
        self._spans: dict[Spec, list[Span]] = {one.times: list(one.spans) for one in kept}
        """By times; those that were used last come last."""

    def kept(self) -> tuple[Spans, ...]:
        """All of it, for a snapshot."""
        return tuple(Spans(times, tuple(spans)) for times, spans in self._spans.items())

    def __contains__(self, tick_us: int) -> bool:
        return any(_covers(times, spans, tick_us) for times, spans in self._spans.items())

    def add(self, tick_us: int, spec: Spec) -> None:
        """Take in a tick that is started while the schedule has this spec."""
        if tick_us in self:
            return
        times = times_of(spec)
        if _next(times, tick_us - 1) != tick_us:  # it has waited, and the times have changed meanwhile
            times = _ANY
        spans = self._spans.pop(times, [])
        self._spans[times] = spans
        at = end = bisect_right(spans, (tick_us, tick_us))
        first = last = tick_us
        if at and _next(times, spans[at - 1][1]) == tick_us:
            at, first = at - 1, spans[at - 1][0]
        if end < len(spans) and _next(times, tick_us) == spans[end][0]:
            end, last = end + 1, spans[end][1]
        spans[at:end] = [(first, last)]

    def shrink(self, is_settled: Settled) -> None:
        """Have there be `MAX_SPANS` and `MAX_TIMES` at most.

        Ticks that are still to be started are left out of this, so there may be more for as long as a backfill runs.
        """
        while len(self._spans.keys() - {_ANY}) > MAX_TIMES and self._forget_times(is_settled):
            pass
        while sum(map(len, self._spans.values())) > MAX_SPANS and self._close_gap(is_settled):
            pass

    def _forget_times(self, is_settled: Settled) -> bool:
        for times, spans in self._spans.items():
            if times != _ANY and is_settled(spans[0][0], spans[-1][1]):
                del self._spans[times]
                self._spans[_ANY] = _united([*self._spans.get(_ANY, []), *spans])
                return True
        return False

    def _close_gap(self, is_settled: Settled) -> bool:
        """A small gap costs few ticks, and an old one is hardly asked for."""
        gaps = sorted(
            (after[0], after[0] - before[1], index)
            for index, spans in enumerate(self._spans.values())
            for before, after in pairwise(spans)
            if is_settled(before[1], after[0])
        )
        if not gaps:
            return False
        start_us, _, index = min(gaps[: (len(gaps) + 1) // 2], key=lambda gap: gap[1])
        spans = list(self._spans.values())[index]
        at = bisect_right(spans, start_us, key=lambda span: span[0]) - 1
        spans[at - 1 : at + 1] = [(spans[at - 1][0], spans[at][1])]
        return True


def _covers(times: Spec, spans: list[Span], tick_us: int) -> bool:
    at = bisect_right(spans, tick_us, key=lambda span: span[0]) - 1
    if at < 0 or tick_us > spans[at][1]:
        return False
    if tick_us in spans[at] or times == _ANY:
        return True
    return _next(times, tick_us - 1) in (tick_us, None)  # a zone that is not known here: rather once than twice


def _next(times: Spec, after_us: int) -> int | None:
    """The tick behind that one; None also if this computer does not know the zone, with which a fold must not fail."""
    if times == _ANY:
        return None
    try:
        return next_tick(times, after_us)
    except InvalidArgument:
        return None


def _united(spans: list[Span]) -> list[Span]:
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found
