"""The engines of a cluster, as the gateway's `Backend`: calls and log operations go to them by messages.

What an engine answers ends a request. What it does not answer, because it is lost or because the request never reached
it, ends a plain call as `CallLost` and an append without a key as `ConnectionLost`: either may have happened. Whatever
may be repeated (reads, appends under a key, logged calls) is asked of another engine instead, while its time lasts.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import msgspec

from boki.errors import (
    BokiError,
    CallLost,
    ConnectionLost,
    DeadlineExceeded,
    Overloaded,
    Unavailable,
)
from boki.gateway.backend import EngineWatcher, StreamControl
from boki.gateway.core import RETRY_AFTER_S
from boki.gateway.remote_stream import RemoteStream
from boki.gateway.roster import Changed, Happening, Lost, Quiet, Roster
from boki.gateway.server.cluster_deployments import ClusterDeployments
from boki.gateway.server.cluster_ledger import ClusterLedger
from boki.host.clock import now_us
from boki.host.links import NodeLinks
from boki.log.chunk import Chunk
from boki.log.ids import NodeId
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.membership import Membership
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Answer, Append, Failure, ListBooks, Operation, Read, SetRetention, TrimBook
from boki.protocol.call_messages import (
    MAX_POLLED,
    AbandonRead,
    AskCall,
    AskStatus,
    CallEnded,
    Load,
    LogReply,
    LogRequest,
    Poll,
    StartCall,
    StopCall,
    StreamChunk,
    TellFunctions,
    TellStatus,
)
from boki.protocol.calls import Call, FunctionInfo, ModuleInfo, Outcome, TakeChunk
from boki.protocol.effects import Send
from boki.protocol.messages import Message

_log = logging.getLogger("boki.gateway")

_TICK_S: Final = 0.1
_GRACE_S: Final = 1.0
"""An engine answers at the deadline; the gateway gives its answer this much longer to arrive."""
_ASK_AFTER_US: Final = 1_000_000
"""Requests that wait for this long are asked about: the request, or its answer, may be lost."""
_HOLD_S: Final = 5.0
"""How long a request may wait for an engine that takes it while each refuses it without beginning it."""
_STATUS_S: Final = 1.0
_GONE_S: Final = 600.0
"""A node that is registered no longer is told of for this long."""
_LIFE_BITS: Final = 32
_MAX_IN_FLIGHT: Final = 8192
"""Log operations and logged calls that may wait for one engine."""


@dataclass(slots=True)
class _Pending:
    """A request that an engine has not answered."""

    node: NodeId
    sent_at_us: int
    answered: Callable[[Message], None]
    lost: Callable[[str], None]
    is_repeatable: bool
    lacking_since_us: int = 0
    """When the node first said that it knows nothing of it."""


class ClusterBackend:
    """`boki.gateway.backend.Backend` over links. `start` it once there is a loop; tell it of every membership."""

    def __init__(
        self,
        links: NodeLinks,
        node: NodeId,
        loop: asyncio.AbstractEventLoop,
        *,
        incarnation: int,
        limits: Limits = DEFAULT_LIMITS,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self.node = node
        self.roster = Roster()
        self.ledger = ClusterLedger(self.ask)
        self.deployments = ClusterDeployments(self, self.ask, self._until_running, limits)
        self._links = links
        self._loop = loop
        self._clock = clock
        self._watchers: list[EngineWatcher] = []
        self._membership = Membership(number=-1)
        self._gone: dict[NodeId, tuple[str, float]] = {}
        """Nodes that were registered a while ago and are not now: their roles, and since when."""
        self._pending: dict[int, _Pending] = {}
        self._streams: dict[int, RemoteStream] = {}
        self._in_flight: Counter[NodeId] = Counter()
        # No number of this life is one of an earlier life: late answers to that one must find nobody, and an engine
        # takes in no number twice.
        self._number = incarnation << _LIFE_BITS
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    def start(self) -> None:
        """Take part: receive messages, and begin to poll."""
        self._links.attach(self.node, self.deliver)
        self._tick()

    def stop(self) -> None:
        """Take part no more; what is still waited for is lost."""
        self._links.detach(self.node)
        if self._timer is not None:
            self._timer.cancel()
        for number in list(self._pending):
            self._lose(number, "this gateway has stopped")

    # what the gateway wants to know

    @property
    def ready(self) -> bool:
        """See `Backend`."""
        return self.roster.is_ready

    @property
    def functions(self) -> Mapping[str, FunctionInfo]:
        """See `Backend`."""
        return self.roster.functions

    @property
    def knows_functions(self) -> bool:
        """See `Backend`."""
        return self.roster.knows_functions(self._clock())

    @property
    def modules(self) -> Sequence[ModuleInfo]:
        """See `Backend`."""
        return self.roster.modules

    def watch(self, watcher: EngineWatcher) -> None:
        """See `Backend`."""
        self._watchers.append(watcher)
        for engine, standing in self.roster.standings():
            watcher.engine_changed(engine, standing)

    def check_positions(self, positions: Positions) -> None:
        """Nothing is refused: this gateway may know less of the logs than the one that handed the position out. An
        engine waits until it has come that far.
        """

    async def status(self) -> dict[str, Any]:
        """What each member says of itself; who does not answer within a second is there with that."""
        members = [member for member in self._membership.members if member.node != self.node]
        told = await asyncio.gather(*(self._status_of(member.node) for member in members))
        return {
            "version": version("boki"),
            "pid": os.getpid(),
            "node": self.node,
            "members": [
                {"node": member.node, "role": member.role, "incarnation": member.incarnation}
                for member in self._membership.members
            ],
            "draining": list(self._membership.draining),
            "gone": self._lately_gone(),
            "nodes": {member.node: status for member, status in zip(members, told, strict=True)},
        }

    def _lately_gone(self) -> list[dict[str, Any]]:
        """Who was here a while ago: one that was stopped permanently is forgotten in time."""
        now_s = self._loop.time()
        self._gone = {node: told for node, told in self._gone.items() if now_s - told[1] < _GONE_S}
        return [
            {"node": node, "role": role, "since_s": round(now_s - since_s, 1)}
            for node, (role, since_s) in sorted(self._gone.items())
        ]

    async def _status_of(self, node: NodeId) -> Any:
        try:
            answer = await self._ask_node(
                node, lambda number, _left_us: AskStatus(number), _STATUS_S, is_repeatable=False
            )
            return msgspec.json.decode(answer.status) if isinstance(answer, TellStatus) else None
        except (BokiError, msgspec.DecodeError) as error:
            return {"error": str(error)}

    # calls and log operations

    def start_call(
        self,
        engine: NodeId,
        call: Call,
        done: Callable[[Outcome], None],
        take: TakeChunk | None = None,
    ) -> StreamControl:
        """See `Backend`."""

        def answered(message: Message) -> None:
            if isinstance(message, CallEnded):
                done(message.outcome)

        def lost(why: str) -> None:
            error = CallLost(f"engine {engine} was lost while it had the call: {why}", engine=engine)
            done(Outcome(None, Failure.of(error)))

        number = self._next_number()
        self._pending[number] = _Pending(engine, self._clock(), answered, lost, is_repeatable=False)
        control = RemoteStream(partial(self._links.send, self.node, engine), number, take)
        if take is not None:
            self._streams[number] = control
        self._links.send(self.node, engine, StartCall(number, call))
        return control

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.LogPort`."""
        book = "" if isinstance(operation, ListBooks) else operation.book
        seen = dict(positions)

        def make(number: int, left_us: int) -> Message:
            return LogRequest(number, seen, left_us, operation)

        reply = await self.ask(make, timeout_s, book=book, is_repeatable=_is_repeatable(operation))
        assert isinstance(reply, LogReply), "a log request is answered by nothing else"
        merge_positions(positions, reply.positions)
        if isinstance(reply.answer, Failure):
            raise reply.answer.error()
        return reply.answer

    async def ask(
        self,
        make: Callable[[int, int], Message],
        timeout_s: float,
        *,
        book: str = "",
        is_repeatable: bool,
        first: NodeId | None = None,
    ) -> Message:
        """Ask an engine what `make(number, left_us)` makes; its answer, which may be a failure. `first`: that engine,
        if it is up; else the one that the book's operations go to.

        An engine that refuses it because it is unavailable leaves it to the next one; so does, if it `is_repeatable`,
        one that is lost. While every one refuses it, they are asked again for some seconds. Raises the last refusal,
        `ConnectionLost`, `DeadlineExceeded`, `Overloaded` or `Unavailable`; any refusal whose outcome is unknown
        because an engine that was lost may have carried it out.
        """
        changes = _changes(make(0, 1))
        asked_at = self._loop.time()
        until = asked_at + timeout_s
        tried: set[NodeId] = set()
        trouble: BokiError = Unavailable("no engine is up", retry_after_s=RETRY_AFTER_S)
        while True:
            node = first if first in self.roster.up and first not in tried else self.roster.for_book(book, tried)
            left_s = until - self._loop.time()
            if left_s <= 0 and isinstance(trouble, ConnectionLost):
                raise trouble  # whoever else was asked now could only refuse, and let its caller wait for that
            if node is None:
                if not isinstance(trouble, ConnectionLost):
                    left_s = min(left_s, asked_at + _HOLD_S - self._loop.time())
                if left_s <= 0:
                    raise trouble
                tried.clear()
                await self._until_changed(min(left_s, _TICK_S))
                continue
            try:
                answer = await self._ask_node(node, make, max(left_s, 0.0), is_repeatable=is_repeatable)
            except ConnectionLost as error:
                if not is_repeatable:
                    raise
                trouble = error
            except BokiError as error:
                raise _after(trouble, error) if changes else error from None
            else:
                failure = _failure_of(answer)
                if failure is None or failure.code != Unavailable.code or failure.outcome != "not_applied":
                    if failure is not None and changes and isinstance(trouble, ConnectionLost):
                        raise _after(trouble, failure.error())
                    return answer
                if not isinstance(trouble, ConnectionLost):
                    trouble = failure.error()
            tried.add(node)

    async def _ask_node(
        self, node: NodeId, make: Callable[[int, int], Message], left_s: float, *, is_repeatable: bool
    ) -> Message:
        if self._in_flight[node] >= _MAX_IN_FLIGHT:
            raise Overloaded(
                f"{_MAX_IN_FLIGHT} requests wait for engine {node}, as many as may",
                retry_after_s=RETRY_AFTER_S,
                limit=_MAX_IN_FLIGHT,
            )
        future: asyncio.Future[Message] = self._loop.create_future()

        def answered(message: Message) -> None:
            if not future.done():
                future.set_result(message)

        def lost(why: str) -> None:
            if not future.done():
                future.set_exception(ConnectionLost(f"{node} was lost before it answered: {why}", node=node))

        number = self._next_number()
        self._pending[number] = _Pending(node, self._clock(), answered, lost, is_repeatable)
        self._in_flight[node] += 1
        message = make(number, max(int(left_s * 1e6), 1))
        self._links.send(self.node, node, message)
        try:
            async with asyncio.timeout(left_s + _GRACE_S):
                return await future
        except TimeoutError:
            raise DeadlineExceeded(f"{node} did not answer within {left_s:.3g} s") from None
        except asyncio.CancelledError:
            if isinstance(message, LogRequest) and isinstance(message.operation, Read) and message.operation.wait_us:
                self._links.send(self.node, node, AbandonRead(number))
            raise
        finally:
            self._pending.pop(number, None)
            self._in_flight[node] -= 1
            if not self._in_flight[node]:
                del self._in_flight[node]

    async def _until_changed(self, timeout_s: float) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    async def _until_running(self, number: int, timeout_s: float) -> dict[str, bool]:
        """Wait until all engines that are up run that version of the functions; which of them do."""
        until = self._loop.time() + timeout_s
        while True:
            running: dict[str, bool] = {node: at == number for node, at in self.roster.bundles().items()}
            left_s = until - self._loop.time()
            if all(running.values()) or left_s <= 0:
                return running
            await self._until_changed(min(left_s, _TICK_S))

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    # what engines say

    def on_membership(self, membership: Membership) -> None:
        """Who is registered now."""
        if membership.number >= self._membership.number:
            here = {member.node for member in membership.members}
            now_s = self._loop.time()
            for member in self._membership.members:
                if member.node not in here:
                    self._gone[member.node] = (member.role, now_s)
            self._gone = {node: told for node, told in self._gone.items() if node not in here}
            self._membership = membership
        self._perform(self.roster.on_membership(membership, self._clock()))
        self._poll()

    def deliver(self, sender: NodeId, message: Any) -> None:
        """A message has come."""
        now = self._clock()
        match message:
            case Load():
                self._note_lacking(sender, message.lacking, now)
                self._perform(self.roster.on_load(sender, message, now))
            case TellFunctions():
                self._perform(self.roster.on_functions(sender, message, now))
            case AskStatus(request):
                mine = {"node": self.node, "engines": self.roster.up, "in_flight": len(self._pending)}
                self._links.send(self.node, sender, TellStatus(request, msgspec.json.encode(mine)))
            case StreamChunk(number, chunk):
                pending = self._pending.get(number)
                if pending is not None and pending.node == sender and number in self._streams:
                    self._streams[number].deliver(chunk)
                else:
                    self._links.send(self.node, sender, StopCall(number))
            case Message():
                number = getattr(message, "request", 0)
                pending = self._pending.get(number)
                if pending is not None and pending.node == sender:
                    del self._pending[number]
                    self._streams.pop(number, None)
                    pending.answered(message)

    def _perform(self, happenings: Iterable[Happening]) -> None:
        for happening in happenings:
            match happening:
                case Send(to, message):
                    self._links.send(self.node, to, message)
                case Changed(engine, standing):
                    for watcher in self._watchers:
                        watcher.engine_changed(engine, standing)
                    self._changed.set()
                case Quiet(engine):
                    self._lose_all(engine, "it is silent", only_repeatable=True)
                case Lost(engine, why):
                    _log.warning("engine %s is lost: %s", engine, why)
                    self._lose_all(engine, why)
                    for watcher in self._watchers:
                        watcher.engine_lost(engine)
                    self._changed.set()

    def _lose_all(self, node: NodeId, why: str, *, only_repeatable: bool = False) -> None:
        for number, pending in list(self._pending.items()):
            if pending.node == node and (pending.is_repeatable or not only_repeatable):
                self._lose(number, why)

    def _lose(self, number: int, why: str) -> None:
        pending = self._pending.pop(number, None)
        self._streams.pop(number, None)
        if pending is not None:
            pending.lost(why)

    def _note_lacking(self, node: NodeId, lacking: Sequence[int], now: int) -> None:
        """An engine knows nothing of these requests. An answer may still be on its way, so it must say so twice."""
        for number in lacking:
            pending = self._pending.get(number)
            if pending is None or pending.node != node:
                continue
            if not pending.lacking_since_us:
                pending.lacking_since_us = now
            elif now - pending.lacking_since_us >= _ASK_AFTER_US:
                self._lose(number, "the request or its answer was lost on the way")

    # time

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_TICK_S, self._tick)
        self._perform(self.roster.tick(self._clock()))
        self._poll()

    def _poll(self) -> None:
        now = self._clock()
        due = self.roster.due_polls(now)
        if not due:
            return
        old: dict[NodeId, list[int]] = {node: [] for node in due}
        for number, pending in self._pending.items():
            if now - pending.sent_at_us >= _ASK_AFTER_US and len(old.get(pending.node, ())) < MAX_POLLED:
                old.setdefault(pending.node, []).append(number)
        for node in due:
            self._links.send(self.node, node, Poll(tuple(old[node])))


def _changes(message: Message) -> bool:
    """Whether it matters if it was carried out."""
    if isinstance(message, LogRequest):
        return isinstance(message.operation, Append | TrimBook | SetRetention)
    return not isinstance(message, AskCall)


def _after(trouble: BokiError, error: BokiError) -> BokiError:
    """The error as it is to be told when that trouble came before: a refusal is an engine's word for itself alone, and
    one that was asked before, and lost, may have carried it out.
    """
    if isinstance(trouble, ConnectionLost) and error.outcome == "not_applied":
        error.outcome = "unknown"
    return error


def _is_repeatable(operation: Operation) -> bool:
    """Whether it does no harm to ask two engines."""
    if isinstance(operation, Append):
        return all(span.key_tag is not None for span in Chunk(operation.chunk).groups())
    return not isinstance(operation, TrimBook | SetRetention)


def _failure_of(answer: Message) -> Failure | None:
    """Why the engine has not done what it was asked, if it has not."""
    failure = answer.answer if isinstance(answer, LogReply) else getattr(answer, "failure", None)
    return failure if isinstance(failure, Failure) else None
