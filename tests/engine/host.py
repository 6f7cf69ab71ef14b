"""A `FunctionHost` over a folder of test modules and a log that answers at once, with its effects to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from struct import pack
from textwrap import dedent
from typing import Any, Self

import msgspec
import uvloop

from boki.dispatch.orders import Budget, DispatchEffect
from boki.dispatch.server.modules import Modules
from boki.dispatch.server.pools import ConsoleLine, FunctionHost
from boki.dispatch.server.worker_link import Finish, WorkerLink
from boki.errors import BokiError, InvalidArgument, NoSuchInvocation
from boki.log.chunk import Group, encode_chunk
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.metalog import Positions
from boki.log.operations import Append, Appended, Failure, Found, Operation, Slab
from boki.protocol.calls import Begun, Call, CallChange, InvocationState, Outcome, Payload

TIMEOUT_S = 30.0
"""How long a test waits for what must come. Never reached, so it may be generous on a busy machine."""

RECORD = Found((Slab(pack("<q", 1 << 43), 7, encode_chunk("b", [Group([(b"data", ("t",))])])),), 2)
HEAD = """
import asyncio
import os
import threading

import boki
import boki.blocking
from boki import Context, function


def wait_at(gate):
    # Say that we are here, and block this thread until the test opens the gate.
    with open(gate + ".in", "wb", buffering=0) as arrivals:
        arrivals.write(b"%d\\n" % os.getpid())
    with open(gate + ".out", "rb") as opening:
        opening.read()


"""


class Host(FunctionHost):
    """Lets a test wait for what the host does, and answers log operations itself."""

    def __init__(self, folder: Path | None, **options: Any) -> None:
        self.operations: list[Operation] = []
        self.later_calls: list[tuple[Call, float, str | None]] = []
        self.asked_calls: list[tuple[str, float, CallChange]] = []
        self.known_calls: dict[str, InvocationState] = {}
        self.lines: list[ConsoleLine] = []
        self.effects: list[DispatchEffect] = []
        self.ended: list[WorkerLink] = []
        self.unanswered: list[tuple[Operation, Finish]] = []
        self.holds_appends = False
        self.holds_reads = False
        self.may_log_calls = asyncio.Event()
        self.may_log_calls.set()
        self.abandoned: list[Finish] = []
        self.retries = 0
        self.fails: BokiError | None = None
        self._checks: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._ids = count(1)
        options = {"limits": DEFAULT_LIMITS, "reload": False, **options}
        super().__init__(folder, log=self, later=self._log_call, ask=self._tell_call, console=self._hear, **options)

    def submit(self, operation: Operation, positions: Positions, timeout_us: int, finish: Finish) -> None:
        self.operations.append(operation)
        seen = {0: max(positions.get(0, 0), len(self.operations))}
        if isinstance(operation, Append):
            if self.holds_appends:
                self.unanswered.append((operation, finish))
                self._look()
            else:
                finish(Appended(len(self.operations)), seen)
        elif not self.holds_reads:
            finish(RECORD, seen)

    def abandon(self, finish: Finish) -> None:
        """See `LogDoor`."""
        self.abandoned.append(finish)
        self._look()

    async def _log_call(self, call: Call, delay_s: float, key: str | None) -> Begun:
        if key == "bad":
            raise InvalidArgument("that key is bad", field="key")
        self.later_calls.append((call, delay_s, key))
        self._look()
        await self.may_log_calls.wait()
        return Begun(call.id)

    async def _tell_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        self.asked_calls.append((invocation_id, wait_s, change))
        self._look()
        await self.may_log_calls.wait()
        if invocation_id not in self.known_calls:
            raise NoSuchInvocation(f"no logged call has the id {invocation_id}")
        return self.known_calls[invocation_id]

    def _hear(self, line: ConsoleLine) -> None:
        self.lines.append(line)
        self._look()

    def _carry_out(self, effect: DispatchEffect) -> None:
        self.effects.append(effect)
        super()._carry_out(effect)

    def gone(self, link: WorkerLink) -> None:
        self.ended.append(link)
        super().gone(link)
        self._look()

    async def _refresh(self, modules: Modules, timeout_s: float | None) -> set[str]:
        described = await super()._refresh(modules, timeout_s)
        self._look()
        return described

    async def try_broken(self) -> str:
        try:
            if self.fails is not None:
                raise self.fails
            return await super().try_broken()
        finally:
            self.retries += 1
            self._look()

    def _perform(self, effects: list[DispatchEffect]) -> None:
        super()._perform(effects)
        self._look()

    def _look(self) -> None:
        for check, future in self._checks:
            if not future.done() and check():
                future.set_result(None)

    async def until(self, check: Callable[[], bool]) -> None:
        """Wait for something that an effect, a line, a refresh or the end of a process brings about."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._checks.append((check, future))
        self._look()
        await asyncio.wait_for(future, TIMEOUT_S)

    def call_of(self, function: str, payload: object = None, *, timeout_s: float = 60.0, **more: Any) -> Call:
        """A call with a JSON payload."""
        data = b"" if payload is None else msgspec.json.encode(payload)
        return Call(f"{next(self._ids):032x}", function, Payload("json", data), "", int(timeout_s * 1e6), **more)

    def call(self, call: Call) -> asyncio.Future[Outcome]:
        """Run the call. Cancelling the future, or the task that awaits it, cancels the call."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        ticket = self.start_call(call, lambda outcome: None if future.done() else future.set_result(outcome))
        future.add_done_callback(lambda ended: self.cancel_call(ticket) if ended.cancelled() else None)
        return future

    async def run(self, function: str, payload: object = None, **options: Any) -> Outcome:
        """Call and wait."""
        return await asyncio.wait_for(self.call(self.call_of(function, payload, **options)), TIMEOUT_S)

    async def failure(self, function: str, payload: object = None, **options: Any) -> Failure:
        """The failure of a call that must fail."""
        outcome = await self.run(function, payload, **options)
        assert outcome.failure is not None, outcome.result
        return outcome.failure

    async def result(self, function: str, payload: object = None, **options: Any) -> Any:
        """The result of a call that must succeed."""
        outcome = await self.run(function, payload, **options)
        assert outcome.failure is None, outcome.failure
        assert outcome.result is not None
        return outcome.result.data.decode() if outcome.result.encoding == "text" else decode(outcome.result.data)

    def begin(self, function: str, payload: object = None, **options: Any) -> asyncio.Task[Outcome]:
        """Call without waiting."""
        return asyncio.get_running_loop().create_task(self.run(function, payload, **options))

    def texts(self, stream: str) -> list[str]:
        return [line.text for line in self.lines if line.stream == stream]


def decode(data: bytes) -> Any:
    return msgspec.json.decode(data) if data else None


class Gate:
    """Where functions under test wait, blocking their thread: the test sees who is there, and lets all go."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.pids: list[int] = []
        self._is_open = False
        self._loop = asyncio.get_running_loop()
        self._checks: list[tuple[int, asyncio.Future[None]]] = []
        for end in (".in", ".out"):
            os.mkfifo(self.path + end)
        # Open for both directions, so that nobody waits for the other side to open.
        self._arrivals = os.open(self.path + ".in", os.O_RDWR | os.O_NONBLOCK)
        self._opening = os.open(self.path + ".out", os.O_RDWR)
        self._loop.add_reader(self._arrivals, self._arrive)

    def _arrive(self) -> None:
        self.pids += map(int, os.read(self._arrivals, 65536).split())
        for times, future in self._checks:
            if not future.done() and len(self.pids) >= times:
                future.set_result(None)

    async def arrived(self, times: int = 1) -> list[int]:
        """The processes that have come here, once there are this many."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._checks.append((times, future))
        if len(self.pids) >= times:
            future.set_result(None)
        await asyncio.wait_for(future, TIMEOUT_S)
        return self.pids

    def open(self) -> None:
        """Let everybody through, now and later."""
        if not self._is_open:
            self._is_open = True
            Path(self.path + ".open").touch()
            Path(self.path + ".open").rename(self.path + ".out")
            os.close(self._opening)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        self._loop.remove_reader(self._arrivals)
        os.close(self._arrivals)


def write_modules(folder: Path, modules: dict[str, str]) -> None:
    """Modules by name; each begins with the imports that all need."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(HEAD + dedent(source))


@asynccontextmanager
async def hosting(tmp_path: Path, modules: dict[str, str], **options: Any) -> AsyncIterator[Host]:
    """A running host over these modules, stopped at the end."""
    write_modules(tmp_path / "functions", modules)
    host = Host(tmp_path / "functions", **options)
    try:
        await host.start()
        yield host
    finally:
        await host.stop(0)


def drive(test: Coroutine[Any, Any, None]) -> None:
    """Run the test on the loop that engines run on."""
    uvloop.run(test)


def wait_for_end(pids: list[int]) -> None:
    """Wait until these processes, of which no other than this test speaks, are gone."""
    poll = select.poll()
    fds = []
    for pid in filter(is_alive, pids):
        with contextlib.suppress(ProcessLookupError):  # it has ended since it was looked at
            fds.append(os.pidfd_open(pid))
    try:
        for fd in fds:
            poll.register(fd, select.POLLIN)
        waiting = set(fds)
        while waiting:
            ready = poll.poll(TIMEOUT_S * 1000)
            assert ready, "a process is still there"
            for fd, _ in ready:
                poll.unregister(fd)
                waiting.discard(fd)
    finally:
        for fd in fds:
            os.close(fd)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, not counting what is dead and not yet reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends between the opening and the reading
        return False


FAST = Budget(idle_us=50_000)
"""Workers that have nothing to do leave almost at once."""
LIMITS = Limits(request_bytes=100_000, record_bytes=50_000, page_bytes=100_000, call_depth=4)
