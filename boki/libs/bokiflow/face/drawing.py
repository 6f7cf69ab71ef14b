"""A workflow as a picture of text: one line for each thing that it did, on a common axis of time. Pure.

The picture says without colours what colours say again: a bar of `━` is work, one of `·` is waiting, `╌` waits for the
next attempt, `✗` ends what failed, `?` what nobody knows the end of, `>` what has not ended, and `◆` is a moment.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final, NamedTuple

from boki.libs.bokiflow.timeline import Span

_GAP: Final = 2
_MOST_NAME: Final = 22
_LEAST_BAR: Final = 10
_TOOK: Final = 8
_TRIES: Final = 5
_MOST_ERRORS: Final = 3
"""Of attempts that were followed by others: the last ones are told."""
_UNITS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))


class Line(NamedTuple):
    """A line, and how it may be coloured: a style of rich."""

    text: str
    style: str = ""


def draw(spans: Sequence[Span], began_us: int, until_us: int, columns: int) -> list[Line]:
    """The lines for a screen of this many columns. Spans that have not ended reach up to `until_us`."""
    if not spans:
        return []
    until_us = max(until_us, began_us + 1, *(span.until_us for span in spans))
    numbers = max(2, len(str(max(span.n for span in spans))))
    names = min(_MOST_NAME, max(len(span.name) for span in spans))
    bar = max(_LEAST_BAR, columns - numbers - names - _TOOK - _TRIES - 4 * _GAP)
    total = span_text(until_us - began_us)
    axis = f"├{f' {total} ':─^{bar - 2}}┤"
    gap = " " * _GAP
    lines = [Line(gap.join([f"{'#':>{numbers}}", f"{'':{names}}", axis, f"{'took':>{_TOOK}}", "tries"]), "bold dim")]
    for span in spans:
        number = str(span.n) if span.n >= 0 else ""
        took = "" if span.is_moment else span_text(_end_of(span, until_us) - span.from_us)
        tries = f"{span.attempts:>{_TRIES}}" if span.attempts > 1 else ""
        cells = [
            f"{number:>{numbers}}",
            f"{_cut(span.name, names):{names}}",
            _bar(span, began_us, until_us, bar),
            f"{took:>{_TOOK}}",
        ]
        lines.append(Line(gap.join([*cells, tries]).rstrip(), _style(span)))
        lines += [
            Line(" " * (numbers + _GAP) + text, _style(span)) for text in _besides(span, columns - numbers - _GAP)
        ]
    return lines


def span_text(span_us: int) -> str:
    """A measured span of time, in at most eight characters.

    >>> [span_text(n) for n in (0, 900, 1_500, 2_340_000, 90_000_000, 5_400_000_000, 864_000_000_000)]
    ['0 ms', '0.9 ms', '1.5 ms', '2.34 s', '90 s', '90 min', '10 d']
    """
    seconds = max(0, span_us) / 1e6
    for size_s, unit in _UNITS:
        if seconds >= (2 * size_s if size_s > 1 else size_s):
            number = seconds / size_s
            return f"{number:.3g} {unit}" if number < 1_000 else f"{number:.0f} {unit}"
    return f"{round(seconds * 1e3, 1):g} ms"


def _end_of(span: Span, until_us: int) -> int:
    return until_us if span.is_open else span.until_us


def _bar(span: Span, began_us: int, until_us: int, columns: int) -> str:
    scale = (columns - 1) / (until_us - began_us)
    first = round((span.from_us - began_us) * scale)
    last = round((_end_of(span, until_us) - began_us) * scale)
    first = min(max(first, 0), columns - 1)
    last = min(max(last, first), columns - 1)
    if span.is_moment:
        return f"{' ' * first}◆{'':{columns - first - 1}}"
    heard = min(max(round((span.until_us - began_us) * scale), first), last)
    worked = ("·" if span.kind == "timer" else "━") * (heard - first)
    marks = {"failed": "✗", "unknown": "?", "open": ">", "retrying": ">"}
    waits = "╌" if span.state == "retrying" else "━"
    cells = list(f"{worked}{waits * (last - heard)}")
    for wait in span.waits:
        begin, end = (round((at_us - began_us) * scale) - first for at_us in (wait.from_us, wait.until_us))
        for at in range(max(begin, 0), min(end, len(cells))):
            cells[at] = "╌"
    mark = marks.get(span.state) or ("·" if span.kind == "timer" else "━")
    return f"{' ' * first}{''.join(cells)}{mark}".ljust(columns)


def _style(span: Span) -> str:
    if span.state in ("failed", "unknown") or (span.kind == "message" and span.error):
        return "red"
    if span.is_open:
        return "yellow"
    return "cyan" if span.is_moment else "dim" if span.kind == "timer" else ""


def _besides(span: Span, columns: int) -> list[str]:
    """What stands below the line: the errors of the last attempts, the error, or what a message said."""
    said = [f"try {wait.attempts}: {wait.error}" for wait in span.waits[-_MOST_ERRORS:]]
    if not span.waits or not span.is_open:  # else it is the error of the last one of these
        said.append(span.error or (span.value if span.is_moment else ""))
    lines = [line for text in said for line in textwrap.wrap(" ".join(text.split()), max(columns - 2, 20))[:3]]
    return [f"  {line}" for line in lines]


def _cut(name: str, columns: int) -> str:
    return name if len(name) <= columns else name[: columns - 1] + "…"
