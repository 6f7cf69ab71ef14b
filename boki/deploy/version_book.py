"""The system book `boki:functions` behind the LogBook API: upload, activate, go back, fetch, follow, trim."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import msgspec

from boki.deploy.bundle import MAX_BUNDLE_BYTES, bundle_hash
from boki.deploy.versions import (
    BOOK,
    CODEC,
    VERSIONS_TAG,
    Deployed,
    Piece,
    Used,
    Versions,
)
from boki.errors import BokiError, ConditionFailed, CorruptData, Trimmed
from boki.log.limits import DEFAULT_LIMITS, KIB, Limits
from boki.log.metalog import Positions
from boki.log.operations import TrimBook
from boki.log.record import Expect
from boki.runtime.append_gatherer import AppendGatherer
from boki.runtime.deadline import Caller, Deadline
from boki.runtime.logbook import LogAccess
from boki.runtime.port import LogPort

_PIECE_BYTES: Final = 256 * KIB
_PAGE_PIECES: Final = 4
_ENVELOPE_BYTES: Final = 64
_TRIES: Final = 20
_BACKOFF_S: Final = 0.1

T = TypeVar("T")


class VersionBook:
    """The book of deployed versions. `positions`: what its user has seen of the logs."""

    def __init__(self, port: LogPort, limits: Limits = DEFAULT_LIMITS, positions: Positions | None = None) -> None:
        deadline = Deadline(clock=lambda: asyncio.get_running_loop().time())
        caller = Caller(positions or {}, deadline, limits, is_runtime=True)
        self._limits = limits
        self._access = LogAccess(port, AppendGatherer(port, limits), caller)
        self._book = self._access.logbook(BOOK)

    @property
    def positions(self) -> Positions:
        """What has been seen of the logs so far."""
        return self._access.caller.positions

    async def versions(self) -> Versions:
        """The versions that are kept, as of now."""
        return await _repeatedly(self._versions)

    async def _versions(self) -> Versions:
        await self._book.sync()
        versions = Versions()
        start = 0
        while True:
            page = await self._book.read(VERSIONS_TAG, start=start)
            if not page.records:
                return versions
            for record in page.records:
                versions.fold(CODEC.decode(record.data), record.seqnum, record.time)
            start = page.next_start

    async def upload(self, bundle: bytes) -> Deployed:
        """Put the bundle into the log, not to run yet: a version that still lacks its number and what is in it."""
        upload = f"bundle:{os.urandom(16).hex()}"
        size = min(_PIECE_BYTES, self._limits.record_bytes - _ENVELOPE_BYTES)
        first_seqnum = 0
        for at in range(0, len(bundle), size):
            # The key makes a repetition harmless, so that a lost answer or a lost engine costs no more than time.
            data = CODEC.encode(Piece(bundle[at : at + size]))
            seqnum = await _repeatedly(partial(self._book.append, data, [upload], key=f"{upload}/{at}"))
            first_seqnum = first_seqnum or seqnum
        return Deployed(0, bundle_hash(bundle), len(bundle), upload, first_seqnum)

    async def fetch(self, version: Deployed) -> bytes:
        """The bundle of a version. `CorruptData` if the pieces do not make its hash, `Trimmed` if they are gone."""
        return await _repeatedly(partial(self._fetch, version))

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
        return await _repeatedly(partial(self._activate, uploaded))

    async def _activate(self, uploaded: Deployed) -> Deployed:
        while True:
            versions = await self.versions()
            done = next((version for version in versions.kept if version.upload == uploaded.upload), None)
            if done is not None:
                await self._trim(versions)
                return done
            await self._decide(msgspec.structs.replace(uploaded, number=versions.next_number), versions)

    async def use(self, wanted: str) -> int:
        """Go back to a version, "previous" or a number; its number. `NotFound` or `InvalidArgument`"""
        return await _repeatedly(partial(self._use, (await self.versions()).find(wanted).number))

    async def _use(self, number: int) -> int:
        has_decided = False  # also for what is active: an engine that started without it runs it from here on
        while True:
            versions = await self.versions()
            if has_decided and versions.active is not None and versions.active.number == number:
                return number
            await self._decide(Used(versions.find(str(number)).number), versions)
            has_decided = True

    async def _decide(self, entry: Deployed | Used, versions: Versions) -> None:
        """Append the entry, unless somebody has decided something else meanwhile. Whoever calls this looks again."""
        when = Expect(VERSIONS_TAG, versions.last_seqnum)
        try:
            await self._book.append(CODEC.encode(entry), [VERSIONS_TAG], when=when)
        except ConditionFailed:
            return
        except BokiError as error:
            if error.outcome != "unknown":
                raise
            await asyncio.sleep(_BACKOFF_S)

    async def _trim(self, versions: Versions) -> None:
        with suppress(BokiError):  # the next deployment trims as well
            await self._access.ask(TrimBook(BOOK, versions.trim_floor))

    async def follow(self, on_change: Callable[[Versions], None]) -> None:
        """For ever: tell what is deployed now, and whenever that changes."""
        versions = Versions()
        while True:
            try:
                start = versions.last_seqnum + 1 if versions.last_seqnum else 0
                async for page in self._book.subscribe(VERSIONS_TAG, start=start, on_trimmed="skip").batches():
                    for record in page.records:
                        versions.fold(CODEC.decode(record.data), record.seqnum, record.time)
                    on_change(versions)
            except BokiError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(_BACKOFF_S)


async def _repeatedly(work: Callable[[], Awaitable[T]]) -> T:
    """Do what does no harm when it is repeated, until it succeeds or is refused for good."""
    for _ in range(_TRIES):
        try:
            return await work()
        except BokiError as error:
            if not error.retryable:
                raise
        await asyncio.sleep(_BACKOFF_S)
    return await work()
