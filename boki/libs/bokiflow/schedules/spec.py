"""When a schedule starts its workflow: a cron line or an interval, in a time zone. Pure.

Times are microseconds since the epoch, and a **tick** is the time for which a workflow is started. Daylight saving time
is treated as Debian's cron does: a line with a fixed hour runs once a day, also on a day on which its hour comes twice,
and at the end of the gap on a day on which its hour is left out; a line with `*` in its minutes or hours, and an
interval, follow the time that passes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from boki import InvalidArgument
from boki.libs.fold.arguments import check_span

Overlap = Literal["skip", "queue", "queue_all", "allow", "cancel", "kill"]
"""What happens at a tick while a workflow of an earlier one runs."""
OVERLAPS: Final[tuple[Overlap, ...]] = get_args(Overlap)

_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_MAX_CRON_CHARS: Final = 1_000
_LEAST_EVERY_S: Final = 1.0
_LEAST_CATCH_UP_US: Final = 10_000_000
"""The least time that a tick may be late: an attendant always acts a little after it, and 2 s later after an error."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LATEST_US: Final = 200 * 366 * 24 * 3_600 * 1_000_000
"""Behind this no calendar is asked."""


class Spec(msgspec.Struct, frozen=True, array_like=True):
    """When ticks are, and what happens if they come late or too early for the one before."""

    cron: str = ""
    """Minute, hour, day, month, weekday; empty: an interval."""
    every_us: int = 0
    offset_us: int = 0
    """An interval has its ticks where the time since 1970 (UTC) leaves this remainder."""
    zone: str = "UTC"
    overlap: Overlap = "skip"
    catch_up_us: int = 3_600_000_000
    """Ticks that were missed longer ago than this, as while nothing ran, are left out: see `too_old_us`."""
    jitter_us: int = 0
    """Each workflow is started by up to so much later than its tick: always the same for one tick."""


def spec_of(
    *,
    cron: str = "",
    every_s: float = 0,
    offset_s: float = 0,
    zone: str = "UTC",
    overlap: str = "skip",
    catch_up_s: float = 3_600,
    jitter_s: float = 0,
    now_us: int = 0,
) -> Spec:
    """The spec that these say. `InvalidArgument` names what is wrong, such as a cron line that never fires."""
    if bool(cron) == bool(every_s):
        raise InvalidArgument("a schedule needs cron='0 9 * * 1-5' or every_s=600, and not both", field="cron")
    if overlap not in OVERLAPS:
        raise InvalidArgument(f"overlap must be one of {', '.join(OVERLAPS)}, not {overlap!r:.40}", field="overlap")
    _zone(zone)
    found = Spec(
        _NICKNAMES.get(cron, cron),
        check_span(every_s, "every_s", least_s=_LEAST_EVERY_S) if every_s else 0,
        check_span(offset_s, "offset_s"),
        zone,
        overlap,
        check_span(catch_up_s, "catch_up_s"),
        check_span(jitter_s, "jitter_s"),
    )
    if found.every_us and found.offset_us >= found.every_us:
        raise InvalidArgument(f"offset_s must be below every_s ({every_s:g}), not {offset_s:g}", field="offset_s")
    if cron:
        _check_cron(found.cron, zone, now_us)
    return found


def next_tick(spec: Spec, after_us: int) -> int | None:
    """The first tick behind that time; None: there is none any more."""
    if after_us >= _LATEST_US:
        return None
    if spec.every_us:
        return after_us - (after_us - spec.offset_us) % spec.every_us + spec.every_us
    zone = _zone(spec.zone)
    start = (_EPOCH + timedelta(microseconds=after_us)).astimezone(zone)
    for found in CronSim(spec.cron, start):
        tick_us = (found.astimezone(UTC) - _EPOCH) // _MICROSECOND
        if tick_us > after_us:  # an hour that comes twice is gone through twice
            return tick_us
    return None


def times_of(spec: Spec) -> Spec:
    """What says when its ticks are, and nothing else."""
    return Spec(spec.cron, spec.every_us, spec.offset_us, spec.zone)


def due_us(spec: Spec, name: str, tick_us: int) -> int:
    """When the workflow of that tick is started: the tick, and its jitter."""
    if not spec.jitter_us:
        return tick_us
    drawn = blake2b(f"{name} {tick_us}".encode(), digest_size=8).digest()
    return tick_us + int.from_bytes(drawn, "big") % (spec.jitter_us + 1)


def too_old_us(spec: Spec, now_us: int) -> int:
    """The ticks before this time are missed; each of them was due before the catch-up window.

    It leaves the largest jitter to every tick, not only its own: a tick that is due waits for those before it, whose
    jitter may be larger.
    """
    return now_us - max(spec.catch_up_us, _LEAST_CATCH_UP_US) - spec.jitter_us


def tick_name(tick_us: int) -> str:
    """A tick as the id of its workflow has it.

    >>> tick_name(1_795_597_200_000_000)
    '2026-11-25T09:00:00Z'
    """
    found = _EPOCH + timedelta(microseconds=tick_us)
    return found.strftime("%Y-%m-%dT%H:%M:%S") + (f".{found.microsecond:06}Z" if found.microsecond else "Z")


def describe(spec: Spec) -> str:
    """The spec in a few words, for people."""
    return f"{spec.cron} ({spec.zone})" if spec.cron else f"every {spec.every_us / 1e6:g} s"


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # a zone's name is also a path
        raise InvalidArgument(
            f"there is no time zone {name!r:.60}: write one of the IANA database, such as Europe/Berlin or UTC",
            field="zone",
        ) from None


def _check_cron(line: str, zone: str, now_us: int) -> None:
    if len(line) > _MAX_CRON_CHARS:
        raise InvalidArgument(
            f"a cron line has at most {_MAX_CRON_CHARS:,} characters, and this one {len(line):,}", field="cron"
        )
    fields = line.split()
    if len(fields) != 5:
        raise InvalidArgument(
            f"a cron line has 5 fields (minute, hour, day, month, weekday), and {line!r:.60} has {len(fields)}",
            field="cron",
        )
    try:
        found = next_tick(Spec(line, zone=zone), now_us)
    except CronSimError as error:
        if not _is_calendar(fields):
            what = str(error).removeprefix("Bad ")
            raise InvalidArgument(f"cron line {line!r:.60} has a {what} that is none", field="cron") from None
        found = None
    if found is None:
        raise InvalidArgument(
            f"cron line {line!r:.60} never fires: no such day is in such a month, for the next 50 years", field="cron"
        )


def _is_calendar(fields: list[str]) -> bool:
    """Whether each field is right by itself: then only their combination has no day."""
    try:
        CronSim(" ".join((*fields[:3], "*", fields[4])), datetime(2000, 1, 1, tzinfo=UTC))
        CronSim(" ".join((*fields[:2], "*", *fields[3:])), datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError:
        return False
    return True
