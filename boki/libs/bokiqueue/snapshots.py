"""What a shard's fold remembers of its takers, and the whole of it as a checkpoint keeps it: data alone."""

from __future__ import annotations

import msgspec

from boki.libs.bokiqueue.backlog import Rate
from boki.libs.bokiqueue.groups import Aside, Delivery
from boki.libs.bokiqueue.records import Settings
from boki.libs.bokiqueue.standing import Standing


class Given(msgspec.Struct, frozen=True, array_like=True):
    """What came of an act: for each take its messages (None: there is no such group), for each settled message whether
    it was in the state that the verb asks for, and so has changed.
    """

    number: int
    time_us: int
    takes: list[list[Delivery] | None]
    settles: list[list[bool]]

    @property
    def is_forgotten(self) -> bool:
        """Only its number is known: every act takes or settles something."""
        return not self.takes and not self.settles


class Popped(msgspec.Struct, frozen=True, array_like=True):
    """What a taker took for good and may give back, as long as it does not say that somebody has received it."""

    group: str
    token: int
    deliveries: list[Delivery]
    is_standing: bool = False
    """Whether it was given to a standing take, and not to an act."""


class OpDone(msgspec.Struct, frozen=True, array_like=True):
    """What a take with an op was given."""

    time_us: int
    deliveries: list[Delivery]


class GroupSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A group as a checkpoint keeps it."""

    cursor: int
    aside: list[Aside]
    is_dry: bool
    done_count: int
    expired_count: int
    rate: Rate


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A process that consumes for a group, until then."""

    group: str
    taker: bytes
    until_us: int


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state after the record `at`. `resume`: where the untouched pushes begin."""

    at: int
    time_us: int
    resume: int
    resume_pos: int
    floor: int
    settings: Settings
    groups: dict[str, GroupSnapshot]
    takers: dict[bytes, Given]
    popped: dict[bytes, list[Popped]]
    ops: dict[str, OpDone]
    marks: list[tuple[int, int, int]]
    last_fence: int
    push_rate: Rate
    members: list[Member]
    opened_at: int = 0
    passed_by: int = 0
    standing: list[Standing] = []
    """Of each group in the order of turns."""
