"""`Limit`: what is declared of a workflow's flow control, and its check. Pure."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from boki import InvalidArgument
from boki.libs.fold.arguments import check_count, check_key, check_span

WhenFull = Literal["queue", "cancel_newest", "cancel_running"]

MAX_CONCURRENCY: Final = 10_000
MAX_RATE: Final = 10_000


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """How workflows that have the same key are let begin. Without a key, all of one name share the limit.

    `concurrency`: at most this many at once (0: any number). If there are this many, `when_full` decides: "queue" waits
    for its turn, "cancel_newest" cancels the one that has come, "cancel_running" cancels the one that runs longest.
    `rate`: at most this many begin in any `per_s` seconds. `debounce_s`: it begins when no other one was started for
    this long, or `debounce_most_s` after the first; the last start counts, and those before are cancelled.
    """

    key: str = ""
    """The field of the payload that has the key; "": there is one key."""
    concurrency: int = 0
    when_full: WhenFull = "queue"
    rate: int = 0
    per_s: float = 1.0
    debounce_s: float = 0.0
    debounce_most_s: float = 0.0
    """0: ten times `debounce_s`."""

    @property
    def most_us(self) -> int:
        """The longest time that a start is put off by later ones."""
        return round((self.debounce_most_s or 10 * self.debounce_s) * 1e6)


def check_limit(limit: Limit) -> Limit:
    """The limit, if it makes sense. `InvalidArgument`"""
    if not isinstance(limit, Limit):
        raise InvalidArgument(f"limit must be a Limit(...), not {type(limit).__name__}", field="limit")
    if limit.key:
        check_key(limit.key, "key")
    check_count(limit.concurrency, "concurrency", MAX_CONCURRENCY, least=0)
    check_count(limit.rate, "rate", MAX_RATE, least=0)
    check_span(limit.per_s, "per_s", least_s=0.001)
    check_span(limit.debounce_s, "debounce_s")
    check_span(limit.debounce_most_s, "debounce_most_s")
    if limit.when_full not in get_args(WhenFull):
        raise InvalidArgument(
            f"when_full must be one of {', '.join(get_args(WhenFull))}, not {limit.when_full!r:.60}", field="when_full"
        )
    if limit.when_full != "queue" and not limit.concurrency:
        raise InvalidArgument(f"when_full={limit.when_full!r} needs a concurrency", field="when_full")
    if limit.debounce_most_s and limit.debounce_most_s < limit.debounce_s:
        raise InvalidArgument("debounce_most_s must not be shorter than debounce_s", field="debounce_most_s")
    return limit


def describe(limit: Limit, key: str) -> str:
    """The limit in a few words."""
    parts = []
    if limit.concurrency:
        parts.append(f"at most {limit.concurrency:,} at once")
    if limit.rate:
        parts.append(f"at most {limit.rate:,} in {limit.per_s:g} s")
    if limit.debounce_s:
        parts.append(f"none for {limit.debounce_s:g} s")
    return ", ".join(parts) + (f" for {key!r:.60}" if key else "")
