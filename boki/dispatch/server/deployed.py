"""The engine's side of `boki deploy`: follow the book of versions, fetch what runs, and switch to it.

Bundles are unpacked below the engine's data directory, under the hash of their bytes. That folder is a cache which each
start makes again from the log: what a power cut has left of it is never trusted. Versions that can be gone back to stay
unpacked, so that calls which began in one find its files for as long as they run. A logged call that is pinned to
another version runs with that one (`boki.dispatch.server.earlier`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from boki.api.port import LogPort
from boki.books.functions.bundle import File, read_bundle
from boki.books.functions.version_book import VersionBook
from boki.books.functions.versions import Deployed, Versions
from boki.dispatch.server.earlier import EarlierVersions
from boki.dispatch.server.pools import FunctionHost
from boki.dispatch.server.until_gone import run_until_gone
from boki.errors import BokiError, CorruptData, InvalidArgument, NoSuchFunction, NotFound, Trimmed, Unavailable
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.protocol.call_messages import ActivateBundle, BundleActivated
from boki.protocol.calls import ANY_VERSION, THIS_VERSION, Call, ModuleInfo, Outcome, version_of
from boki.retry import Backoff

_log = logging.getLogger("boki.functions")

_AGAIN: Final = Backoff(first_s=1.0, longest_s=60.0, jitter=0.0)
_HASH: Final = re.compile(r"[0-9a-f]{64}")


class DeployedFunctions:
    """Keeps a `FunctionHost` at the version that is deployed; as long as there is none, the host is left alone."""

    def __init__(
        self,
        port: LogPort,
        functions: FunctionHost,
        folder: Path,
        limits: Limits = DEFAULT_LIMITS,
        *,
        runs_at_start: bool = True,
        make_host: Callable[[], FunctionHost] | None = None,
    ) -> None:
        """`runs_at_start` False: what is deployed now is not run, only what is deployed or chosen from now on.

        `make_host` makes one more host, without functions, for calls that are pinned to an earlier version.
        """
        self.number = 0
        """The version that runs here; 0: none has been deployed, or none runs."""
        self._runs_at_start = runs_at_start
        self._passed_over = 0
        """Up to this record of the book nothing is run."""
        self._port = port
        self._functions = functions
        self._folder = folder.absolute()
        self._limits = limits
        self._versions = Versions()
        self._changed = asyncio.Event()
        self._unpacking = asyncio.Lock()
        self._told = ""
        """Why a part of the version could not be loaded, as the log says it."""
        self._checked: Counter[str] = Counter()
        """Bundles that are looked at now, and must not be removed."""
        self._tasks: list[asyncio.Task[None]] = []
        self._earlier = EarlierVersions(make_host, self._folder_of) if make_host is not None else None
        self.in_use: Callable[[], frozenset[int]] | None = None
        """The versions that calls are pinned to; None: not known here, so all that are kept count."""

    async def start(self) -> None:
        """Run what is deployed, and follow the book from then on. `BokiError` if the book cannot be read."""
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        book = VersionBook(self._port, self._limits)
        self._versions = await book.versions()
        active, previous = self._versions.active, self._versions.previous
        if not self._runs_at_start:
            self._passed_over = self._versions.last_seqnum
            _log.warning(
                "no functions run here, because functions_version is none (deployed: %s): choose a version with "
                "boki functions use, or deploy one",
                f"version {active.number}" if active is not None else "nothing",
            )
        elif active is not None and not await self._try_to_run(active) and previous is not None:
            _log.warning("version %d of the functions runs until version %d can", previous.number, active.number)
            await self._try_to_run(previous)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(book.follow(self._on_change)), loop.create_task(self._keep_up())]

    async def stop(self, drain_s: float = 0.0) -> None:
        """Follow no more, and end earlier versions; the one that runs continues."""
        if self._earlier is not None:
            await self._earlier.stop(drain_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def run(self, call: Call) -> Outcome:
        """Run a logged call. A function that is unknown here may be one of the version that is still to run: then the
        call is refused for now (`Unavailable`). It was accepted, so it must not fail permanently.

        A call of another version (`version_for`) runs with that one. If that is not kept, or is damaged, what runs here
        takes the call: a workflow then compares its history with the code, and stops where they differ. A call of
        `THIS_VERSION` fails. Where nothing runs because that was asked for, no other version does.
        """
        other = self.version_for(call)
        if other and self.is_held_back:
            raise _not_yet(call)
        if other and self._earlier is not None:
            functions = next((kept.functions for kept in self._versions.kept if kept.number == other), ())
            try:
                return await self._earlier.call(other, call, has_function=call.function in functions)
            except (NotFound, Trimmed, CorruptData) as error:
                if call.chosen is not None and THIS_VERSION in call.chosen.attributes:
                    raise
                _log.warning("call %s runs with a version that cannot be had: %s", call.id, error)
            except OSError as error:
                raise Unavailable(f"version {other} of the functions cannot be run here now: {error}") from None
        if call.function not in self._functions.functions and self._is_due(call.function):
            raise _not_yet(call)
        before = self._functions.functions_number
        outcome = await run_until_gone(self._functions, call)
        is_unknown = outcome.failure is not None and outcome.failure.code == NoSuchFunction.code
        if is_unknown and before != self._functions.functions_number and self._is_due(call.function):
            raise _not_yet(call)  # it was queued when the version that had it was replaced
        return outcome

    def version_for(self, call: Call) -> int:
        """The version that the call runs with, if that is another one than runs here, else 0: the one that it is pinned
        to; or the newest one that has its function, for an attendant whose function has left: see `ANY_VERSION`.
        """
        attributes = {} if call.chosen is None else call.chosen.attributes
        pinned = version_of(attributes)
        if pinned or ANY_VERSION not in attributes:
            return 0 if pinned == self.number else pinned
        if call.function in self._functions.functions or self._is_due(call.function):
            return 0
        return max((kept.number for kept in self._versions.kept if call.function in kept.functions), default=0)

    def version_to_pin(self, function: str) -> int:
        """The version that a new call of the function is pinned to: the one that runs here. If that lacks the function,
        the call was made where the active version runs already, and is pinned to that.
        """
        active = self._versions.active
        if self.is_held_back or active is None or function in self._functions.functions:
            return self.number
        return active.number if function in active.functions else self.number

    @property
    def is_held_back(self) -> bool:
        """Whether nothing runs here because that was asked for, until a version is deployed or chosen."""
        return not self.number and not self._runs_at_start

    def _is_due(self, function: str) -> bool:
        """Whether a version is still to run here that may have the function: the active one, or one that is not chosen
        yet; or the one that runs has it, and could not load it.
        """
        active = self._versions.active
        if self.is_held_back or active is None:
            return self.is_held_back
        return active.number != self.number or function in active.functions

    def _lacks(self, version: Deployed) -> bool:
        """Whether functions that the version had where it was deployed are not there."""
        return not self._functions.functions.keys() >= set(version.functions)

    async def activate(self, asked: ActivateBundle) -> BundleActivated:
        """See whether the modules of an uploaded bundle can be loaded, and make it the version that runs.

        `InvalidArgument` with the errors of those that cannot, or if there is no function, unless that `is_forced`.
        """
        book = VersionBook(self._port, self._limits, dict(asked.positions))
        uploaded = Deployed(0, asked.bundle_hash, asked.size_bytes, asked.upload, asked.first_seqnum)
        self._checked[asked.bundle_hash] += 1
        try:
            folder = await self._unpack(book, uploaded)
            modules = [_relative(module, folder) for module in await self._functions.check(folder)]
        finally:
            self._checked[asked.bundle_hash] -= 1
        broken = tuple(module.module for module in modules if module.error)
        if broken and not asked.is_forced:
            raise _refusal(modules)
        if not asked.is_forced and not any(module.functions for module in modules):
            raise InvalidArgument(
                "no module of the folder registers a function, so there would be none left to call: is it the right "
                "folder? --force deploys it all the same",
                field="functions",
            )
        functions = tuple(sorted(info.name for module in modules for info in module.functions))
        kept = (each.number for each in self._versions.kept)
        in_use = tuple(sorted(kept if self.in_use is None else self.in_use()))
        version = await book.activate(
            Deployed(
                0, asked.bundle_hash, asked.size_bytes, asked.upload, asked.first_seqnum, functions, broken, in_use
            )
        )
        return BundleActivated(asked.request, book.positions, version.number, tuple(modules))

    def _on_change(self, versions: Versions) -> None:
        self._versions = versions
        self._changed.set()

    async def _keep_up(self) -> None:
        failures = 0
        while True:
            self._changed.clear()
            failures = 0 if await self._catch_up() else failures + 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _AGAIN.pause_s(failures) if failures else None)

    async def _catch_up(self) -> bool:
        """Run what is deployed, or what of it could not be loaded before. Whether nothing is left to be tried again."""
        active = self._versions.active
        if active is None or self._versions.last_seqnum <= self._passed_over:
            return True
        if active.number != self.number:
            if not await self._try_to_run(active):
                return False
        elif self._lacks(active):
            await self._try_broken(active)
        return not self._lacks(active)

    async def _try_broken(self, version: Deployed) -> None:
        try:
            error = await self._functions.try_broken()
        except (BokiError, OSError) as failure:
            error = str(failure)
        if self._lacks(version) and error != self._told:
            _log.error("version %d of the functions runs in part, will retry the rest: %s", version.number, error)
        elif not self._lacks(version):
            _log.info("version %d of the functions runs with all of them", version.number)
        self._told = error

    async def _try_to_run(self, version: Deployed) -> bool:
        """Fetch and run the version; False, and what ran before runs on, if that does not succeed."""
        try:
            folder = await self._unpack(VersionBook(self._port, self._limits), version)
            await self._functions.switch(folder, must_have_functions=bool(version.functions))
        except (BokiError, OSError) as error:
            _log.error("cannot activate version %d of the functions, will retry: %s", version.number, error)
            return False
        self.number = version.number
        names = ", ".join(sorted(self._functions.functions)) or "no functions"
        _log.info("version %d of the functions runs: %s", version.number, names)
        async with self._unpacking:  # not while files are being written there
            kept = {kept.bundle_hash for kept in self._versions.kept} | set(+self._checked)
            await asyncio.to_thread(self._remove_others, kept)
        return True

    async def _folder_of(self, number: int) -> Path:
        """The files of a version that is kept. `NotFound`"""
        book = VersionBook(self._port, self._limits)
        return await self._unpack(book, (await book.versions()).find(str(number)))

    async def _unpack(self, book: VersionBook, version: Deployed) -> Path:
        """The folder of the bundle, with all its files or not there at all."""
        if not _HASH.fullmatch(version.bundle_hash):
            raise CorruptData(f"{version.bundle_hash[:80]!r} is no hash of a bundle")
        folder = self._folder / version.bundle_hash
        async with self._unpacking:
            if not folder.is_dir():
                files = read_bundle(await book.fetch(version))
                await asyncio.to_thread(partial(_write, files, folder))
        return folder

    def _remove_others(self, kept: set[str]) -> None:
        for folder in self._folder.iterdir():
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)


def _not_yet(call: Call) -> Unavailable:
    return Unavailable(f"{call.function!r} is not among the functions that run here yet")


def _write(files: tuple[File, ...], folder: Path) -> None:
    """Unpack beside the folder, then give it its name. `read_bundle` has seen to it that no path leads elsewhere."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for file in files:
        path = unfinished / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
    unfinished.rename(folder)


def _relative(module: ModuleInfo, folder: Path) -> ModuleInfo:
    """The module with places as they are in the folder that was deployed."""
    error = re.sub(rf"\S*{folder.name}/", "", module.error)
    return ModuleInfo(module=module.module, path=f"{module.module}.py", functions=module.functions, error=error)


def _refusal(modules: list[ModuleInfo]) -> InvalidArgument:
    errors = {module.module: module.error for module in modules if module.error}
    told = "\n".join(f"  {error}" for error in errors.values())
    return InvalidArgument(
        f"nothing was deployed, because {len(errors)} of {len(modules)} modules cannot be loaded:\n{told}",
        field="bundle",
        modules=errors,
    )
