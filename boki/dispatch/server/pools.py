"""`FunctionHost`: runs functions in worker processes. The shell of the dispatch core, which decides everything.

It carries out what dispatch asks, tells it what workers say and how they end, watches their memory, and keeps the
catalog of modules in step with the functions folder.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, assert_never

import msgspec

from boki.dispatch.call_watch import CallWatch, OnCall
from boki.dispatch.catalog import Catalog, Change, Install
from boki.dispatch.core import Dispatch
from boki.dispatch.fleet import NEVER
from boki.dispatch.orders import (
    AnswerCall,
    Budget,
    DispatchEffect,
    KillWorker,
    PoolStats,
    RetireWorker,
    SendCall,
    SendCancel,
    SendChild,
    StartWorker,
)
from boki.dispatch.server.describing import Description
from boki.dispatch.server.logged_requests import Ask, Later, LoggedRequests
from boki.dispatch.server.machine import affordable_workers, resident_bytes
from boki.dispatch.server.module_news import tell_changes, tell_of
from boki.dispatch.server.modules import Modules
from boki.dispatch.server.origins import Origin
from boki.dispatch.server.own_tries import OwnTries, OwnTry, admit_try
from boki.dispatch.server.processes import Processes
from boki.dispatch.server.streams import Streams
from boki.dispatch.server.worker_link import LogDoor, WorkerLink
from boki.errors import BokiError, Unavailable
from boki.host.clock import beat_delay_s, now_us
from boki.log.limits import Limits
from boki.protocol.calls import Call, FunctionInfo, ModuleInfo, Outcome, TakeChunk
from boki.protocol.effects import Trace
from boki.worker.confine import IS_LINUX
from boki.worker.frames import (
    Abandon,
    AskCall,
    Broken,
    Cancel,
    ChildEnded,
    ConsoleLine,
    Described,
    Ended,
    Fork,
    Frame,
    Hello,
    Invoke,
    InvokeLater,
    ProcessKind,
    Said,
    Start,
    Streamed,
)

__all__ = ["Ask", "ConsoleLine", "FunctionHost", "Later", "LogDoor"]

_log = logging.getLogger("boki.functions")

_WATCH_S: Final = 0.25
_POLL_S: Final = 0.5
_TIMEOUT_S: Final = 1.0
"""How long modules that have changed are waited for, so that they are taken over together."""
_START_TIMEOUT_S: Final = 5.0
_TIMER_S: Final = 0.005
"""Deadlines that are so close together are looked at together."""
_DESCRIBE_BYTES: Final = 1 << 30


class FunctionHost:
    """All functions of one engine. `folder` None: there are none."""

    def __init__(
        self,
        folder: Path | None,
        *,
        limits: Limits,
        log: LogDoor,
        later: Later,
        ask: Ask,
        console: Callable[[ConsoleLine], None],
        reload: bool,
        log_level: str = "info",
        budget: Budget | None = None,
        on_call: OnCall | None = None,
    ) -> None:
        self._folder = folder.resolve() if folder is not None else None
        self._limits = limits
        self._logged = LoggedRequests(later, ask)
        self._console = console
        self._reload = reload
        self._log_level = logging.getLevelNamesMapping()[log_level.upper()]
        self._budget = budget or Budget(engine_workers=affordable_workers())
        self._watch_calls = CallWatch(on_call, now_us) if on_call is not None else None
        self._dispatch = Dispatch(limits, self._budget)
        self._catalog = Catalog()
        self._functions: dict[str, FunctionInfo] = {}
        self.functions_number = 0
        """Grows whenever what can be called, or what is wrong with a module, has changed."""
        self._origins: dict[tuple[str, int], Origin] = {}
        self._memory_bytes: dict[int, int] = {}
        self._tickets = count(1)
        self._describing = count(-1, -1)
        self._done: dict[int, Callable[[Outcome], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.streams = Streams(self._send)
        self._own_tries = OwnTries()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = NEVER
        self._watcher: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None
        self._effects: deque[DispatchEffect] = deque()
        self._is_performing = False
        self._processes = Processes(limits, log)
        self._modules = self._modules_of(self._folder) if self._folder is not None else None
        self._starting = asyncio.Lock()
        self._has_started = False
        self._loop: asyncio.AbstractEventLoop

    @property
    def functions(self) -> dict[str, FunctionInfo]:
        """What can be called, by name."""
        return self._functions

    def replays(self, function: str) -> bool:
        """Whether its body is replayed from a journal; False also for functions that do not run here."""
        info = self._functions.get(function)
        return info is not None and info.is_replayed

    @property
    def modules(self) -> list[ModuleInfo]:
        """The modules of the folder as they are called now, with what is wrong with their latest version."""
        return self._catalog.modules

    @property
    def call_count(self) -> int:
        """Calls that wait for a worker or are in one, child calls included."""
        return self._dispatch.call_count

    def stats(self) -> list[PoolStats]:
        """Every pool of workers, for status and metrics."""
        return self._dispatch.stats()

    async def start(self) -> None:
        """Describe all modules, and begin to start the least number of workers."""
        self._loop = asyncio.get_running_loop()
        if self._modules is not None:
            await self._refresh(self._modules, _START_TIMEOUT_S if self._reload else None)
            if self._reload:
                self._spawn(self._poll(self._modules))

    async def _start_processes(self) -> None:
        """Start the zygote, unless there is one. An engine that has no module needs none, which would hold 30 MB."""
        async with self._starting:
            if self._has_started:
                return
            await self._processes.start()
            self._has_started = True
        self._watcher = self._loop.call_later(beat_delay_s(self._loop.time(), _WATCH_S), self._watch)
        if not IS_LINUX:
            _log.warning("this system does not tell how much memory a process has: only its hard limit bounds workers")

    async def check(self, folder: Path) -> list[ModuleInfo]:
        """The modules of another folder as they would be called, and what is wrong with those that cannot be."""
        catalog = Catalog()
        catalog.update((await self._modules_of(folder).refresh()).described)
        return catalog.modules

    async def switch(self, folder: Path, *, must_have_functions: bool = False) -> None:
        """Run the functions of another folder from now on, and nothing but these.

        The folder stays as it is for as long as calls run that began in it. Not for a host that reloads. `Unavailable`,
        and what ran before runs on, if it `must_have_functions` and none of its modules can be loaded here.
        """
        assert not self._reload, "a folder that is watched is not exchanged"
        modules = self._modules_of(folder)
        refreshed = await modules.refresh()
        tell_of(refreshed, folder)
        good = {info.module for info in refreshed.described if not info.error}
        if must_have_functions and not any(info.functions for info in refreshed.described):
            raise Unavailable("; ".join(info.error for info in refreshed.described if info.error))
        gone = [info.module for info in self._catalog.modules if info.module not in good]
        self._modules = modules
        self._install(self._catalog.update(refreshed.described, gone), modules)

    async def try_broken(self) -> str:
        """Load once more what could not be loaded: it may have taken too long, or its process may have been killed.

        Why that failed again, of all modules; empty if it did not. What runs is left alone.
        """
        modules = self._modules
        if modules is None:
            return ""
        modules.forget_broken()
        changes = self._catalog.update((await modules.refresh()).described)
        if changes:
            self._install(changes, modules)
        return "; ".join(module.error for module in self._catalog.modules if module.error)

    def _modules_of(self, folder: Path) -> Modules:
        return Modules(folder, partial(self._describe, folder))

    async def stop(self, drain_s: float) -> None:
        """Refuse new calls, wait `drain_s` at most for those that have begun, then kill all workers."""
        self._dispatch.drain()
        if not self._dispatch.is_empty and drain_s > 0:
            self._empty = asyncio.Event()
            try:
                await asyncio.wait_for(self._empty.wait(), drain_s)
            except TimeoutError:
                _log.warning("calls that still ran after %g s are lost", drain_s)
        if self._modules is not None:
            self._modules.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._perform(self._dispatch.stop())
        await self._processes.stop()
        for timer in (self._timer, self._watcher):
            if timer is not None:
                timer.cancel()

    # calls

    def start_call(
        self, call: Call, done: Callable[[Outcome], None], *, until_gone: bool = False, take: TakeChunk | None = None
    ) -> int:
        """Run the call; `done` is called once with how it ended, maybe at once. A number for `cancel_call`.

        A call that is past its deadline ends at once for its caller, or `until_gone` when nothing of it is left. `take`
        is given what it streams.
        """
        if call.is_tried and (begun := self._own_tries.take(call, self.functions_number)) is not None:
            begun.tell(done)
            return begun.ticket
        ticket = next(self._tickets)
        self.streams.open(ticket, take)
        self._done[ticket] = self._watch_calls.watched(ticket, call, done) if self._watch_calls is not None else done
        self._perform(self._dispatch.submit(ticket, call, now_us(), until_gone=until_gone))
        return ticket

    def _log_later(self, link: WorkerLink, frame: InvokeLater) -> None:
        info = self._functions.get(frame.call.function)
        call = frame.call if info is None else info.to_be_logged(frame.call)
        begun = self._follow_try(link.number, frame.tried, call) if frame.tried else None
        write = self._spawn(self._logged.accept(link, frame, call, begun), link)
        if begun is not None:
            write.add_done_callback(lambda _: self._own_tries.drop(begun, self.cancel_call))

    def _follow_try(self, worker: int, ticket: int, call: Call) -> OwnTry:
        """The worker tries a call by itself that it asks to be logged. That is cancelled if it is not wanted here."""
        begun = OwnTry(ticket, msgspec.structs.replace(call, is_tried=True), self.functions_number)
        watch = self._watch_calls
        self._done[ticket] = begun.end if watch is None else watch.watched(ticket, begun.call, begun.end)
        self._perform(self._dispatch.submit(ticket, begun.call, now_us(), until_gone=True, begun_by=worker))
        if begun.is_over:  # dispatch has refused it, and watches over it no longer
            self._send(worker, Cancel(ticket))
        else:
            self._own_tries.keep(begun)
        return begun

    def cancel_call(self, ticket: int, gone: Callable[[Outcome], None] | None = None) -> None:
        """Cancel the call's function; its `done` is not called. `gone` is, once a call `until_gone` is over."""
        self.streams.close(ticket)
        if self._done.pop(ticket, None) is not None:
            if self._watch_calls is not None:
                self._watch_calls.cancelled(ticket)
            if gone is not None:
                self._done[ticket] = gone
            self._perform(self._dispatch.cancel(ticket, now_us()))

    async def writes_decided(self) -> None:
        """Return once all writes that workers have asked for until now are decided."""
        await asyncio.gather(*(link.writes_decided() for link in self._processes.links.values()))

    # what dispatch asks

    def _perform(self, effects: list[DispatchEffect]) -> None:
        """Carry out effects in the order in which they were decided, also those that carrying out others leads to:
        a worker must be sent its calls in the order that dispatch has counted them in.
        """
        self._effects.extend(effects)
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while self._effects:
                self._carry_out(self._effects.popleft())
        finally:
            self._is_performing = False
        if self._dispatch.due_us < self._timer_us:
            self._arm()
        if self._empty is not None and self._dispatch.is_empty:
            self._empty.set()

    def _carry_out(self, effect: DispatchEffect) -> None:
        match effect:
            case SendCall(worker, ticket, call):
                self._send(worker, Start(ticket, call))
            case AnswerCall(ticket, outcome):
                self.streams.close(ticket)
                done = self._done.pop(ticket, None)
                if done is not None:
                    done(outcome)
            case SendChild(worker, request, outcome):
                if self._watch_calls is not None:
                    self._watch_calls.child_ended(worker, request, outcome)
                self._send(worker, ChildEnded(request, outcome))
            case SendCancel(worker, ticket):
                self._send(worker, Cancel(ticket))
            case StartWorker(worker, pool, memory_bytes):
                self._memory_bytes[worker] = memory_bytes
                kind: ProcessKind = "async" if pool.is_async else "blocking"
                origin = self._origins[pool.module, pool.version]
                self._processes.spawn(self._plan(worker, kind, pool.module, memory_bytes, origin), self)
            case RetireWorker(worker):
                if (link := self._processes.links.get(worker)) is not None:
                    link.close()
            case KillWorker(worker):
                self._processes.kill(worker)
            case Trace(level, text):
                _log.log(level, "%s", text)
            case _:
                assert_never(effect)

    def _send(self, worker: int, frame: Frame) -> None:
        link = self._processes.links.get(worker)
        if link is not None:  # else it is gone, and dispatch has seen to its calls
            link.send(frame)

    def _plan(self, child: int, kind: ProcessKind, module: str, memory_bytes: int, origin: Origin) -> Fork:
        return origin.plan(child, kind, module, memory_bytes, self._limits, self._log_level)

    # time

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_us = self._dispatch.due_us
        delay_s = max((self._timer_us - now_us()) / 1_000_000, _TIMER_S)
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_us = None, NEVER
        self._tell_progress()
        self._perform(self._dispatch.tick(now_us()))
        if self._timer is None and self._dispatch.due_us < NEVER:
            self._arm()

    def _watch(self) -> None:
        """Look at what workers do not say: how far they are, and how large."""
        self._watcher = self._loop.call_later(beat_delay_s(self._loop.time(), _WATCH_S), self._watch)
        self._tell_progress()
        if IS_LINUX:
            for worker, limit_bytes in list(self._memory_bytes.items()):
                link = self._processes.links.get(worker)
                used_bytes = resident_bytes(link.pid) if link is not None and link.pid else 0
                if used_bytes > limit_bytes:
                    how = f"used {used_bytes:,} bytes of memory, more than its memory_bytes of {limit_bytes:,}"
                    self._perform(self._dispatch.worker_broken(worker, "memory", f"was killed because it {how}"))

    def _tell_progress(self) -> None:
        for worker in list(self._memory_bytes):
            link = self._processes.links.get(worker)
            if link is not None:
                self._perform(self._dispatch.worker_progress(worker, link.tally.begun, now_us()))

    # what workers say

    def from_worker(self, link: WorkerLink, frame: Frame) -> None:
        """See `LinkOwner.from_worker`."""
        worker, dispatch = link.number, self._dispatch
        match frame:
            case Ended(ticket, outcome):
                self._perform(dispatch.call_ended(worker, ticket, outcome, now_us()))
            case Invoke(request, parent, call):
                ticket = next(self._tickets)
                if self._watch_calls is not None:
                    self._watch_calls.child_began(worker, request, call)
                self._perform(dispatch.child_called(worker, parent, request, ticket, call, now_us()))
            case Streamed():
                self.streams.deliver(worker, frame)
            case InvokeLater(tried=tried) if tried and not admit_try(link, frame):
                self.misbehaved(link, f"tried a call under the ticket {tried}")
            case InvokeLater():
                self._log_later(link, frame)
            case AskCall():
                self._spawn(self._logged.tell(frame, partial(self._send, worker)), link if frame.change else None)
            case Abandon(request, parent):
                if self._watch_calls is not None:
                    self._watch_calls.child_abandoned(worker, request)
                self._perform(dispatch.child_abandoned(worker, parent, request, now_us()))
            case Said(lines, dropped):
                self._say(lines, dropped)
            case Hello():
                self._perform(dispatch.worker_ready(worker, now_us()))
            case Broken(error):
                self._perform(dispatch.worker_broken(worker, "start", f"could not import it: {error}"))
            case _:
                self.misbehaved(link, f"sent {type(frame).__name__}")

    def misbehaved(self, link: WorkerLink, how: str) -> None:
        """See `LinkOwner.misbehaved`."""
        self._perform(self._dispatch.worker_broken(link.number, "protocol", f"was killed because it {how}"))

    def gone(self, link: WorkerLink) -> None:
        """See `LinkOwner.gone`."""
        begun = link.tally.begun
        link.tally.close()
        del self._memory_bytes[link.number]
        if self._watch_calls is not None:
            self._watch_calls.worker_gone(link.number)
        exited = self._dispatch.worker_exited(link.number, link.ending, begun, now_us(), is_innocent=link.is_innocent)
        self._perform(exited)

    def _say(self, lines: tuple[ConsoleLine, ...], dropped: int) -> None:
        for line in lines:
            self._console(line)
        if dropped:
            _log.warning("%d console lines of functions were left out: they came faster than they are shown", dropped)

    def _spawn(self, work: Coroutine[None, None, None], writer: WorkerLink | None = None) -> asyncio.Task[None]:
        """`writer`: the worker that has asked for this write."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if writer is not None:
            write = writer.hold(is_write=True)
            task.add_done_callback(lambda _: writer.release(write))
        return task

    # modules

    async def _describe(self, folder: Path, module: str, path: str) -> Described:
        await self._start_processes()
        child = next(self._describing)
        description = Description(module, path, self._say, lambda: self._processes.kill(child))
        origin = Origin(folder, {} if self._reload else None)
        self._processes.spawn(self._plan(child, "describe", module, _DESCRIBE_BYTES, origin), description)
        timeout_s = self._budget.start_us / 1_000_000
        try:
            return await asyncio.wait_for(description.done, timeout_s)
        except TimeoutError:
            return description.failed(f"importing it took longer than {timeout_s:g} s")
        finally:
            if not description.done.done() or description.done.cancelled():
                self._processes.kill(child)

    async def _refresh(self, modules: Modules, timeout_s: float | None) -> set[str]:
        """Take over what has changed in the folder; the names of modules that have been described again."""
        refreshed = await modules.refresh(timeout_s)
        tell_of(refreshed, modules.folder)
        if refreshed.described or refreshed.gone:
            self._install(self._catalog.update(refreshed.described, refreshed.gone), modules)
        return {module.module for module in refreshed.described}

    def _install(self, changes: Sequence[Change], modules: Modules) -> None:
        self.functions_number += 1
        for change in changes:
            self._origins = {key: origin for key, origin in self._origins.items() if key[0] != change.module}
            if isinstance(change, Install):
                pinned = modules.sources(change.module)
                self._origins[change.module, change.version] = Origin(modules.folder, pinned)
        self._perform(self._dispatch.update(changes, now_us()))
        self._functions = self._catalog.functions

    async def _poll(self, modules: Modules) -> None:
        """Refresh forever, and tell what has come of it."""
        trouble = ""
        while True:
            await asyncio.sleep(_POLL_S)
            before = self.modules
            try:
                described = await self._refresh(modules, _TIMEOUT_S)
            except BokiError as error:
                if error.message != trouble:
                    _log.error("%s", error)
                trouble = error.message
                continue
            trouble = ""
            tell_changes(before, self.modules, described)
