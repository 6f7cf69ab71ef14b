"""An engine for gateways and for engines without the index: their messages carried to its functions and its log.

Everything that is taken in is answered once. What comes twice is taken in once; what is under way is known by its
sender and number, so that whoever waits for long can ask whether it is (`Poll`, `Load`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from boki.books.calls.logged_calls import LoggedCalls
from boki.dispatch.server.deployed import DeployedFunctions
from boki.dispatch.server.streams import FORGET_US, Outgoing, Streams
from boki.dispatch.server.worker_link import LogDoor
from boki.engine.server.port import Finish
from boki.errors import BokiError, DeadlineExceeded, InvalidArgument, Overloaded, Unavailable
from boki.host.clock import beat_delay_s, now_us
from boki.host.links import Diversion
from boki.log.ids import NodeId
from boki.log.limits import MIB
from boki.log.metalog import Positions
from boki.log.operations import Answer, Failure, Read
from boki.protocol.call_messages import (
    AbandonRead,
    AcceptCall,
    ActivateBundle,
    AskCall,
    AskStatus,
    BundleActivated,
    CallAccepted,
    CallEnded,
    CallOnce,
    CallOnceEnded,
    ChangeCall,
    FetchFunctions,
    ListCalls,
    Load,
    LogReply,
    LogRequest,
    Poll,
    StartCall,
    StopCall,
    StreamChunk,
    StreamTaken,
    TellCall,
    TellCalls,
    TellFunctions,
    TellStatus,
)
from boki.protocol.calls import Call, FunctionInfo, ModuleInfo, Outcome, ResultChunk, TakeChunk, version_of
from boki.protocol.messages import Message

_log = logging.getLogger("boki.engine")

_TELL_S: Final = 0.1
_REST_S: Final = 0.25
"""Between looks at what is to be told while no request is under way."""
_FORGET_US: Final = 5_000_000
"""A gateway that has not polled for this long is told nothing more."""
_REMEMBERED: Final = 8192
"""This many ended requests are remembered, so that a repeated message does not run a call again."""
_MAX_LOG_REQUESTS: Final = 16_384
_MAX_DESCRIPTION_BYTES: Final = 2 * MIB
_RETRY_AFTER_S: Final = 1

_Key = tuple[NodeId, int]
_Asked = StartCall | LogRequest | AcceptCall | CallOnce | AskCall | ChangeCall | ListCalls | ActivateBundle


class Functions(Protocol):
    """What can be called here: `boki.dispatch.server.pools.FunctionHost`."""

    functions_number: int

    @property
    def functions(self) -> Mapping[str, FunctionInfo]:
        """By name."""

    @property
    def modules(self) -> Sequence[ModuleInfo]:
        """Where they are from."""

    @property
    def call_count(self) -> int:
        """Calls that run or wait for a worker."""

    def start_call(self, call: Call, done: Callable[[Outcome], None], *, take: TakeChunk | None = None) -> int:
        """Run the call; `done` is called once, maybe before returning. `take` is given what it streams."""

    def cancel_call(self, ticket: int) -> None:
        """The caller has left: cancel the call."""

    @property
    def streams(self) -> Streams:
        """What its workers stream."""


class EngineService:
    """The shell beside an engine's core.

    `calls` may come later: only an engine with the index has logged calls. Without `deployed` there is nothing to
    deploy to: its functions are those of a folder.
    """

    def __init__(
        self,
        links: Diversion,
        node: NodeId,
        service: LogDoor,
        functions: Functions,
        calls: LoggedCalls | None = None,
        deployed: DeployedFunctions | None = None,
        *,
        incarnation: int,
        is_ready: Callable[[], bool],
        status: Callable[[], dict[str, Any]],
        capacity: int = 4096,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self.calls = calls
        self.deployed = deployed
        self.is_draining = False
        self._links = links
        self._node = node
        self._service = service
        self._functions = functions
        self._incarnation = incarnation
        self._is_ready = is_ready
        self._status = status
        self._capacity = capacity
        self._clock = clock
        self._gateways: dict[NodeId, int] = {}
        """When each has last polled."""
        self._told: Load | None = None
        self._under_way: set[_Key] = set()
        self._waiting_reads: dict[_Key, tuple[Positions, Finish]] = {}
        """Reads that may wait for long for a record to come: another engine can do that as well."""
        self._outgoing: dict[_Key, Outgoing] = {}
        """Plain calls, with what they stream."""
        self._ended: deque[_Key] = deque(maxlen=_REMEMBERED)
        self._ended_set: set[_Key] = set()
        self._started_count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._rests = False
        """Whether the next look is far, because no request is under way."""
        self._is_empty = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Take messages in from now on."""
        self._loop = asyncio.get_running_loop()
        self._links.divert(self.deliver)
        self._tick()

    async def drain(self, drain_s: float) -> None:
        """Refuse what is new, say so to the gateways, and wait `drain_s` at most for what is under way."""
        self.is_draining = True
        self._tell_all(self._clock())
        for key, (positions, _) in list(self._waiting_reads.items()):
            self._answer_log(key, Failure.of(self._stopping()), positions)
        try:
            async with asyncio.timeout(drain_s):
                while self._under_way:
                    self._is_empty.clear()
                    await self._is_empty.wait()
        except TimeoutError:
            _log.warning("%d requests were still under way at the end of the drain", len(self._under_way))

    async def stop(self) -> None:
        """Take nothing in any more; what is under way is not answered."""
        self._links.divert(None)
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def deliver(self, sender: NodeId, message: Any) -> None:
        """A message of `boki.protocol.call_messages.FOR_ENGINE_SHELL` has come."""
        match message:
            case Poll(pending):
                self._gateways[sender] = self._clock()
                lacking = tuple(number for number in pending if (sender, number) not in self._under_way)
                self._send(sender, self._load(lacking))
            case StreamTaken(number, count):
                self._note_taken((sender, number), count)
            case AbandonRead(number):
                self._abandon_read((sender, number))
            case StopCall(number):
                self._stop_call((sender, number))
            case FetchFunctions():
                self._send(sender, self._description())
            case AskStatus(request):
                self._send(sender, TellStatus(request, msgspec.json.encode(self._status(), enc_hook=str)))
            case (
                StartCall()
                | LogRequest()
                | AcceptCall()
                | CallOnce()
                | AskCall()
                | ChangeCall()
                | ListCalls()
                | ActivateBundle()
            ):
                key = (sender, message.request)
                runs_once = isinstance(message, StartCall | LogRequest)
                if key not in self._under_way and not (runs_once and key in self._ended_set):
                    self._under_way.add(key)
                    if self._rests:
                        self._await_tick()
                    self._take_in(key, message)

    def _take_in(self, key: _Key, message: _Asked) -> None:
        match message:
            case StartCall(_, call):
                self._start_call(key, call)
            case LogRequest(_, positions, timeout_us, operation):
                if len(self._under_way) > _MAX_LOG_REQUESTS + self._capacity:
                    self._answer_log(key, Failure.of(_overloaded(_MAX_LOG_REQUESTS, "log operations")), positions)
                    return
                finish = partial(self._answer_log, key)
                if isinstance(operation, Read) and operation.wait_us:
                    if self.is_draining:
                        self._answer_log(key, Failure.of(self._stopping()), positions)
                        return
                    self._waiting_reads[key] = positions, finish
                self._service.submit(operation, positions, timeout_us, finish)
            case AcceptCall():
                self._spawn(self._accept(key, message))
            case CallOnce():
                self._spawn(self._call_once(key, message))
            case AskCall():
                self._spawn(self._tell_call(key, message))
            case ChangeCall():
                self._spawn(self._change_call(key, message))
            case ListCalls():
                self._spawn(self._list_calls(key, message))
            case ActivateBundle():
                self._spawn(self._activate(key, message))

    def _end(self, key: _Key, answer: Message | None) -> None:
        """The request is answered; None: its asker does not want to know."""
        self._under_way.discard(key)
        if len(self._ended) == _REMEMBERED:
            self._ended_set.discard(self._ended[0])
        self._ended.append(key)
        self._ended_set.add(key)
        if answer is not None:
            self._send(key[0], answer)
        if not self._under_way:
            self._is_empty.set()

    def _send(self, to: NodeId, message: Message) -> None:
        self._links.send(self._node, to, message)

    # calls

    def _start_call(self, key: _Key, call: Call) -> None:
        def done(outcome: Outcome) -> None:
            outgoing = self._outgoing.get(key)
            if outgoing is not None and outgoing.kept and outcome.failure is None:
                outgoing.ended = outcome  # told when all of it is taken
            else:
                self._end_call(key, outcome)

        self._started_count += 1
        refusal: BokiError | None = self._refusal()
        if refusal is None and self._started_count > self._capacity:
            refusal = _overloaded(self._capacity, "calls")
        if refusal is not None:
            done(Outcome(None, Failure.of(refusal)))
        elif self.deployed is not None and call.chosen is not None and version_of(call.chosen.attributes):
            self._spawn(self._run_pinned(key, call, self.deployed))
        else:
            outgoing = self._outgoing[key] = Outgoing(heard_us=self._clock())
            outgoing.ticket = self._functions.start_call(call, done, take=partial(self._stream, key, outgoing))

    async def _run_pinned(self, key: _Key, call: Call, deployed: DeployedFunctions) -> None:
        try:
            outcome = await deployed.run(call)
        except BokiError as error:
            outcome = Outcome(None, Failure.of(error))
        self._end_call(key, outcome)

    def _stream(self, key: _Key, outgoing: Outgoing, chunk: ResultChunk) -> None:
        outgoing.kept.append(chunk)
        self._send(key[0], StreamChunk(key[1], chunk))

    def _note_taken(self, key: _Key, count: int) -> None:
        outgoing = self._outgoing.get(key)
        if outgoing is None:
            return
        for chunk in outgoing.taken(count, self._clock()):
            self._send(key[0], StreamChunk(key[1], chunk))
        self._functions.streams.taken(outgoing.ticket, count)
        if outgoing.ended is not None and not outgoing.kept:
            self._end_call(key, outgoing.ended)

    def _stop_call(self, key: _Key) -> None:
        outgoing = self._outgoing.get(key)
        if outgoing is not None:
            self._functions.cancel_call(outgoing.ticket)
            left = DeadlineExceeded("the caller of the stream has left: the call was cancelled")
            self._end_call(key, Outcome(None, Failure.of(left)))

    def _end_call(self, key: _Key, outcome: Outcome) -> None:
        self._outgoing.pop(key, None)
        self._started_count -= 1
        self._end(key, CallEnded(key[1], outcome))

    def _refusal(self) -> Unavailable | None:
        if self.is_draining:
            return self._stopping()
        if not self._is_ready():
            return Unavailable("the engine is starting: the call was not begun", retry_after_s=_RETRY_AFTER_S)
        return None

    @staticmethod
    def _stopping() -> Unavailable:
        return Unavailable("the engine is stopping: it was not begun", retry_after_s=_RETRY_AFTER_S)

    # logged calls

    def _ledger(self) -> LoggedCalls:
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        if self.calls is None:
            raise Unavailable("this engine does not hold the index: ask one that does", retry_after_s=_RETRY_AFTER_S)
        return self.calls

    async def _accept(self, key: _Key, message: AcceptCall) -> None:
        try:
            first_id = await self._ledger().accept(message.call, key=message.key, delay_s=message.delay_us / 1e6)
            answer = CallAccepted(message.request, first_id)
        except BokiError as error:
            answer = CallAccepted(message.request, "", Failure.of(error))
        self._end(key, answer)

    async def _call_once(self, key: _Key, message: CallOnce) -> None:
        try:
            first_id, outcome = await self._ledger().call_once(message.call, message.key)
            answer = CallOnceEnded(message.request, first_id, outcome)
        except BokiError as error:
            answer = CallOnceEnded(message.request, "", None, Failure.of(error))
        self._end(key, answer)

    async def _tell_call(self, key: _Key, message: AskCall) -> None:
        try:
            ledger = self._ledger()
            state = await ledger.state(message.invocation, message.wait_us / 1e6)
            answer = TellCall(message.request, state, owner=ledger.other_owner(message.invocation))
        except BokiError as error:
            answer = TellCall(message.request, None, Failure.of(error))
        self._end(key, answer)

    async def _change_call(self, key: _Key, message: ChangeCall) -> None:
        try:
            state = await self._ledger().asked(message.invocation, 0.0, message.change)
            answer = TellCall(message.request, state)
        except BokiError as error:
            answer = TellCall(message.request, None, Failure.of(error))
        self._end(key, answer)

    async def _list_calls(self, key: _Key, message: ListCalls) -> None:
        try:
            answer = TellCalls(message.request, await self._ledger().page(message.wanted))
        except BokiError as error:
            answer = TellCalls(message.request, None, Failure.of(error))
        self._end(key, answer)

    async def _activate(self, key: _Key, message: ActivateBundle) -> None:
        try:
            refusal = self._refusal()
            if refusal is not None:
                raise refusal
            if self.deployed is None:
                raise InvalidArgument("this engine runs the functions of a folder: it cannot be deployed to")
            async with asyncio.timeout(message.timeout_us / 1e6):
                answer = await self.deployed.activate(message)
        except TimeoutError:
            late = DeadlineExceeded("the bundle was not activated in time; it may be yet: see the list of versions")
            answer = BundleActivated(message.request, {}, 0, failure=Failure.of(late))
        except BokiError as error:
            answer = BundleActivated(message.request, {}, 0, failure=Failure.of(error))
        except OSError as error:
            full = Unavailable(f"the bundle cannot be unpacked at this engine: {error.strerror or error}")
            answer = BundleActivated(message.request, {}, 0, failure=Failure.of(full))
        self._end(key, answer)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # the log

    def _answer_log(self, key: _Key, answer: Answer, seen: Positions) -> None:
        self._waiting_reads.pop(key, None)
        if key in self._under_way:  # else it was told to ask another engine
            self._end(key, LogReply(key[1], seen, answer))

    def _abandon_read(self, key: _Key) -> None:
        waiting = self._waiting_reads.pop(key, None)
        if waiting is not None:
            self._service.abandon(waiting[1])
            self._end(key, None)

    # what gateways want to know

    def _load(self, lacking: tuple[int, ...] = ()) -> Load:
        return Load(
            self._incarnation,
            self._functions.call_count,
            self._capacity,
            self._functions.functions_number,
            self.calls is not None,
            self._is_ready(),
            self.is_draining,
            lacking,
        )

    def _description(self) -> TellFunctions:
        functions, modules = tuple(self._functions.functions.values()), tuple(self._functions.modules)
        number = self.deployed.number if self.deployed is not None else 0
        told = TellFunctions(self._incarnation, self._functions.functions_number, functions, modules, number)
        if len(msgspec.msgpack.encode(told)) <= _MAX_DESCRIPTION_BYTES:
            return told
        _log.warning("the schemas of all functions have more than %d bytes: they are left out", _MAX_DESCRIPTION_BYTES)
        bare = tuple(
            msgspec.structs.replace(
                info,
                payload_schema=None if info.payload_schema is None else {},
                result_schema=None if info.result_schema is None else {},
            )
            for info in functions
        )
        short = tuple(msgspec.structs.replace(module, functions=()) for module in modules)
        return msgspec.structs.replace(told, functions=bare, modules=short)

    def _await_tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rests = not (self._under_way or self._outgoing) and self._is_ready()
        period_s = _REST_S if self._rests else _TELL_S
        self._timer = self._loop.call_later(beat_delay_s(self._loop.time(), period_s), self._tick)

    def _tick(self) -> None:
        self._await_tick()
        now = self._clock()
        self._tell_all(now)
        for key, outgoing in list(self._outgoing.items()):
            if outgoing.kept and now - outgoing.heard_us > FORGET_US:
                self._stop_call(key)

    def _tell_all(self, now: int) -> None:
        load = self._load()
        if load == self._told:
            return
        self._told = load
        self._gateways = {gateway: at for gateway, at in self._gateways.items() if now - at < _FORGET_US}
        for gateway in self._gateways:
            self._send(gateway, load)


def _overloaded(limit: int, what: str) -> Overloaded:
    return Overloaded(
        f"{limit} {what} are under way at this engine, as many as it takes", retry_after_s=_RETRY_AFTER_S, limit=limit
    )
