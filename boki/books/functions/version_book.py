"""The system book `boki:functions` behind the LogBook API: upload, activate, go back, fetch, follow, trim."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from boki.api.append_gatherer import AppendGatherer
from boki.api.deadline import Caller, Deadline
from boki.api.logbook import LogSession
from boki.api.port import LogPort
from boki.books.functions.bundle import MAX_BUNDLE_BYTES, bundle_hash
from boki.books.functions.versions import (
    BOOK,
    CODEC,
    VERSIONS_TAG,
    Deployed,
    Piece,
    Used,
    Versions,
)
from boki.errors import BokiError, ConditionFailed, CorruptData, Trimmed
from boki.libs.fold.follower import Follower, FromTheBeginning
from boki.libs.fold.retrying import until_answered, until_decided
from boki.log.limits import DEFAULT_LIMITS, KIB, Limits
from boki.log.metalog import Positions
from boki.log.record import Expect
from boki.retry import Backoff

_PIECE_BYTES: Final = 256 * KIB
_PAGE_PIECES: Final = 4
_ENVELOPE_BYTES: Final = 64
_WHAT: Final = f"a request to book {BOOK}"
BACKOFF: Final = Backoff(first_s=0.1, longest_s=0.5, jitter=0.0, tries=20)


class VersionBook:
    """The book of deployed versions. `positions`: what its user has seen of the logs."""

    def __init__(self, port: LogPort, limits: Limits = DEFAULT_LIMITS, positions: Positions | None = None) -> None:
        deadline = Deadline(clock=lambda: asyncio.get_running_loop().time())
        caller = Caller(positions or {}, deadline, limits, is_runtime=True)
        self._limits = limits
        self._access = LogSession(port, AppendGatherer(port, limits), caller)
        self._book = self._access.logbook(BOOK)
        self._versions = FromTheBeginning(Versions, lambda record: CODEC.decode(record.data))
        self._follower = Follower(self._versions, VERSIONS_TAG)

    @property
    def positions(self) -> Positions:
        """What has been seen of the logs so far."""
        return self._access.caller.positions

    async def versions(self) -> Versions:
        """The versions that are kept, as of now. Later calls change them."""
        await until_answered(self._catch_up, _WHAT, BACKOFF)
        return self._versions.fold

    async def _catch_up(self) -> None:
        await self._book.sync()
        await self._follower.catch_up(self._book)

    async def upload(self, bundle: bytes) -> Deployed:
        """Put the bundle into the log, not to run yet: a version that still lacks its number and what is in it."""
        upload = f"bundle:{os.urandom(16).hex()}"
        size = min(_PIECE_BYTES, self._limits.record_bytes - _ENVELOPE_BYTES)
        first_seqnum = 0
        for at in range(0, len(bundle), size):
            # The key makes a repetition harmless, so that a lost answer or a lost engine costs no more than time.
            data = CODEC.encode(Piece(bundle[at : at + size]))
            append = partial(self._book.append, data, [upload], key=f"{upload}/{at}")
            seqnum = await until_answered(append, _WHAT, BACKOFF)
            first_seqnum = first_seqnum or seqnum
        return Deployed(0, bundle_hash(bundle), len(bundle), upload, first_seqnum)

    async def fetch(self, version: Deployed) -> bytes:
        """The bundle of a version. `CorruptData` if the pieces do not make its hash, `Trimmed` if they are gone."""
        return await until_answered(partial(self._fetch, version), _WHAT, BACKOFF)

    async def _fetch(self, version: Deployed) -> bytes:
        pieces: list[bytes] = []
        size = 0
        start = 0
        while size <= MAX_BUNDLE_BYTES:
            page = await self._book.read(version.upload, start=start, limit=_PAGE_PIECES)
            if not page.records:
                break
            for record in page.records:
                entry = CODEC.decode(record.data)
                if isinstance(entry, Piece):
                    pieces.append(entry.content)
                    size += len(entry.content)
            start = page.next_start
        bundle = b"".join(pieces)
        if not bundle:
            raise Trimmed(f"the bundle of version {version.number} is no longer in book {BOOK}: deploy it again")
        if bundle_hash(bundle) != version.bundle_hash:
            raise CorruptData(f"the pieces of bundle {version.bundle_hash[:12]} in book {BOOK} do not make it")
        return bundle

    async def activate(self, uploaded: Deployed) -> Deployed:
        """Give what was uploaded the next number, and let it run: every engine does so from then on."""
        while True:
            versions = await self.versions()
            done = next((version for version in versions.kept if version.upload == uploaded.upload), None)
            if done is not None:
                with suppress(BokiError):  # the next deployment trims as well
                    await self._book.trim(versions.trim_floor)
                return done
            await self._decide(msgspec.structs.replace(uploaded, number=versions.next_number), versions)

    async def use(self, wanted: str) -> int:
        """Go back to a version, "previous" or a number; its number. `NotFound` or `InvalidArgument`"""
        versions = await self.versions()
        number = versions.find(wanted).number
        while True:  # also for what is active: an engine that started without it runs it from here on
            await self._decide(Used(versions.find(str(number)).number), versions)
            versions = await self.versions()
            if versions.active is not None and versions.active.number == number:
                return number

    async def _decide(self, entry: Deployed | Used, versions: Versions) -> None:
        """Append the entry, unless another was appended meanwhile: the caller looks which it was."""
        when = Expect(VERSIONS_TAG, versions.last_seqnum)
        append = partial(self._book.append, CODEC.encode(entry), [VERSIONS_TAG], when=when)
        with suppress(ConditionFailed):
            await until_decided(append, _WHAT, BACKOFF)

    async def follow(self, on_change: Callable[[Versions], None]) -> None:
        """Forever: tell what is deployed now, and whenever that changes."""
        self._versions.on_page = on_change
        if self._versions.fold.last_seqnum:
            on_change(self._versions.fold)
        await self._follower.follow(self._book, BACKOFF)
