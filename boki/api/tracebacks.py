"""Tracebacks for the author of a function: without the frames of Boki, which are the same each time and say nothing."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from boki.log.limits import KIB

MAX_TEXT_CHARS: Final = 64 * KIB
"""A longer log record or traceback is cut in the middle."""

_PACKAGE: Final = f"{Path(__file__).parents[1]}/"
_EXAMPLES: Final = f"{_PACKAGE}examples/"
"""Functions that come with Boki are still functions."""
_BUNDLE: Final = re.compile(r".*/bundles/[0-9a-f]{64}/")
"""Where an engine unpacks what was deployed: a name that only it knows."""
_GENERATED: Final = ("<string>", "__init__")
"""File and name of what `dataclasses` generates, as for `Response`: it has no line to show."""
_STANDARD_LIBRARY: Final = f"{sysconfig.get_path('stdlib')}/"


def traceback_text(error: BaseException) -> str:
    """The traceback as Python prints it, with that of each cause, context and member of a group; bounded."""
    report = traceback.TracebackException.from_exception(error)
    for part in _parts(report, set()):
        part.stack[:] = _without_ours(part.stack)
    return shorten("".join(report.format()).rstrip())


def shorten(text: str) -> str:
    """The text, cut in the middle if it is longer than `MAX_TEXT_CHARS`."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def _parts(report: traceback.TracebackException | None, seen: set[int]) -> Iterator[traceback.TracebackException]:
    if report is None or id(report) in seen:
        return
    seen.add(id(report))
    yield report
    for other in (report.__cause__, report.__context__, *(report.exceptions or ())):
        yield from _parts(other, seen)


def _without_ours(frames: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """What Boki calls of the standard library goes with it."""
    kept = []
    is_ours = False
    for frame in frames:
        name = frame.filename
        is_ours = (
            _is_boki(name)
            or (name, frame.name) == _GENERATED
            or (is_ours and name.startswith(_STANDARD_LIBRARY) and "/site-packages/" not in name)
        )
        if not is_ours:
            kept.append(_shown(frame))
    return kept


def _shown(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    """The frame under the name that its file has in the bundle. Its source line has been read by now."""
    frame.filename = _BUNDLE.sub("", frame.filename)
    return frame


def _is_boki(name: str) -> bool:
    return name.startswith(_PACKAGE) and not name.startswith(_EXAMPLES)
