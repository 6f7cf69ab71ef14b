"""The engine's end of one worker's socket: frames in and out, and its operations carried to the log.

A worker is gone when three things are known, in whatever order they come: its socket is closed, so that everything it
has said was heard; the zygote has told how it ended; and every write that it had asked for is decided, be it of the log
or of logged calls, so that nothing of it can happen after its calls were reported lost and maybe begun again.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Final, Protocol, cast

from boki.errors import BokiError, CorruptData
from boki.log.checks import check_request
from boki.log.limits import MIB, Limits
from boki.log.metalog import Positions
from boki.log.operations import Answer, Append, Failure, Operation, Read, SetRetention, TrimBook
from boki.worker.busy_polling import NEXT_NS, BusyPolling, is_answered_at_once
from boki.worker.frames import (
    VERSION,
    AbandonRead,
    Ended,
    Frame,
    Hello,
    LogReply,
    LogRequest,
    encode_frame,
    from_worker,
)
from boki.worker.tally import Tally

Finish = Callable[[Answer, Positions], None]

_MAX_REQUESTS: Final = 1024
"""A worker with more log operations and later calls under way is not listened to until some are answered."""
_MAX_UNSENT_BYTES: Final = 64 * MIB
"""Nor is one that does not read what it is sent."""
_WRITES: Final = (Append, TrimBook, SetRetention)


class LogDoor(Protocol):
    """The log as this process has it: `boki.engine.server.log_service.LogService`, or the `EnginePort` of a relay."""

    def submit(self, operation: Operation, positions: Positions, timeout_us: int, finish: Finish) -> None:
        """Carry out an operation; `finish(answer, positions)` is called once, in the same loop, maybe at once."""

    def abandon(self, finish: Finish) -> None:
        """Stop waiting for the read that was submitted with this `finish`, which is not called from now on.

        Repeatable.
        """


class LinkOwner(Protocol):
    """Who is told what comes from a worker, and of its end."""

    def from_worker(self, link: WorkerLink, frame: Frame) -> None:
        """It said something that is no log operation."""

    def misbehaved(self, link: WorkerLink, how: str) -> None:
        """It does not keep to the protocol: the worker process "sent a frame that …"."""

    def gone(self, link: WorkerLink) -> None:
        """It is over in every way; `link.ending` says how."""


class LinkKeeper(Protocol):
    """What ensures that a process ends with its socket, and the socket with its process."""

    def link_closed(self, link: WorkerLink) -> None:
        """Its socket is closed; the process is over, or should be."""

    def link_gone(self, link: WorkerLink) -> None:
        """It is over in every way."""


class WorkerLink(asyncio.Protocol):
    """One worker, from its fork to its end."""

    def __init__(
        self,
        number: int,
        owner: LinkOwner,
        keeper: LinkKeeper,
        limits: Limits,
        log: LogDoor,
        tally: Tally,
    ) -> None:
        self.number = number
        self.owner = owner
        self.pid = 0
        self.tally = tally
        self.is_leaving = False
        """It has been let go, and exits by itself."""
        self.is_innocent = False
        """Its end says nothing about what it ran: the zygote took it along."""
        self.ending = ""
        """How the process ended; empty while it lives."""
        self.is_closed = False
        self.newest_try = 0
        """The ticket of the last call that it has tried by itself."""
        self._keeper = keeper
        self._limits = limits
        self._log = log
        self._waiting_reads: dict[int, Finish] = {}
        self._decoder = from_worker(limits)
        self._loop = asyncio.get_running_loop()
        self._polling = BusyPolling(NEXT_NS, self._loop.call_soon)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._is_flush_due = False
        self._requests = 0
        self._writes: set[int] = set()
        """Those under way, by number."""
        self._write_numbers = count(1)
        self._write_decided = asyncio.Event()
        """Set for a moment each time."""
        self._is_slow = False
        self._is_paused = False

    # the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_MAX_UNSENT_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See `asyncio.Protocol`."""
        if not self.is_closed:
            self.is_closed = True
            for request_id in list(self._waiting_reads):
                self._abandon_read(request_id)
            self._keeper.link_closed(self)
            self._check_gone()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_slow = True
        self._listen()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_slow = False
        self._listen()

    def _listen(self) -> None:
        """Read from the worker, or let it wait: with too much under way for it, it must not ask for more."""
        wanted = self._is_slow or self._requests > _MAX_REQUESTS
        if wanted != self._is_paused and self._transport is not None and not self.is_closed:
            self._is_paused = wanted
            if wanted:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._polling.came()
        try:
            frames = self._decoder.feed(data)
        except CorruptData as error:
            self.owner.misbehaved(self, f"sent what is no frame ({error.message})")
            return
        for frame in frames:
            if isinstance(frame, LogRequest):
                self._carry_out(frame)
            elif isinstance(frame, AbandonRead):
                self._abandon_read(frame.id)
            elif isinstance(frame, Hello) and frame.version != VERSION:
                self.owner.misbehaved(self, f"speaks version {frame.version} of the protocol, not {VERSION}")
            elif isinstance(frame, Ended) and not self._are_sound(frame.outcome.appends):
                self.owner.misbehaved(self, "ended a call with an append that is none")
            else:
                self.owner.from_worker(self, frame)

    def send(self, frame: Frame | LogReply) -> None:
        """Tell the worker; frames of one turn of the loop leave together."""
        self._out.append(encode_frame(frame))
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        out, self._out = self._out, []
        if self._transport is not None and not self.is_closed:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def close(self) -> None:
        """Let the worker go: it exits when it sees its socket closed."""
        self.is_leaving = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the socket at once, whatever is still to be read or sent."""
        if self._transport is not None:
            self._transport.abort()
        elif not self.is_closed:
            self.connection_lost(None)

    def end(self, ending: str) -> None:
        """The process is over: how it ended, to stand after "the worker process"."""
        if not self.ending:
            self.ending = ending
            self._check_gone()

    def _check_gone(self) -> None:
        if self.is_closed and self.ending and not self._writes:
            self._keeper.link_gone(self)
            self.owner.gone(self)

    def hold(self, *, is_write: bool) -> int:
        """One more thing is under way for the worker; with too many it is not listened to. It is not gone while one of
        them is a write. The number of the write, else 0.
        """
        self._requests += 1
        if self._requests > _MAX_REQUESTS:
            self._listen()
        number = next(self._write_numbers) if is_write else 0
        if is_write:
            self._writes.add(number)
        return number

    def release(self, write: int) -> None:
        """What was held under this number is done."""
        self._requests -= 1
        if self._is_paused:
            self._listen()
        if write:
            self._writes.remove(write)
            self._write_decided.set()
            self._write_decided.clear()
            if self.is_closed:
                self._check_gone()

    async def writes_decided(self) -> None:
        """Return once all writes that are under way now are decided."""
        under_way = set(self._writes)
        while under_way & self._writes:
            await self._write_decided.wait()

    # the log

    def _are_sound(self, appends: Sequence[Append]) -> bool:
        try:
            for append in appends:
                check_request(append, self._limits)
        except BokiError:
            return False
        return True

    def _carry_out(self, request: LogRequest) -> None:
        operation = request.operation
        try:
            check_request(operation, self._limits)
        except BokiError as error:
            self.send(LogReply(request.id, request.positions, Failure.of(error)))
            return
        finish = partial(self._reply, request.id, self.hold(is_write=isinstance(operation, _WRITES)))
        if isinstance(operation, Read) and operation.wait_us:
            self._waiting_reads[request.id] = finish
        self._log.submit(operation, request.positions, max(request.timeout_us, 0), finish)
        if not self._requests and is_answered_at_once(operation):  # it was, and the worker may have a next one
            self._polling.expect()

    def _abandon_read(self, request_id: int) -> None:
        finish = self._waiting_reads.pop(request_id, None)
        if finish is not None:
            self._log.abandon(finish)
            self.release(0)

    def _reply(self, request_id: int, write: int, answer: Answer, positions: Positions) -> None:
        self._waiting_reads.pop(request_id, None)
        if not self.is_closed:
            self.send(LogReply(request_id, positions, answer))
        self.release(write)


def ending_of(status: int) -> str:
    """How a process ended, to stand after "the worker process".

    >>> ending_of(3)
    'exited with status 3'
    >>> ending_of(-9)
    'was killed by signal 9 (SIGKILL; by the system, if its memory ran out)'
    """
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-status} ({name}{'; by the system, if its memory ran out' if status == -9 else ''})"
