"""A module's description by a process that is forked for it, imports it, says what it registers, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from boki.api.function import check_described
from boki.dispatch.server.worker_link import WorkerLink
from boki.errors import BokiError
from boki.faces.installed import check_uses
from boki.protocol.calls import ModuleInfo
from boki.worker.frames import ConsoleLine, Described, Frame, Said
from boki.worker.loading import shown


class Description:
    """The owner of one describing process. `done` gets its result, which may be an error, but always comes."""

    def __init__(
        self, module: str, path: str, say: Callable[[tuple[ConsoleLine, ...], int], None], kill: Callable[[], None]
    ) -> None:
        self.done: asyncio.Future[Described] = asyncio.get_running_loop().create_future()
        self._module = module
        self._path = path
        self._say = say
        self._kill = kill
        self._found: Described | None = None

    def failed(self, how: str) -> Described:
        """The description of a module that cannot be described."""
        place = shown(self._path)
        return Described(ModuleInfo(module=self._module, path=place, error=f"{place}: {how}"), {}, False)

    def from_worker(self, link: WorkerLink, frame: Frame) -> None:
        """See `LinkOwner.from_worker`."""
        if isinstance(frame, Described):
            self._found = self._checked(frame)
        elif isinstance(frame, Said):
            self._say(frame.lines, frame.dropped)
        else:
            self.misbehaved(link, f"sent {type(frame).__name__}")

    def _checked(self, frame: Described) -> Described:
        """The description, or an error if no decorator can have made it: code of a user's runs in that process."""
        try:
            for info in frame.module.functions:
                check_described(info)
                check_uses(info)
        except BokiError as error:
            return self.failed(error.message)
        return frame

    def misbehaved(self, link: WorkerLink, how: str) -> None:  # noqa: ARG002
        """See `LinkOwner.misbehaved`."""
        self._found = self.failed(f"the process that imported it {how}")
        self._kill()

    def gone(self, link: WorkerLink) -> None:
        """See `LinkOwner.gone`."""
        link.tally.close()
        if not self.done.done():
            self.done.set_result(self._found or self.failed(f"the process that imported it {link.ending}"))
