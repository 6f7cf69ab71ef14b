"""The limits that every input is held to, before anything is allocated for it."""

from __future__ import annotations

from math import inf

import msgspec

from boki.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
MAX_CONDITIONS = 1_024
"""Maximum number of conditions of one append: each index decides all of them."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one request may hold. All nodes of a cluster must agree on these."""

    record_bytes: int = 1 * MIB
    aux_bytes: int = 64 * KIB
    tags_per_record: int = 16
    tag_bytes: int = 255
    request_bytes: int = 4 * MIB
    page_records: int = 10_000
    """The largest `limit` of one page."""
    page_bytes: int = 4 * MIB
    """A page ends after the record that crosses this."""
    call_depth: int = 32
    key_window_s: float = 24 * 3600.0
    """How long an idempotency key is remembered, by the log's own time."""
    history_s: float = 24 * 3600.0
    """How long libraries keep the history of what has ended, as of workflows, where their user says nothing else."""

    def __post_init__(self) -> None:
        problems = [
            f"limits.{name} must be {'positive' if value <= 0 else 'finite'}, not {value}"
            for name in self.__struct_fields__
            if not 0 < (value := getattr(self, name)) < inf
        ]
        if self.tags_per_record > 255 or self.tag_bytes > 65_000:
            problems.append("the batch format holds at most 255 tags per record, of at most 65,000 bytes each")
        if self.record_bytes > self.request_bytes or self.request_bytes > 1 << 30:
            problems.append("limits.record_bytes must be at most limits.request_bytes, and that at most 1 GiB")
        if problems:
            raise ConfigError("; ".join(problems), problems=problems)


DEFAULT_LIMITS = Limits()
