"""Deploying through a gateway: it puts the bundle into the log, an engine looks at it, and all engines follow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from boki.api.port import LogPort
from boki.books.functions.bundle import bundle_hash, read_bundle
from boki.books.functions.version_book import VersionBook
from boki.errors import NotFound
from boki.gateway.server.cluster_ledger import Ask
from boki.log.limits import Limits
from boki.protocol.call_messages import ActivateBundle, BundleActivated
from boki.protocol.deployments import Deployment, VersionInfo
from boki.protocol.messages import Message

_ACTIVATE_S: Final = 120.0
"""Its modules are imported before that, a few at a time, and each may take its time."""
_SWITCH_S: Final = 15.0
_LOOK_S: Final = 1.0
"""How often it is checked whether another version has been deployed while engines are waited for."""


class ClusterDeployments:
    """`boki.gateway.backend.Deployments`. `until_running` waits until the engines run a version, and tells which do."""

    def __init__(
        self,
        port: LogPort,
        ask: Ask,
        until_running: Callable[[int, float], Awaitable[dict[str, bool]]],
        limits: Limits,
    ) -> None:
        self._port = port
        self._ask = ask
        self._until_running = until_running
        self._limits = limits

    async def versions(self) -> list[VersionInfo]:
        """See `Deployments`."""
        return (await self._book().versions()).infos()

    async def deploy(self, bundle: bytes, *, is_forced: bool) -> Deployment:
        """See `Deployments`."""
        read_bundle(bundle)  # it may be anything
        digest = bundle_hash(bundle)
        book = self._book()
        active = (await book.versions()).active
        if active is not None and active.bundle_hash == digest:
            return await self._deployment(active.number, is_new=False)
        uploaded = await book.upload(bundle)

        def make(number: int, left_us: int) -> Message:
            return ActivateBundle(
                number,
                book.positions,
                left_us,
                uploaded.bundle_hash,
                uploaded.size_bytes,
                uploaded.upload,
                uploaded.first_seqnum,
                is_forced,
            )

        answer = await self._ask(make, _ACTIVATE_S, is_repeatable=True, changes=True)
        assert isinstance(answer, BundleActivated)
        return await self._deployment(answer.number, is_new=True)

    async def use(self, wanted: str) -> Deployment:
        """See `Deployments`."""
        return await self._deployment(await self._book().use(wanted), is_new=False)

    async def _deployment(self, number: int, *, is_new: bool) -> Deployment:
        left_s = _SWITCH_S
        while True:
            versions = await self._book().versions()
            active = versions.active
            superseded_by = active.number if active is not None and active.number != number else 0
            running = await self._until_running(number, 0.0 if superseded_by else min(left_s, _LOOK_S))
            left_s -= _LOOK_S
            if superseded_by or all(running.values()) or left_s <= 0:
                break
        info = next((info for info in versions.infos() if info.number == number), None)
        if info is None:
            raise NotFound(f"version {number} has been replaced by so many others that it is not kept", field="version")
        return Deployment(version=info, is_new=is_new, engines=running, superseded_by=superseded_by)

    def _book(self) -> VersionBook:
        return VersionBook(self._port, self._limits)
