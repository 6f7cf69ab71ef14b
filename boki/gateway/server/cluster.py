"""The engines of a cluster, as the gateway's `Backend`: calls and log operations go to them by messages.

Which engine is asked next, and what callers hear if engines refuse or are lost, is decided by `boki.protocol.asking`;
which engines are up is known to `boki.gateway.engine_registry`. A plain call belongs to one engine: if that is lost,
the call is `CallLost`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Any, Final, assert_never, cast

import msgspec

from boki.errors import BokiError, CallLost
from boki.gateway.backend import EngineWatcher, StreamControl
from boki.gateway.engine_registry import IDLE_POLL_US, Changed, EngineRegistry, Happening, Lost, Quiet
from boki.gateway.remote_stream import RemoteStream
from boki.gateway.server.cluster_deployments import ClusterDeployments
from boki.gateway.server.cluster_ledger import ClusterLedger
from boki.host.clock import beat_delay_s, now_us
from boki.host.links import NodeLinks
from boki.log.ids import NodeId
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.membership import Membership
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Answer, Failure, Operation
from boki.log.view import View
from boki.protocol.asking import (
    NO_DEADLINE_US,
    Asking,
    Ended,
    Question,
    Step,
    failure_of,
)
from boki.protocol.call_messages import (
    MAX_POLLED,
    AbandonRead,
    AskStatus,
    CallEnded,
    Load,
    LogReply,
    Poll,
    StartCall,
    StopCall,
    StreamChunk,
    TellFunctions,
    TellStatus,
)
from boki.protocol.calls import Call, FunctionInfo, ModuleInfo, Outcome, TakeChunk
from boki.protocol.effects import REST_US, Send, Token
from boki.protocol.messages import Message

_log = logging.getLogger("boki.gateway")

_TICK_S: Final = 0.1
_REST_S: Final = 0.25
"""Between ticks while nothing is asked."""
_CALM_S: Final = REST_US / 1_000_000
"""The same while all engines answer."""
_GRACE_US: Final = 1_000_000
"""An engine answers at the deadline; the gateway gives its answer this much longer to arrive."""
_ASK_AFTER_US: Final = 1_000_000
"""Requests that wait for this long are asked about: the request, or its answer, may be lost."""
_HOLD_US: Final = 5_000_000
"""How long a request may wait for an engine that takes it while each refuses it without beginning it."""
_STATUS_S: Final = 1.0
_GONE_S: Final = 600.0
"""A node that is registered no longer is told of for this long."""
_MAX_IN_FLIGHT: Final = 8192
"""Log operations and logged calls that may wait for one engine."""
_GATHERED: Final = 64
"""Workflows are given to the engine beside a primary while fewer requests of this gateway than this are there. Three
gateways together stay below the 256 calls that an engine runs at a time.
"""


_Ended = Callable[[Message | None, BokiError | None], None]
"""The token of a question: called once, with the message that ended it, if one did, and with what is to be raised."""


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
        idle_poll_us: int = IDLE_POLL_US,
    ) -> None:
        self.node = node
        self.registry = EngineRegistry(idle_poll_us=idle_poll_us)
        self.ledger = ClusterLedger(self.ask, self._prefer)
        self.deployments = ClusterDeployments(self, self.ask, self._until_running, limits)
        self._links = links
        self._loop = loop
        self._clock = clock
        self._watchers: list[EngineWatcher] = []
        self._membership = Membership(number=-1)
        self._gone: dict[NodeId, tuple[str, float]] = {}
        """Nodes that were registered a while ago and are not now: their roles, and since when."""
        self.asking = Asking(
            incarnation, self._choose, hold_us=_HOLD_US, grace_us=_GRACE_US, most_for_one=_MAX_IN_FLIGHT
        )
        self._streams: dict[int, RemoteStream] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rests = False
        self._changed = asyncio.Event()

    def start(self) -> None:
        """Take part: receive messages, and begin to poll."""
        self._links.attach(self.node, self.deliver)
        self._tick()

    def stop(self) -> None:
        """Take part no more; what is still waited for is lost."""
        self._links.detach(self.node)
        self._rests = False
        if self._timer is not None:
            self._timer.cancel()
        self._carry_out(self.asking.end_all("this gateway has stopped"))

    # what the gateway wants to know

    @property
    def ready(self) -> bool:
        """See `Backend`."""
        return self.registry.is_ready

    @property
    def functions(self) -> Mapping[str, FunctionInfo]:
        """See `Backend`."""
        return self.registry.functions

    @property
    def knows_functions(self) -> bool:
        """See `Backend`."""
        return self.registry.knows_functions(self._clock())

    @property
    def modules(self) -> Sequence[ModuleInfo]:
        """See `Backend`."""
        return self.registry.modules

    def watch(self, watcher: EngineWatcher) -> None:
        """See `Backend`."""
        self._watchers.append(watcher)
        for engine, standing in self.registry.standings():
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
            answer = await self.ask(
                lambda number, _left_us: AskStatus(number), _STATUS_S, is_repeatable=False, changes=False, only=node
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

        def ended(message: Message | None, error: BokiError | None) -> None:
            self._streams.pop(question.number, None)
            if isinstance(message, CallEnded):
                done(message.outcome)
            elif error is not None:
                lost = CallLost(f"engine {engine} was lost while it had the call: {error}", engine=engine)
                done(Outcome(None, Failure.of(lost)))

        question = Question(lambda number, _left_us: StartCall(number, call), NO_DEADLINE_US, ended, only=engine)
        steps = self._ask(question)
        control = RemoteStream(partial(self._links.send, self.node, engine), question.number, take)
        if take is not None:
            self._streams[question.number] = control
        self._carry_out(steps)
        return control

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.LogPort`."""
        reply, error = await self._end_of(
            lambda deadline_us, ended: Question.of_operation(operation, dict(positions), deadline_us, ended), timeout_s
        )
        if isinstance(reply, LogReply):
            merge_positions(positions, reply.positions)
        if error is not None:
            raise error
        assert isinstance(reply, LogReply) and not isinstance(reply.answer, Failure), "a failure is an error"
        return reply.answer

    async def ask(
        self,
        make: Callable[[int, int], Message],
        timeout_s: float,
        *,
        is_repeatable: bool,
        changes: bool,
        book: str = "",
        first: NodeId | None = None,
        only: NodeId | None = None,
    ) -> Message:
        """Ask an engine what `make(number, left_us)` makes, by the rules of `boki.protocol.asking`; its answer.

        `first`: that engine, if it is up; else the one that the book's operations go to. `only`: that node or none.
        Raises what the engine refuses it with, `ConnectionLost`, `DeadlineExceeded`, `Overloaded` or `Unavailable`.
        """
        answer, error = await self._end_of(
            lambda deadline_us, ended: Question(
                *(make, deadline_us, ended, is_repeatable, changes, book), first=first, only=only
            ),
            timeout_s,
        )
        if error is not None:
            raise error
        assert answer is not None, "nothing else ends without an error"
        return answer

    async def _end_of(
        self, question_of: Callable[[int, Token], Question], timeout_s: float
    ) -> tuple[Message | None, BokiError | None]:
        """Put a question, made of its deadline and a token, and wait for its end.

        Cancelled, a read that waits for records is given up where it is.
        """
        end: asyncio.Future[tuple[Message | None, BokiError | None]] = self._loop.create_future()

        def ended(message: Message | None, error: BokiError | None) -> None:
            if not end.done():
                end.set_result((message, error))

        question = question_of(self._clock() + int(timeout_s * 1e6), ended)
        self._carry_out(self._ask(question))
        try:
            return await end
        except asyncio.CancelledError:
            if question.wait_us and question.asked is not None:
                self._links.send(self.node, question.asked, AbandonRead(question.number))
            raise
        finally:
            self.asking.forget(question)

    def _choose(self, question: Question) -> NodeId | None:
        first = question.first
        if first is not None and first in self.registry.up and first not in question.tried:
            return first
        return self.registry.for_book(question.book, question.tried)

    def _prefer(self, call: Call) -> NodeId | None:
        """The engine that a workflow is to run at whose end this gateway waits for, if it matters.

        Workflows wait for their appends most of the time. Those of one engine share batches, and beside a primary they
        wait for one hop less; so they are spread only when many are there.
        """
        info = self.registry.functions.get(call.function)
        if info is None or not info.is_replayed:
            return None
        node = self.registry.near_primary(call.id)
        return node if node is not None and self.asking.count_at(node) < _GATHERED else None

    async def _until_changed(self, timeout_s: float) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    async def _until_running(self, number: int, timeout_s: float) -> dict[str, bool]:
        """Wait until all engines that are up run that version of the functions; which of them do."""
        until = self._loop.time() + timeout_s
        while True:
            running: dict[str, bool] = {node: at == number for node, at in self.registry.bundles().items()}
            left_s = until - self._loop.time()
            if all(running.values()) or left_s <= 0:
                return running
            await self._until_changed(min(left_s, _TICK_S))

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
        self._perform(self.registry.on_membership(membership, self._clock()))
        self._poll()

    def on_view(self, view: View) -> None:
        """A new term has begun."""
        self._perform(self.registry.on_primaries(view.primaries))

    def deliver(self, sender: NodeId, message: Any) -> None:
        """A message has come."""
        now = self._clock()
        match message:
            case Load():
                self._carry_out(self.asking.lack(sender, message.lacking, now, for_us=_ASK_AFTER_US))
                self._perform(self.registry.on_load(sender, message, now))
            case TellFunctions():
                self._perform(self.registry.on_functions(sender, message, now))
            case AskStatus(request):
                mine = {"node": self.node, "engines": self.registry.up, "in_flight": len(self.asking)}
                self._links.send(self.node, sender, TellStatus(request, msgspec.json.encode(mine)))
            case StreamChunk(number, chunk):
                if number in self._streams and self.asking.find(sender, number) is not None:
                    self._streams[number].deliver(chunk)
                else:
                    self._links.send(self.node, sender, StopCall(number))
            case Message():
                number = getattr(message, "request", 0)
                self._carry_out(self.asking.answer(sender, number, failure_of(message), now), message)

    def _carry_out(self, steps: Iterable[Step], message: Message | None = None) -> None:
        """Send what is asked, and hand what has ended to its caller, with the message that ended it."""
        for step in steps:
            match step:
                case Send(to, asked):
                    self._links.send(self.node, to, asked)
                case Ended(question, error):
                    cast("_Ended", question.token)(message, error)
                case _:
                    assert_never(step)

    def _perform(self, happenings: Iterable[Happening]) -> None:
        now = self._clock()
        for happening in happenings:
            match happening:
                case Send(to, message):
                    self._links.send(self.node, to, message)
                case Changed(engine, standing):
                    for watcher in self._watchers:
                        watcher.engine_changed(engine, standing)
                    self._changed.set()
                case Quiet(engine):
                    self._carry_out(self.asking.lose(engine, "it is silent", now, only_repeatable=True))
                case Lost(engine, why):
                    _log.warning("engine %s is lost: %s", engine, why)
                    self._carry_out(self.asking.lose(engine, why, now))
                    for watcher in self._watchers:
                        watcher.engine_lost(engine)
                    self._changed.set()
                case _:
                    assert_never(happening)
        self._carry_out(self.asking.look_again(now))

    # time

    def _ask(self, question: Question) -> list[Step]:
        steps = self.asking.ask(question, self._clock())
        if self._rests:
            self._await_tick()
        return steps

    def _await_tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rests = not len(self.asking)
        period_s = _TICK_S if not self._rests else _CALM_S if self.registry.is_calm else _REST_S
        self._timer = self._loop.call_later(beat_delay_s(self._loop.time(), period_s), self._tick)

    def _tick(self) -> None:
        self._await_tick()
        now = self._clock()
        self._perform(self.registry.tick(now))
        self._carry_out(self.asking.tick(now))
        self._poll()

    def _poll(self) -> None:
        now = self._clock()
        for node in self.registry.due_polls(now, is_idle=not len(self.asking)):
            old = self.asking.asked_before(node, now - _ASK_AFTER_US, MAX_POLLED)
            self._links.send(self.node, node, Poll(old))
