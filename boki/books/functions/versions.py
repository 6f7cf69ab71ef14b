"""Deployed versions as records: what the system book `boki:functions` says, and the fold that tells which one runs.

A bundle is uploaded in pieces, under a tag of its own; then one record makes it a version and the one that runs
(``Deployed``). Going back to a version is a record, too (``Used``). Both stand under one tag and are appended under the
condition that its last record is the one that their writer has seen, so that versions are numbered without gaps however
many deploy at once. The last of them says what runs.

The book is trimmed from the bottom: the last `KEPT_VERSIONS` are kept, the one that runs, the one that ran before it,
and those that unfinished calls were pinned to when the last one was deployed. So a call is safe, too, that is pinned to
a version which ran a moment ago: engines change over one after the other.
"""

from __future__ import annotations

from typing import Final

import msgspec

from boki.errors import InvalidArgument, NotFound
from boki.libs.fold.codec import RecordCodec
from boki.libs.fold.fold import Fold
from boki.protocol.deployments import VersionInfo

VERSION: Final = 1
BOOK: Final = "boki:functions"
VERSIONS_TAG: Final = "versions"
KEPT_VERSIONS: Final = 10


class Piece(msgspec.Struct, frozen=True, array_like=True, tag="piece"):
    """A part of a bundle, in ascending order of its records."""

    content: bytes


class Deployed(msgspec.Struct, frozen=True, array_like=True, tag="deployed"):
    """Version `number` is the bundle of this hash, whose pieces have the tag `upload`. It runs from here on."""

    number: int
    bundle_hash: str
    size_bytes: int
    upload: str
    first_seqnum: int
    """Of its pieces."""
    functions: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    """Modules that could not be loaded when it was deployed all the same."""
    in_use: tuple[int, ...] = ()
    """Earlier versions that calls were pinned to at that time."""


class Used(msgspec.Struct, frozen=True, array_like=True, tag="used"):
    """Version `number`, which was deployed before, runs from here on."""

    number: int


Entry = Piece | Deployed | Used

CODEC: Final[RecordCodec[Entry]] = RecordCodec(f"book {BOOK}", VERSION, Entry)


class Versions(Fold[Entry]):
    """The versions that are kept, by folding the records of `VERSIONS_TAG` in order."""

    def __init__(self) -> None:
        self.last_seqnum = 0
        """Of the records folded; 0: there are none."""
        self.active: Deployed | None = None
        self.previous: Deployed | None = None
        """What ran before it, if that was another version."""
        self._deployed: dict[int, tuple[Deployed, int]] = {}
        self._in_use: frozenset[int] = frozenset()

    def apply(self, seqnum: int, time_us: int, entry: Entry) -> None:
        """Take in the next record; one that was folded before changes nothing."""
        if seqnum <= self.last_seqnum:
            return
        self.last_seqnum = seqnum
        if isinstance(entry, Deployed):
            self._deployed[entry.number] = (entry, time_us)
            self._in_use = frozenset(entry.in_use)
            self._run(entry)
        elif isinstance(entry, Used) and entry.number in self._deployed:
            self._run(self._deployed[entry.number][0])
        self._forget()

    def _run(self, version: Deployed) -> None:
        if self.active is not None and self.active.number != version.number:
            self.previous = self.active
        self.active = version

    def _forget(self) -> None:
        lowest = max(self._deployed, default=0) - KEPT_VERSIONS + 1
        if self.active is not None:
            lowest = min(lowest, self.active.number)
        wanted = self._in_use if self.previous is None else self._in_use | {self.previous.number}
        kept = {number for number in self._deployed if number >= lowest or number in wanted}
        self._deployed = {number: self._deployed[number] for number in self._deployed if number in kept}

    @property
    def next_number(self) -> int:
        """The number of the next version."""
        return max(self._deployed, default=0) + 1

    @property
    def kept(self) -> list[Deployed]:
        """The versions that can be gone back to, the oldest first."""
        return [deployed for deployed, _ in self._deployed.values()]

    @property
    def trim_floor(self) -> int:
        """What stands below belongs to no version that is kept."""
        return min((deployed.first_seqnum for deployed in self.kept), default=0)

    def infos(self) -> list[VersionInfo]:
        """The versions that are kept, the newest first."""
        return [
            VersionInfo(
                number=deployed.number,
                bundle_hash=deployed.bundle_hash,
                deployed_us=time_us,
                size_bytes=deployed.size_bytes,
                functions=deployed.functions,
                broken=deployed.broken,
                is_active=self.active is not None and deployed.number == self.active.number,
            )
            for deployed, time_us in reversed(self._deployed.values())
        ]

    def find(self, wanted: str) -> Deployed:
        """The version that "7" or "previous" means. `InvalidArgument`, or `NotFound` if there is none (any more)."""
        if wanted == "previous":
            if self.previous is None or self.previous.number not in self._deployed:
                raise NotFound("no other version ran before this one", field="version")
            return self.previous
        if not wanted.isascii() or not wanted.isdecimal() or len(wanted) > 9:
            raise InvalidArgument(f"a version is a number or previous, not {wanted[:40]!r}", field="version")
        found = self._deployed.get(int(wanted))
        if found is None:
            known = ", ".join(map(str, self._deployed)) or "none"
            raise NotFound(f"version {wanted} is not among those that are kept: {known}", field="version")
        return found[0]
