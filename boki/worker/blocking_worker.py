"""The process that runs the `def` functions of one module: one call at a time, on a plain blocking socket.

A function may start threads, and several of them may ask something at once. There is one socket, so whoever waits for
an answer reads it for all: one thread receives, takes in what came and wakes the others. Nobody reads while a function
computes; a call that is past its deadline then is ended by killing the process.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from select import select
from threading import Condition, RLock, Timer
from time import perf_counter_ns
from typing import Any, Final, NoReturn, TypeVar

from boki.api.blocking_context import Context
from boki.api.call_state import CallState
from boki.api.function import Function
from boki.api.payloads.values import NO_PAYLOAD
from boki.api.streaming import HEAD_AFTER_S, Chunks
from boki.api.suspension import Suspend
from boki.errors import BokiError, CorruptData, DeadlineExceeded, TooLarge
from boki.log.limits import KIB
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Answer, Failure, Operation
from boki.protocol.calls import WINDOW, Call, CallChange, InvocationState, Outcome, ResultChunk, Suspension
from boki.worker.busy_polling import ANSWER_NS, Payoff, is_answered_at_once
from boki.worker.console import SPEAKER, Console, Speaker
from boki.worker.ending import Ending, cancelled, unknown
from boki.worker.frames import (
    VERSION,
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
from boki.worker.tally import Tally

_READ_BYTES: Final = 256 * KIB


class _ReaderLeftError(Exception):
    """The call was cancelled while its caller was to take the next item: nothing in the function went wrong."""


R = TypeVar("R", LogReply, ChildEnded, Accepted, CallTold)


class BlockingWorker:
    """One end of the socket, and the call that runs behind it. It is the `BlockingLogPort` of all its calls."""

    def __init__(self, plan: Fork, tally: Tally, sock: socket.socket) -> None:
        self.console = Console(plan.module, self._say)
        self._module = plan.module
        self._limits = plan.limits
        self._tally = tally
        self._ending = Ending(self.console, plan.limits)
        self._socket = sock
        self._decoder = to_worker(plan.limits)
        self._max_frame_bytes = max_frame_bytes(plan.limits)
        self._sending = RLock()  # a finaliser that prints may run in the thread that sends
        self._arrived = Condition()
        self._is_read = False
        self._is_answer_near = False
        """The request that was sent last was the only one, is answered at once, and nobody has looked since."""
        self._payoff = Payoff()
        self._starts: list[Start] = []
        self._answers: dict[int, ReplyFrame | None] = {}
        """What came for those who wait, by request id; None: not yet."""
        self._cancelled: int | None = None
        self._streaming: int | None = None
        """The call whose result is streamed."""
        self._taken = 0
        """Number of chunks of it that its caller has taken."""
        self._next_id = 0
        self._started = 0

    def serve(self, functions: Mapping[str, Function]) -> NoReturn:
        """Take calls of these functions from the engine at the other end of the socket, until it closes."""
        gc.freeze()  # what was imported lives as long as the process: never look at it again
        self._send(encode_frame(Hello(VERSION)))
        while True:
            with self._arrived:
                while not self._starts:
                    self._read_or_wait()
                start = self._starts.pop(0)
            self._run(start, functions)

    def fail(self, error: str) -> NoReturn:
        """The module cannot be imported: tell the engine, and exit."""
        self._send(encode_frame(Broken(error)))
        os._exit(0)

    # calls

    def _run(self, start: Start, functions: Mapping[str, Function]) -> None:
        self._started += 1
        self._tally.begun = self._started
        call = start.call
        speaker = Speaker(self._module, call.function, call.id)
        outside, self.console.fallback = self.console.fallback, speaker
        token = SPEAKER.set(speaker)
        try:
            outcome = self._outcome(start, functions, speaker)
        finally:
            SPEAKER.reset(token)
            self.console.finish(speaker)
            self.console.fallback = outside
        self._send(self._ending.encoded(start.ticket, call.function, outcome))

    def _outcome(self, start: Start, functions: Mapping[str, Function], speaker: Speaker) -> Outcome:
        call = start.call
        function = functions.get(call.function)
        if function is None:
            return unknown(call, functions)
        if call.is_tried:  # no library has bodies that block
            return Outcome(None, None, {}, Suspension())
        state = CallState(call, limits=self._limits)
        seen = state.caller.positions
        try:
            arguments = function.arguments_of(call)
        except BokiError as error:
            return Outcome(None, Failure.of(error), seen)
        calls = _Calls(self, start.ticket)
        try:
            result = function.run(Context(state, calls, calls), *arguments)
            if function.stream is not None:
                return self._stream(start, Chunks(call.function, function.stream), result, seen)
            return self._ending.returned(speaker, function, result, seen)
        except Suspend as suspend:
            return self._ending.suspended(speaker, call, suspend, seen)
        except _ReaderLeftError:
            return cancelled(call.function, seen)
        except BaseException as error:  # noqa: BLE001 - whatever a function raises ends its call and nothing else
            return self._ending.raised(speaker, error, seen)

    def _stream(self, start: Start, chunks: Chunks, generator: Generator[Any, None, None], seen: Positions) -> Outcome:
        """Send what the function yields, no faster than its caller takes it."""
        with self._arrived:
            self._streaming, self._taken = start.ticket, 0

        def begin() -> None:
            for chunk in chunks.begin():
                self._send(encode_frame(Streamed(start.ticket, chunk)))

        with closing(generator), _later(begin, HEAD_AFTER_S if chunks.has_known_head else None) as stop:
            for item in generator:
                stop()
                self._pass_on(start.ticket, chunks.of(item))
        self._pass_on(start.ticket, chunks.end())
        return Outcome(NO_PAYLOAD, None, seen)

    def _pass_on(self, ticket: int, chunks: list[ResultChunk]) -> None:
        for chunk in chunks:
            with self._arrived:
                while not self._was_cancelled(ticket) and chunk.number - self._taken > WINDOW:
                    self._read_or_wait()
                if self._cancelled == ticket:
                    raise _ReaderLeftError
            self._send(encode_frame(Streamed(ticket, chunk)))

    # the socket

    def _send(self, frame: bytes) -> None:
        try:
            with self._sending:
                self._socket.sendall(frame)
        except OSError:
            os._exit(0)  # the engine is gone, and with it whoever wanted to know

    def _say(self, line: ConsoleLine) -> None:
        self._send(encode_frame(Said((line,))))

    def _read_or_wait(self) -> None:
        """With `_arrived` held: take in what comes next, or wait until another thread has."""
        if self._is_read:
            self._arrived.wait()
            return
        self._is_read = True
        is_near, self._is_answer_near = self._is_answer_near, False
        self._arrived.release()
        try:
            data = self._receive(is_near=is_near)
        finally:
            self._arrived.acquire()
            self._is_read = False
        for frame in self._decoder.feed(data):
            if isinstance(frame, Start):
                self._starts.append(frame)
            elif isinstance(frame, Cancel):
                self._cancelled = frame.ticket
            elif isinstance(frame, Taken):
                if frame.ticket == self._streaming:
                    self._taken = max(self._taken, frame.count)
            elif frame.id in self._answers:
                self._answers[frame.id] = frame
        self._arrived.notify_all()

    def _was_cancelled(self, ticket: int) -> bool:
        """With `_arrived` held: whether the call was cancelled, also by what has come and was not read."""
        while not self._is_read and select([self._socket], (), (), 0)[0]:
            self._read_or_wait()
        return self._cancelled == ticket

    def _receive(self, *, is_near: bool) -> bytes:
        """What comes next; look for it first if it `is_near`. In one thread at a time (`_is_read`)."""
        try:
            data = self._look() if is_near and self._payoff.is_worth_a_try() else None
            if data is None:
                data = self._socket.recv(_READ_BYTES)
        except OSError:
            data = b""
        if not data:
            os._exit(0)  # the engine is gone, or wants this process no longer
        return data

    def _look(self) -> bytes | None:
        """What comes within the window of `boki.worker.busy_polling`, without sleeping.

        Another thread of the function that computes takes the interpreter's lock in between: then nothing is seen in
        time, and so this is tried seldom.
        """
        until_ns = perf_counter_ns() + ANSWER_NS
        while perf_counter_ns() < until_ns:
            try:
                data = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            self._payoff.paid()
            return data
        self._payoff.failed()
        return None

    # what calls ask for

    def next_id(self) -> int:
        """A number for one request."""
        with self._arrived:
            self._next_id += 1
            return self._next_id

    def ask(self, ticket: int, request_id: int, frame: bytes, kind: type[R], *, is_quick: bool = False) -> R:
        """Send the request of that call and wait for its answer, which comes at once if that `is_quick`.

        `TooLarge` if no frame holds it; `DeadlineExceeded` if the engine has cancelled the call, or does so meanwhile.
        """
        if len(frame) > self._max_frame_bytes:
            raise TooLarge(
                f"a request of {len(frame):,} bytes is more than limits.request_bytes ({self._limits.request_bytes:,})",
                limit=self._limits.request_bytes,
            )
        with self._arrived:
            if self._was_cancelled(ticket):  # the call may run again soon: nothing of this run may come after
                raise _cancelled()
            self._is_answer_near = is_quick and not self._answers
            self._answers[request_id] = None
        self._send(frame)
        with self._arrived:
            while (answer := self._answers[request_id]) is None:
                if self._cancelled == ticket:
                    del self._answers[request_id]
                    raise _cancelled()
                self._read_or_wait()
            del self._answers[request_id]
        if not isinstance(answer, kind):
            raise CorruptData(f"the engine answered request {request_id} with {type(answer).__name__}")
        return answer

    def raise_positions(self, positions: Positions, seen: Positions) -> None:
        """`merge_positions` for threads of a function: none may put back what another has raised meanwhile."""
        with self._arrived:
            merge_positions(positions, seen)


def _cancelled() -> DeadlineExceeded:
    return DeadlineExceeded("the call was cancelled: nobody waits for it any more")


@contextmanager
def _later(work: Callable[[], None], delay_s: float | None) -> Iterator[Callable[[], None]]:
    """Do it in a thread of its own after a delay (None: never), unless what this gives was called before, which waits
    for it if it has begun.
    """
    if delay_s is None:
        yield lambda: None
        return
    timer = Timer(delay_s, work)
    timer.daemon = True
    timer.start()

    def stop() -> None:
        timer.cancel()
        timer.join()

    try:
        yield stop
    finally:
        stop()


class _Calls:
    """The ports of one call."""

    __slots__ = ("_ticket", "_worker")

    def __init__(self, worker: BlockingWorker, ticket: int) -> None:
        self._worker = worker
        self._ticket = ticket

    def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        worker = self._worker
        request_id = worker.next_id()
        frame = encode_frame(LogRequest(request_id, positions, int(timeout_s * 1_000_000), operation))
        reply = worker.ask(self._ticket, request_id, frame, LogReply, is_quick=is_answered_at_once(operation))
        worker.raise_positions(positions, reply.positions)
        if isinstance(reply.answer, Failure):
            raise reply.answer.error()
        return reply.answer

    def invoke(self, call: Call) -> Outcome:
        worker = self._worker
        request_id = worker.next_id()
        frame = encode_frame(Invoke(request_id, self._ticket, call))
        return worker.ask(self._ticket, request_id, frame, ChildEnded).outcome

    def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        worker = self._worker
        request_id = worker.next_id()
        frame = encode_frame(InvokeLater(request_id, self._ticket, call, delay_s, key))
        accepted = worker.ask(self._ticket, request_id, frame, Accepted)
        if accepted.failure is not None:
            raise accepted.failure.error()
        return accepted.invocation

    def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        worker = self._worker
        request_id = worker.next_id()
        frame = encode_frame(AskCall(request_id, self._ticket, invocation_id, wait_s, change))
        told = worker.ask(self._ticket, request_id, frame, CallTold)
        if told.failure is not None:
            raise told.failure.error()
        if told.state is None:
            raise CorruptData(f"the engine answered request {request_id} with neither a state nor an error")
        return told.state
