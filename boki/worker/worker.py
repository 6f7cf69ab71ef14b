"""The process that runs the `async def` functions of one module: many calls at once, as tasks of one loop.

All of a worker's traffic goes over one socket to its engine, whose loss ends the process: nothing it could still do
would reach anybody. Writes of one loop turn leave together. Every call is a task; log operations, child calls and later
calls of all tasks share one table of futures.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from contextvars import Context as Variables
from threading import RLock
from typing import Any, Final, NoReturn, TypeVar, cast

from msgspec.structs import replace

from boki.api.append_gatherer import AppendGatherer
from boki.api.call_state import CallState
from boki.api.context import Context
from boki.api.function import Function
from boki.api.payloads.values import NO_PAYLOAD
from boki.api.port import Told
from boki.api.streaming import HEAD_AFTER_S, Chunks
from boki.api.suspension import Suspend
from boki.errors import BokiError, CorruptData, TooLarge
from boki.log.limits import KIB, MIB
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Answer, Failure, Operation, Read
from boki.protocol.calls import WINDOW, Begun, Call, CallChange, InvocationState, Outcome, ResultChunk, Suspension
from boki.worker.busy_polling import ANSWER_NS, BusyPolling, is_answered_at_once
from boki.worker.console import SPEAKER, Console, Speaker
from boki.worker.ending import Ending, cancelled, unknown
from boki.worker.frames import (
    VERSION,
    Abandon,
    AbandonRead,
    Accepted,
    AskCall,
    Broken,
    CallTold,
    Cancel,
    ChildEnded,
    ConsoleLine,
    Fork,
    Hello,
    Invoke,
    InvokeLater,
    LogReply,
    LogRequest,
    ReplyFrame,
    Said,
    Start,
    Streamed,
    Taken,
    encode_frame,
    max_frame_bytes,
    to_worker,
)
from boki.worker.own_tries import OwnTries
from boki.worker.tally import Tally

_MAX_UNSENT: Final = 4 * MIB
"""Console lines are left out, and counted, while about this many bytes wait to be taken by the engine."""
_SAID_CHARS: Final = 256 * KIB
"""About how much one frame of console lines holds."""
_LINE_OVERHEAD: Final = 128

_LARGE_BYTES: Final = 64 * KIB
"""Requests from this size on do not wait for the end of the turn."""

_UNASKED: Final = -1
"""The order of calls that the engine has not sent."""

R = TypeVar("R", LogReply, ChildEnded, Accepted, CallTold)


class Running:
    """A call in this worker."""

    __slots__ = ("call", "has_begun", "is_cancelled", "order", "room", "speaker", "taken", "task")

    def __init__(self, call: Call, order: int, speaker: Speaker) -> None:
        self.call = call
        self.order = order
        self.speaker = speaker
        self.has_begun = False
        self.is_cancelled = False
        """The engine has cancelled it; a function may cancel its own task, too."""
        self.task: asyncio.Task[None] | None = None
        self.taken = 0
        """How many chunks of its stream its caller has taken."""
        self.room: asyncio.Future[None] | None = None
        """Done when it has taken more."""


class AsyncWorker(asyncio.Protocol):
    """One end of the socket, and what runs behind it. It is the `LogPort` of all its calls."""

    def __init__(self, plan: Fork, tally: Tally, loop: asyncio.AbstractEventLoop) -> None:
        limits = plan.limits
        self.console = Console(plan.module, self._say)
        self._functions: Mapping[str, Function] = {}
        self._module = plan.module
        self._limits = limits
        self._tally = tally
        self._ending = Ending(self.console, limits)
        self._loop = loop
        self._polling = BusyPolling(ANSWER_NS, loop.call_soon)
        self._max_frame_bytes = max_frame_bytes(limits)
        self._appends = AppendGatherer(self, limits)
        self._decoder = to_worker(limits)
        self._running: dict[int, Running] = {}
        self._started = 0
        self.tries = OwnTries(plan.child, self._try, loop.time)
        self._answers: dict[int, asyncio.Future[ReplyFrame]] = {}
        self._told: dict[int, Told] = {}
        """Who is told the answers to requests that no task waits for."""
        self._next_id = 0
        self._out: list[bytes] = []
        self._saying = RLock()  # a finaliser that prints may run in the thread that has it
        self._lines: list[ConsoleLine] = []
        self._line_chars = 0
        self._dropped = 0
        self._is_flush_due = False
        self._drained: asyncio.Future[None] | None = None
        self._transport: asyncio.WriteTransport | None = None

    def serve(self, sock: socket.socket, functions: Mapping[str, Function]) -> NoReturn:
        """Take calls of these functions from the engine at the other end of the socket, until it closes."""
        self._functions = self.tries.functions = functions
        gc.freeze()  # what was imported lives as long as the process: never look at it again
        self._loop.run_until_complete(self._loop.create_unix_connection(lambda: self, sock=sock))
        self._loop.run_forever()
        os._exit(0)

    # the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.WriteTransport", transport)
        self._write(encode_frame(Hello(VERSION)))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See `asyncio.Protocol`. Tasks under way end with the process."""
        os._exit(0)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`. Who wants to ask something waits."""
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        for frame in self._decoder.feed(data):
            if isinstance(frame, LogReply) and (told := self._told.pop(frame.id, None)) is not None:
                told(frame.answer, frame.positions)
            elif isinstance(frame, ReplyFrame):
                self._polling.came()
                future = self._answers.pop(frame.id, None)
                if future is not None and not future.done():
                    future.set_result(frame)
            elif isinstance(frame, Start):
                self._start(frame)
            elif isinstance(frame, Taken):
                self._note_taken(frame)
            else:
                self._cancel(frame)

    def _write(self, frame: bytes) -> None:
        self._out.append(frame)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._transport is None:
            return
        if self._lines or self._dropped:
            self._out[:0] = self._said()
        if self._out:
            out, self._out = self._out, []
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _said(self) -> list[bytes]:
        """The console lines that have gathered, as frames."""
        with self._saying:
            lines, self._lines = self._lines, []
            dropped, self._dropped = self._dropped, 0
            self._line_chars = 0
        frames = []
        start = size = 0
        for i, line in enumerate(lines):
            size += len(line.text) + _LINE_OVERHEAD
            if size >= _SAID_CHARS:
                frames.append(encode_frame(Said(tuple(lines[start : i + 1]))))
                start, size = i + 1, 0
        frames.append(encode_frame(Said(tuple(lines[start:]), dropped)))
        return frames

    def _say(self, line: ConsoleLine) -> None:
        """Pass a line on to the engine's console. From any thread."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        with self._saying:
            if self._line_chars + unsent > _MAX_UNSENT:
                self._dropped += 1
                return
            self._lines.append(line)
            self._line_chars += len(line.text) + _LINE_OVERHEAD
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon_threadsafe(self._flush)

    def fail(self, sock: socket.socket, error: str) -> NoReturn:
        """The module cannot be imported: tell the engine, with what the module has said until then, and exit."""
        sock.sendall(b"".join((*self._said(), encode_frame(Broken(error)))))
        os._exit(0)

    # calls

    def _start(self, frame: Start) -> None:
        call = frame.call
        running = Running(call, self._started, Speaker(self._module, call.function, call.id))
        self._started += 1
        self._running[frame.ticket] = running
        self._launch(frame.ticket, running)

    def _try(self, ticket: int, call: Call) -> None:
        """Run a call that the engine has not sent, as soon as the request for it is on its way there."""
        running = Running(call, _UNASKED, Speaker(self._module, call.function, call.id))
        self._running[ticket] = running
        self._loop.call_soon(self._launch, ticket, running, context=Variables())

    def _launch(self, ticket: int, running: Running) -> None:
        running.task = self._loop.create_task(self._run(ticket, running))

    def _cancel(self, frame: Cancel) -> None:
        running = self._running.get(frame.ticket)
        if running is None or running.task is None:
            return
        running.is_cancelled = True
        running.task.cancel()
        if not running.has_begun:  # a task that is cancelled before its first step never takes it
            self._end(frame.ticket, running, cancelled(running.call.function, {}))

    async def _run(self, ticket: int, running: Running) -> None:
        if running.order != _UNASKED:
            self._tally.begun = running.order + 1
        running.has_begun = True
        SPEAKER.set(running.speaker)
        call = running.call
        function = self._functions.get(call.function)
        if function is None:
            self._end(ticket, running, unknown(call, self._functions))
            return
        if call.is_tried and function.declared is None:  # only bodies of libraries know how to end in time
            self._end(ticket, running, Outcome(None, None, {}, Suspension()))
            return
        state = CallState(call, limits=self._limits)
        seen = state.caller.positions
        if call.run:
            state.caller.last_appends = []
        try:
            arguments = function.arguments_of(call)
        except BokiError as error:
            self._end(ticket, running, Outcome(None, Failure.of(error), seen))
            return
        try:
            context = Context(state, self, self._appends, _Calls(self, ticket))
            result = function.run(context, *arguments)
            if function.stream is not None:
                outcome = await self._stream(ticket, running, Chunks(call.function, function.stream), result, seen)
            else:
                outcome = self._ending.returned(running.speaker, function, await result, seen)
        except Suspend as suspend:
            outcome = self._ending.suspended(running.speaker, call, suspend, seen)
        except BaseException as error:  # noqa: BLE001 - whatever a function raises ends its call and no other
            if isinstance(error, asyncio.CancelledError) and running.is_cancelled:
                outcome = cancelled(call.function, seen)
            else:
                outcome = self._ending.raised(running.speaker, error, seen)
        if state.caller.last_appends and outcome.suspended is None:
            outcome = replace(outcome, appends=tuple(state.caller.last_appends))
        self._end(ticket, running, outcome)

    async def _stream(
        self, ticket: int, running: Running, chunks: Chunks, generator: AsyncGenerator[Any, None], seen: Positions
    ) -> Outcome:
        """Send what the function yields, no faster than its caller takes it."""
        head = self._loop.call_later(HEAD_AFTER_S, self._begin_stream, ticket, chunks)
        try:
            async with aclosing(generator):
                async for item in generator:
                    await self._pass_on(ticket, running, chunks.of(item))
        finally:
            head.cancel()
        await self._pass_on(ticket, running, chunks.end())
        return Outcome(NO_PAYLOAD, None, seen)

    def _begin_stream(self, ticket: int, chunks: Chunks) -> None:
        for chunk in chunks.begin():
            self._write(encode_frame(Streamed(ticket, chunk)))

    async def _pass_on(self, ticket: int, running: Running, chunks: list[ResultChunk]) -> None:
        for chunk in chunks:
            while chunk.number - running.taken > WINDOW:
                running.room = self._loop.create_future()
                await running.room
            self._write(encode_frame(Streamed(ticket, chunk)))
        await asyncio.sleep(0)  # a generator that never waits must not keep others from running

    def _note_taken(self, frame: Taken) -> None:
        running = self._running.get(frame.ticket)
        if running is None:
            return
        running.taken = max(running.taken, frame.count)
        if running.room is not None and not running.room.done():
            running.room.set_result(None)

    def _end(self, ticket: int, running: Running, outcome: Outcome) -> None:
        del self._running[ticket]
        if running.order == _UNASKED:
            self.tries.ended()
        if running.speaker.unfinished:
            self.console.finish(running.speaker)
        self._write(self._ending.encoded(ticket, running.call.function, outcome))

    # what calls ask for

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.LogPort`. The engine answers at the deadline."""
        request_id = self._next_id
        self._next_id += 1
        frame = encode_frame(LogRequest(request_id, positions, int(timeout_s * 1_000_000), operation))
        waits = self._answers or self._told or self._drained is not None
        if not waits and is_answered_at_once(operation):
            self._polling.expect()
        try:
            reply = await self.ask(request_id, frame, LogReply)
        except asyncio.CancelledError:
            if isinstance(operation, Read) and operation.wait_us:
                self._write(encode_frame(AbandonRead(request_id)))
            raise
        merge_positions(positions, reply.positions)
        answer = reply.answer
        if isinstance(answer, Failure):
            raise answer.error()
        return answer

    def begin_request(self, operation: Operation, positions: Positions, timeout_s: float, told: Told) -> bool:
        """See `boki.api.port.BeginningPort`."""
        if self._drained is not None:
            return False
        request_id = self.next_id()
        frame = encode_frame(LogRequest(request_id, positions, int(timeout_s * 1_000_000), operation))
        if not self.can_send(frame):
            return False
        self._told[request_id] = told
        self._write(frame)
        if len(frame) >= _LARGE_BYTES:  # the engine works on it while other tasks of this turn run
            self._flush()
        return True

    def ticket_of_try(self, caller: int, request_id: int, call: Call) -> int:
        """The ticket under which to try a call that the call `caller` asks to be logged now; 0: it is not tried."""
        running = self._running.get(caller)
        if running is None or self._drained is not None:  # what is asked now waits for the engine to read
            return 0
        return self.tries.ticket_for(running.call, request_id, call)

    def can_send(self, frame: bytes) -> bool:
        """Whether the request is not too large for the engine."""
        return len(frame) <= self._max_frame_bytes

    def next_id(self) -> int:
        """A number for one request."""
        self._next_id += 1
        return self._next_id - 1

    def tell(self, frame: bytes) -> None:
        """Send what needs no answer."""
        self._write(frame)

    async def ask(self, request_id: int, frame: bytes, kind: type[R]) -> R:
        """Send the request and wait for its answer; `TooLarge` if no frame holds it."""
        if not self.can_send(frame):
            raise TooLarge(
                f"a request of {len(frame):,} bytes is more than limits.request_bytes ({self._limits.request_bytes:,})",
                limit=self._limits.request_bytes,
            )
        while self._drained is not None:
            await asyncio.shield(self._drained)
        future: asyncio.Future[ReplyFrame] = self._loop.create_future()
        self._answers[request_id] = future
        self._write(frame)
        try:
            answer = await future
        except asyncio.CancelledError:
            self._answers.pop(request_id, None)
            raise
        if not isinstance(answer, kind):
            raise CorruptData(f"the engine answered request {request_id} with {type(answer).__name__}")
        return answer


class _Calls:
    """The `CallPort` of one call."""

    __slots__ = ("_ticket", "_worker")

    def __init__(self, worker: AsyncWorker, ticket: int) -> None:
        self._worker = worker
        self._ticket = ticket

    async def invoke(self, call: Call) -> Outcome:
        worker = self._worker
        request_id = worker.next_id()
        try:
            ended = await worker.ask(request_id, encode_frame(Invoke(request_id, self._ticket, call)), ChildEnded)
        except asyncio.CancelledError:
            worker.tell(encode_frame(Abandon(request_id, self._ticket)))
            raise
        return ended.outcome

    async def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        return (await self.begin_call(call, delay_s, key)).id

    async def begin_call(self, call: Call, delay_s: float, key: str | None) -> Begun:
        """See `boki.api.port.BeginCall`."""
        worker = self._worker
        request_id = worker.next_id()
        tried = 0 if delay_s or key is not None else worker.ticket_of_try(self._ticket, request_id, call)
        frame = encode_frame(InvokeLater(request_id, self._ticket, call, delay_s, key, tried))
        if tried and worker.can_send(frame):
            worker.tries.begin(tried, call)
        accepted = await worker.ask(request_id, frame, Accepted)
        if tried:
            worker.tries.answered(call.function, accepted)
        if accepted.failure is not None:
            raise accepted.failure.error()
        return Begun(accepted.invocation, accepted.result)

    async def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        worker = self._worker
        request_id = worker.next_id()
        frame = encode_frame(AskCall(request_id, self._ticket, invocation_id, wait_s, change))
        told = await worker.ask(request_id, frame, CallTold)
        if told.failure is not None:
            raise told.failure.error()
        if told.state is None:
            raise CorruptData(f"the engine answered request {request_id} with neither a state nor an error")
        return told.state
