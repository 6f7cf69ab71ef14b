"""What the gateway lets in, which engine gets each call, and when it stops waiting for an answer.

Everything that is in flight counts against a budget, in numbers and in bytes; what does not fit is refused at once,
with a time after which to come again, because a queue in front of a full system only adds to every caller's wait. A
call goes to the least busy engine that has its function; one without the index counts as twice as busy, because each
log operation there is one more way over the network. Of equals one whose node has a primary is taken, so what little
there is to do appends where the log is ordered. An engine whose node stops gets a call only if no other one takes it.
While no engine takes calls, because one is about to stop and the other has yet to start, calls that have not begun are
held, for a few seconds at most. The engine enforces the call's deadline; the gateway looks at it too, a grace later,
for the case that the engine's answer is lost.

Every call that is started ends exactly once: by `finish`, or by a `CallGivenUp` of `lose_engine` (its engine is gone)
or of `tick` (overdue, or held for too long). What comes later finds it gone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from boki.errors import CallLost, DeadlineExceeded, Overloaded, Unavailable
from boki.log.ids import NodeId
from boki.log.limits import KIB, MIB
from boki.log.operations import Failure
from boki.protocol.calls import Outcome

RETRY_AFTER_S = 1
STREAM_BYTES = 32 * KIB
"""What a subscription counts as while it holds no records: its connection and its write buffer."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be in flight through one gateway."""

    calls: int = 4096
    """Function calls that run or wait for their result."""
    requests: int = 4096
    """LogBook requests, but for those that wait."""
    polls: int = 4096
    """Requests that wait for a record, a message or a result: idle consumers leave room for those that do something."""
    streams: int = 1024
    """Subscriptions."""
    bytes_in_flight: int = 256 * MIB
    """Bodies as they arrive, answers until they are sent, and what subscriptions hold, together."""
    overdraft_bytes: int = 128 * MIB
    """What answers that cannot be had again (results of calls, popped messages) may hold beyond that."""
    stream_bytes: int = 128 * MIB
    """What subscriptions may hold of these, together, so that readers who stall leave room for calls."""
    grace_us: int = 1_000_000
    """How long after a call's deadline its engine's answer is still waited for."""
    hold_us: int = 5_000_000
    """How long a call may wait for an engine that takes calls while none does."""


@dataclass(frozen=True, slots=True)
class CallGivenUp:
    """The gateway waits for that call no more: this is what its caller is told."""

    token: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Standing:
    """What an engine that is up has said of itself, and what is thought of it."""

    running: int = 0
    """Calls that it has, those of other gateways included."""
    capacity: int = 1 << 30
    """This many calls it takes at once."""
    has_index: bool = True
    takes_calls: bool = True
    """False while it drains, or has not been heard of for a while."""
    functions: Container[str] | None = None
    """What it can run; None: whatever comes."""
    is_near: bool = False
    """Whether a primary shares its node, so that its appends cross one node less."""
    is_leaving: bool = False
    """Whether its node stops: what is begun there may be cut off."""


class Share:
    """The bytes that one HTTP request holds of the budget: its body as it arrives, then its answer until it is sent."""

    __slots__ = ("_core", "_is_answer", "_size_bytes")

    def __init__(self, core: GatewayCore) -> None:
        self._core = core
        self._size_bytes = 0
        self._is_answer = False

    def take(self, size_bytes: int) -> None:
        """Count bytes of the body that have arrived; `Overloaded` if there is no room for it."""
        self._core.take_bytes(size_bytes)
        self._size_bytes += size_bytes

    def exchange(self, size_bytes: int, *, is_repeatable: bool) -> None:
        """The body is done with, and this is the size of the answer. `Overloaded` if there is no room for it.

        One that cannot be had again (`is_repeatable` false) may use the overdraft, too.
        """
        self.release()
        take = self._core.take_bytes if is_repeatable else self._core.take_answer_bytes
        take(size_bytes)
        self._size_bytes = size_bytes
        self._is_answer = True
        self._core.answer_count += 1

    def release(self) -> None:
        """Give its bytes back. Repeatable."""
        self._core.bytes_in_flight -= self._size_bytes
        self._core.answer_count -= self._is_answer
        self._size_bytes = 0
        self._is_answer = False


@dataclass(slots=True)
class _Engine:
    node: NodeId
    standing: Standing
    call_count: int = 0
    last_start: int = 0

    @property
    def load(self) -> int:
        """How many calls it has, as far as is known: its own word may be a little old."""
        return max(self.call_count, self.standing.running)


@dataclass(slots=True)
class _Started:
    size_bytes: int
    deadline_us: int
    engine: _Engine | None = None
    refused_by: set[NodeId] = field(default_factory=set)
    """Engines that had it and did not begin it."""
    refusal: Failure | None = None
    """What the last of them said."""
    held_since_us: int = 0
    """Since when no engine has taken it; 0: one has."""


class GatewayCore:
    """Admission and routing. Times are microseconds since the epoch."""

    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = budget or Budget()
        self.is_draining = False
        self.request_count = 0
        self.poll_count = 0
        self.answer_count = 0
        self.stream_count = 0
        self.stream_bytes = 0
        self.bytes_in_flight = 0
        self._engines: dict[NodeId, _Engine] = {}
        self._calls: dict[str, _Started] = {}
        self._held: dict[str, None] = {}  # tokens, the oldest first
        self._start_count = 0
        self.make_room: Callable[[int], None] = lambda _: None
        """Called before bytes are refused, with how many are missing: it may end bodies that have stalled."""

    @property
    def call_count(self) -> int:
        """Calls in flight."""
        return len(self._calls)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight: a gateway that drains may stop."""
        return not (self._calls or self.request_count or self.poll_count or self.answer_count or self.stream_count)

    def engines(self) -> dict[NodeId, int]:
        """The live engines, and how many calls each has."""
        return {node: engine.call_count for node, engine in self._engines.items()}

    def note_engine(self, node: NodeId, standing: Standing) -> list[str]:
        """The engine is up, and this is how it stands now; which held calls are to be dispatched again."""
        engine = self._engines.get(node)
        if engine is None:
            self._engines[node] = _Engine(node, standing)
        else:
            engine.standing = standing
        if not standing.takes_calls or not self._held:
            return []
        for token in self._held:
            self._calls[token].refused_by.clear()
        return list(self._held)

    def lose_engine(self, node: NodeId) -> list[CallGivenUp]:
        """The engine is gone: the calls it had may have run in part, and no answer will come."""
        lost = self._engines.pop(node, None)
        if lost is None:
            return []
        failure = Failure.of(CallLost(f"engine {node} was lost while it had the call", engine=node))
        return [
            self._give_up(token, failure)
            for token in [token for token, call in self._calls.items() if call.engine is lost]
        ]

    def drain(self) -> None:
        """Refuse everything new from now on; what is in flight continues."""
        self.is_draining = True

    def start(self, token: str, size_bytes: int, deadline_us: int) -> None:
        """Let a call in; `dispatch` follows. `Overloaded` or `Unavailable` if it is refused."""
        if len(self._calls) >= self.budget.calls:
            raise Overloaded(
                f"{self.budget.calls} calls are in flight, as many as this gateway lets in",
                retry_after_s=RETRY_AFTER_S,
                limit=self.budget.calls,
            )
        self._refuse_if_draining()
        self.take_bytes(size_bytes)
        self._calls[token] = _Started(size_bytes, deadline_us)

    def dispatch(self, token: str, function: str, now_us: int, refusal: Failure | None = None) -> NodeId | None:
        """The engine that gets the call. None: no engine takes calls now, and the call is held until `note_engine`
        names it, or `tick` gives it up.

        Asked again, after that engine has refused the call without beginning it: another one. `Overloaded` if all have
        as many calls as they take; the call is still to be finished.
        """
        call = self._calls[token]
        call.refusal = refusal or call.refusal
        if call.engine is not None:
            call.engine.call_count -= 1
            call.refused_by.add(call.engine.node)
            call.engine = None
        engine = self._choose(function, call.refused_by)
        if engine is None:
            call.held_since_us = call.held_since_us or now_us
            self._held[token] = None
            return None
        self._held.pop(token, None)
        self._start_count += 1
        engine.last_start = self._start_count
        engine.call_count += 1
        call.engine = engine
        return engine.node

    def left_us(self, token: str, now_us: int) -> int:
        """How much time the call has left, at least a microsecond."""
        return max(self._calls[token].deadline_us - now_us, 1)

    def spare(self, token: str, now_us: int) -> None:
        """Do not give up the call yet: its client reads the result, and its engine tells the end behind that."""
        call = self._calls.get(token)
        if call is not None:
            call.deadline_us = max(call.deadline_us, now_us)

    def _choose(self, function: str, excluded: Container[NodeId]) -> _Engine | None:
        engines = [e for e in self._engines.values() if e.standing.takes_calls and e.node not in excluded]
        if not engines:
            return None
        # just after a deployment some may not have it yet; if none has it, any may say so
        engines = [e for e in engines if _has(e, function)] or engines
        free = [engine for engine in engines if engine.load < engine.standing.capacity]
        if not free:
            raise Overloaded(
                "every engine has as many calls as it takes",
                retry_after_s=RETRY_AFTER_S,
                limit=sum(engine.standing.capacity for engine in engines),
            )
        return min(free, key=_cost) if len(free) > 1 else free[0]

    def finish(self, token: str) -> bool:
        """The call's outcome is here: True if it is still waited for."""
        call = self._calls.pop(token, None)
        if call is None:
            return False
        self._held.pop(token, None)
        if call.engine is not None:
            call.engine.call_count -= 1
        self.bytes_in_flight -= call.size_bytes
        return True

    def begin_request(self, size_bytes: int) -> None:
        """Let a LogBook request in, or raise `Overloaded` or `Unavailable`. Each needs its `end_request`."""
        if self.request_count >= self.budget.requests:
            raise Overloaded(
                f"{self.budget.requests} LogBook requests are in flight, as many as this gateway lets in",
                retry_after_s=RETRY_AFTER_S,
                limit=self.budget.requests,
            )
        self._refuse_if_draining()
        self.take_bytes(size_bytes)
        self.request_count += 1

    def end_request(self, size_bytes: int) -> None:
        """A request that `begin_request` let in is answered."""
        self.request_count -= 1
        self.bytes_in_flight -= size_bytes

    def begin_poll(self) -> None:
        """Let in a request that waits, or raise `Overloaded` or `Unavailable`. Each needs its `end_poll`."""
        if self.poll_count >= self.budget.polls:
            raise Overloaded(
                f"{self.budget.polls} requests wait for what is to come, as many as this gateway lets in",
                retry_after_s=RETRY_AFTER_S,
                limit=self.budget.polls,
            )
        self._refuse_if_draining()
        self.poll_count += 1

    def end_poll(self) -> None:
        """A request that `begin_poll` let in is answered."""
        self.poll_count -= 1

    @contextmanager
    def admitted(self, size_bytes: int = 0, *, waits: bool = False) -> Iterator[None]:
        """Within the budget of requests, or of polls if it `waits`; `Overloaded` or `Unavailable` if there is no room.

        `size_bytes`: what it holds before it has an answer, but for its body, which counts by itself (`Share`).
        """
        if waits:
            self.begin_poll()
        else:
            self.begin_request(size_bytes)
        try:
            yield
        finally:
            if waits:
                self.end_poll()
            else:
                self.end_request(size_bytes)

    def begin_stream(self) -> None:
        """Let a subscription in, or raise `Overloaded` or `Unavailable`. Each needs its `end_stream`."""
        if self.stream_count >= self.budget.streams:
            raise Overloaded(
                f"{self.budget.streams} subscriptions are open, as many as this gateway lets in",
                retry_after_s=RETRY_AFTER_S,
                limit=self.budget.streams,
            )
        self._refuse_if_draining()
        self.hold_for_stream(STREAM_BYTES)
        self.stream_count += 1

    def end_stream(self) -> None:
        """A subscription that `begin_stream` let in has ended."""
        self.release_for_stream(STREAM_BYTES)
        self.stream_count -= 1

    @contextmanager
    def streaming(self, size_bytes: int) -> Iterator[None]:
        """Let in a stream that holds at most this many bytes, or raise `Overloaded` or `Unavailable`."""
        self.begin_stream()
        try:
            self.hold_for_stream(size_bytes)
            try:
                yield
            finally:
                self.release_for_stream(size_bytes)
        finally:
            self.end_stream()

    def hold_for_stream(self, size_bytes: int) -> None:
        """A subscription holds records that its reader has yet to take; `Overloaded` if there is no room for them."""
        if self.stream_bytes + size_bytes > self.budget.stream_bytes:
            raise Overloaded(
                f"subscriptions hold {self.stream_bytes} of {self.budget.stream_bytes} bytes that their readers have "
                f"not taken: {size_bytes} more do not fit now",
                retry_after_s=RETRY_AFTER_S,
                limit=self.budget.stream_bytes,
            )
        self.take_bytes(size_bytes)
        self.stream_bytes += size_bytes

    def release_for_stream(self, size_bytes: int) -> None:
        """What `hold_for_stream` let in is taken, or its reader is gone."""
        self.stream_bytes -= size_bytes
        self.bytes_in_flight -= size_bytes

    def tick(self, now_us: int) -> list[CallGivenUp]:
        """Give up the calls whose engine should have answered by now, and those that were held for too long."""
        limit = now_us - self.budget.grace_us
        overdue = [token for token, call in self._calls.items() if call.deadline_us < limit and token not in self._held]
        held = [token for token in self._held if self._is_held_too_long(self._calls[token], now_us)]
        late = Failure.of(DeadlineExceeded("the call's deadline passed, and its engine has not answered"))
        nobody = Failure.of(Unavailable("no engine is up that takes calls", retry_after_s=RETRY_AFTER_S))
        return [
            *(self._give_up(token, late) for token in overdue),
            *(self._give_up(token, self._calls[token].refusal or nobody) for token in held),
        ]

    def _is_held_too_long(self, call: _Started, now_us: int) -> bool:
        return now_us - call.held_since_us >= self.budget.hold_us or now_us >= call.deadline_us

    def _refuse_if_draining(self) -> None:
        if self.is_draining:
            raise Unavailable("this gateway is shutting down", retry_after_s=RETRY_AFTER_S)

    def take_answer_bytes(self, size_bytes: int) -> None:
        """The same for an answer that cannot be had again: it may use the overdraft."""
        most = self.budget.bytes_in_flight + self.budget.overdraft_bytes
        self._want(size_bytes, most)
        if self.bytes_in_flight + size_bytes > most:
            raise Overloaded(
                f"it was carried out, but {self.bytes_in_flight} of {most} bytes are in flight: its answer of "
                f"{size_bytes} bytes has no room now and is dropped",
                outcome="unknown",
                retryable=False,
                retry_after_s=RETRY_AFTER_S,
                limit=most,
            )
        self.bytes_in_flight += size_bytes

    def take_bytes(self, size_bytes: int) -> None:
        """Hold these bytes, or raise `Overloaded`. They are given back through `bytes_in_flight`."""
        self._want(size_bytes, self.budget.bytes_in_flight)
        if self.bytes_in_flight + size_bytes > self.budget.bytes_in_flight:
            raise Overloaded(
                f"{self.bytes_in_flight} of {self.budget.bytes_in_flight} bytes are in flight: "
                f"{size_bytes} more do not fit now",
                retry_after_s=RETRY_AFTER_S,
                limit=self.budget.bytes_in_flight,
            )
        self.bytes_in_flight += size_bytes

    def _want(self, size_bytes: int, most: int) -> None:
        missing_bytes = self.bytes_in_flight + size_bytes - most
        if missing_bytes > 0:
            self.make_room(missing_bytes)

    def _give_up(self, token: str, failure: Failure) -> CallGivenUp:
        self.finish(token)
        return CallGivenUp(token, Outcome(None, failure))


def _has(engine: _Engine, function: str) -> bool:
    functions = engine.standing.functions
    return functions is None or function in functions


def _cost(engine: _Engine) -> tuple[bool, int, bool, int]:
    """One that stays first, then the least busy; of equals, one near a primary, and of these the one that was idle
    longest.
    """
    standing = engine.standing
    burden = (engine.load + 1) * (1 if standing.has_index else 2)
    return standing.is_leaving, burden, not standing.is_near, engine.last_start
