"""Logged calls: the code that engines run (`boki.books.calls`), over simulated engines, in virtual time.

Some processes ask for calls under keys: a gateway, or, as a function does, an engine; and again elsewhere when whoever
was asked is gone. A call's body appends a few records, so that it leaves traces of each of its starts. Some bodies fail
now and then, and run again as their policy says; some are suspended, a few times each, until a time or until a record
that their caller appends sooner or later; some calls are cancelled, wherever they are. Promised is:

- a key has one call, and a call has one outcome, whoever asks wherever, and one end in the log;
- what was accepted is known from then on, and ends, whatever happens to its engine;
- what is suspended is woken, once: no run begins twice;
- once a call was started again, here or elsewhere, nothing of the earlier start is appended any more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol

import msgspec

from boki.api.append_gatherer import AppendGatherer
from boki.books.calls.ledger import Finished
from boki.books.calls.logged_calls import LoggedCalls
from boki.books.calls.sleepers import Finish
from boki.books.calls.waiting import Owner
from boki.engine.core import EngineCore
from boki.errors import BokiError, FunctionFailed, NoSuchInvocation, WrongState
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import NodeId
from boki.log.membership import Membership
from boki.log.metalog import Positions
from boki.log.operations import Answer, Append, Done, Failure, Found, Operation, Read
from boki.protocol.calls import OVER, Call, InvocationState, Outcome, Payload, Suspension, WakeOn
from boki.retry import Retry
from boki.verify.histories.facts import Violation
from boki.verify.sim.clockwork import Clockwork
from boki.verify.sim.flow_work import WORKFLOWS, CallsOfEngine, ImpatientLog, context_of, run_on_engine
from boki.verify.sim.gateways import GatewayNode
from boki.verify.sim.loops import SimulatedLoop, answer_of
from boki.verify.sim.nodes import World
from boki.verify.sim.subscriptions import Subscriptions

BOOK: Final = "effects"
NEWS: Final = "news"
_STEPS: Final = 3
_CALL_US: Final = 5_000_000
_TIMEOUT_US: Final = 3_000_000
_RUNNING: Final = 64
_BY_GATEWAY: Final = 0.7
_LATER: Final = 0.4
_STATE_S: Final = 0.5
_FAILING: Final = "failing"
_FAILURES: Final = 0.5
_SLEEPING: Final = "sleeping"
_COMPUTING: Final = "computing"
_NAPS: Final = 4
_POLICY: Final = Retry(attempts=1_000, first_s=0.1, max_s=0.4)
_ZOMBIES: Final = 0.15
"""How often a workflow runs in a second worker as well, which its engine believes to be gone: a probability."""
_LATE: Final = 0.0
"""How often the one whose outcome counts then begins later, so that it is overtaken: a probability that tests set."""
_LATEST_S: Final = 0.03
_GRACE_S: Final = 0.5
"""An engine that is registered no more is soon presumed lost: wrongly, sometimes, which must do no harm."""


@dataclass(slots=True)
class Asked:
    """A call as its caller knows it: under which id it was accepted, and what was told of its end."""

    key: str
    call: Call
    ids: set[str] = field(default_factory=set)
    outcomes: set[bytes] = field(default_factory=set)
    is_answered: bool = False
    is_woken: bool = False
    """Whether the record that it waits for is there, if it is suspended."""
    unknown: str = ""
    """Who did not know of it after it was accepted."""


class CallLedger(Protocol):
    """What takes logged calls: `boki.gateway.backend.CallLedger`, or those of an engine."""

    async def accept(self, call: Call, *, key: str | None = None) -> str:
        """Log the call: its id."""

    async def call_once(self, call: Call, key: str) -> tuple[str, Outcome]:
        """Run the call and wait for its end."""

    async def state(self, invocation_id: str, wait_s: float = 0.0) -> InvocationState:
        """What is known of it."""

    async def cancel(self, invocation_id: str, life_us: int = 0) -> InvocationState:
        """End it."""


@dataclass(frozen=True, slots=True)
class Door:
    """Where one can ask for calls, and the loop of whoever answers there."""

    name: str
    loop: SimulatedLoop
    ledger: CallLedger


class EngineHost(Protocol):
    """What logged calls use of the simulated engine that runs them: `boki.verify.sim.engines.EngineNode`."""

    world: World
    clock: Clockwork
    name: NodeId
    incarnation: int
    loop: SimulatedLoop

    @property
    def engine(self) -> EngineCore | None:
        """Its core, once it is decided which index it begins from."""

    def now_us(self) -> int:
        """The time by its clock."""

    def submit(
        self, operation: Operation, positions: Positions, timeout_us: int, done: Callable[[Any, Positions], None]
    ) -> None:
        """Carry out an operation."""

    def abandon(self, done: Callable[[Any, Positions], None]) -> None:
        """Give up the read that was submitted with this `done`."""

    def watch(self, book: str, tag: str, min_seqnum: int, done: Callable[[Any, Positions], None]) -> None:
        """Wait for a record of that tag, for as long as it takes."""

    def fence(self, incarnation: int, timeout_us: int, done: Callable[[Any, Positions], None]) -> None:
        """Shut another incarnation of an engine out of the log."""


class LoggedEngine:
    """The logged calls of one incarnation of an engine."""

    def __init__(self, node: EngineHost) -> None:
        self.name = node.name
        self._node = node
        self._incarnation = node.incarnation
        self._is_dead = False
        self._is_used = node.world.options.logs_calls
        self.is_open = not self._is_used
        self.loop = node.loop
        self.subscriptions = Subscriptions(node, node.world.late_subscriptions.append)
        self.calls = LoggedCalls(
            self,
            self._run,
            me=Owner(node.name, node.incarnation),
            fence=self._fence,
            clock=node.now_us,
            grace_s=_GRACE_S,
            max_running=_RUNNING,
            tries=node.world.options.tries,
            replays=lambda function: function == _COMPUTING,
        )
        self._log = ImpatientLog(self, node.world.options.deadline_us)
        self._appends = AppendGatherer(self._log)

    def start(self) -> None:
        """The index is there, and everybody is known."""
        self.loop.create_task(self._start())

    async def _start(self) -> None:
        while True:
            with suppress(BokiError):
                await self.calls.start()
                self.is_open = True
                return
            await asyncio.sleep(0.1)

    def die(self) -> None:
        """The process is gone, with everything that it was doing."""
        self._is_dead = True
        self.is_open = self.calls._is_open = False  # noqa: SLF001 - what is cancelled begins nothing new

    def on_membership(self, membership: Membership) -> None:
        """Who is registered."""
        if self._is_used:
            self.loop.call_soon(self.calls.on_membership, membership)

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.LogPort`."""
        timeout_us = int(timeout_s * 1e6)
        return await self._await(lambda done: self._node.submit(operation, positions, timeout_us, done), positions)

    def watch(self, book: str, tag: str, min_seqnum: int, finish: Finish) -> None:
        """See `boki.books.calls.sleepers.WatchingPort`."""
        if not self._is_dead:
            self.subscriptions.add(book, tag, min_seqnum, finish)

    def unwatch(self, book: str, tag: str, finish: Finish) -> None:
        """See `boki.books.calls.sleepers.WatchingPort`."""
        self.subscriptions.remove(book, tag, finish)

    async def _await(self, begin: Callable[[Callable[..., None]], None], positions: Positions) -> Answer:
        begin = begin if not self._is_dead else lambda _done: None
        return await answer_of(self.loop, begin, positions, self._node.abandon)

    async def _fence(self, incarnation: int) -> None:
        answer = await self._await(lambda done: self._node.fence(incarnation, 10_000_000, done), {})
        assert isinstance(answer, Done)

    async def _run(self, call: Call) -> Outcome:
        if call.function in WORKFLOWS:
            return await self._run_workflow(call)
        if call.function == _COMPUTING:
            return await self._compute(call)
        if call.function != _SLEEPING:
            return await self._body(call)
        try:
            return await self._body(call)
        except BokiError as error:  # as a worker tells it: the run has begun
            return Outcome(None, Failure.of(FunctionFailed(error.message, error_type=type(error).__name__)))

    async def _run_workflow(self, call: Call) -> Outcome:
        clock = self._node.clock
        clock.note(f"{self._node.name} {'tries' if call.is_tried else 'runs'} {call.function} {call.id}")
        if call.is_tried:
            clock.sometimes("a workflow was tried before it was accepted")
            return await self._execute(call)
        if call.run > 1:
            clock.sometimes("a workflow went on in another run")
        if self._node.world.workflow_engines.setdefault(call.id, self.name) != self.name:
            clock.sometimes("a workflow was taken over by another engine")
        if clock.flow_rng.random() < _ZOMBIES:
            clock.sometimes("two executions of a workflow ran at once")
            self.loop.create_task(self._execute(call))
            if clock.flow_race_rng.random() < _LATE:  # else the other one would lose each race
                await asyncio.sleep(clock.flow_race_rng.random() * _LATEST_S)
        return await self._execute(call)

    async def _execute(self, call: Call) -> Outcome:
        """In a worker. One that has lost its engine may continue for a while: its outcome nobody wants to know."""
        calls = CallsOfEngine(self.calls)
        return await run_on_engine(context_of(call, self._log, self._appends, calls, self._node.now_us))

    async def _compute(self, call: Call) -> Outcome:
        """A body without an effect. Its result says who ran it, and in which call: two of one key would show."""
        clock = self._node.clock
        if call.is_tried:
            clock.sometimes("a call under a key was tried before it was accepted")
        if clock.call_compute_rng.random() < 0.2:  # for longer than a try may take
            await asyncio.sleep(clock.call_compute_rng.random() * 0.1)
        return Outcome(Payload("json", f'"{call.id}/{self._incarnation}/{call.run} at {clock.now_us}"'.encode()), None)

    async def _body(self, call: Call) -> Outcome:
        """The body: some records, each with who has started it. Its result says, too, so that two ends would show."""
        clock = self._node.clock
        clock.note(f"{self._node.name} runs call {call.id}")
        start = f"{call.id}/{self._incarnation}/{call.run}"
        for step in range(_STEPS):
            row = (f"{start}/{step}".encode(), ("effect",))
            await self.request(Append(BOOK, encode_chunk(BOOK, [Group([row], [], None)])), {}, _CALL_US / 1e6)
            await asyncio.sleep(clock.schedule_rng.random() * 0.2)
        if call.function == _SLEEPING and (nap := await self._nap(call)) is not None:
            return Outcome(None, None, {}, nap)
        if call.function == _FAILING and clock.call_trouble_rng.random() < _FAILURES:
            failed = FunctionFailed("it fails now and then", error_type="Now and then")
            return Outcome(None, Failure.of(failed))
        return Outcome(Payload("json", f'"{start} at {clock.now_us}"'.encode()), None)

    async def _nap(self, call: Call) -> Suspension | None:
        """What the call is suspended for; None if it has slept enough, or what it waits for is there."""
        clock, tag = self._node.clock, wake_tag(call.id)
        found = await self.request(Read(NEWS, tag, limit=1), {}, _CALL_US / 1e6)
        if isinstance(found, Found) and found.slabs:
            if call.run > 1:
                clock.sometimes("a suspended call was woken by a record")
            return None
        kind = clock.call_sleep_rng.random()
        if call.run > _NAPS or kind < 0.1:
            return None
        wake_us = self._node.now_us() + int(clock.call_sleep_rng.random() * 600_000) if kind < 0.6 else 0
        wakes = (WakeOn(NEWS, tag, 1),) if kind > 0.4 else ()
        if clock.call_sleep_rng.random() < 0.6:
            await asyncio.sleep(clock.call_sleep_rng.random())  # between the look and the suspension
        return Suspension(wake_us, wakes, "in the simulator")


def wake_tag(invocation_id: str) -> str:
    """The tag of the record that wakes a call."""
    return f"wake:{invocation_id}"


def doors_of(world: World, rng: Random) -> list[Door]:
    """Whom one could ask."""
    nodes = [node for node in world.nodes.values() if node.core is not None]
    gateways = [Door(node.name, node.loop, node.backend.ledger) for node in nodes if isinstance(node, GatewayNode)]
    if gateways and rng.random() < _BY_GATEWAY:
        return gateways
    return [Door(each.name, each.loop, each.calls) for each in open_engines(world)]


def open_engines(world: World) -> list[LoggedEngine]:
    """Those that run logged calls now."""
    nodes = [node for node in world.nodes.values() if node.core is not None]
    logged: list[LoggedEngine | None] = [getattr(node, "logged", None) for node in nodes]
    return [each for each in logged if each is not None and each.is_open]


class CallClients:
    """Those who ask for logged calls, one call after the other each."""

    def __init__(self, world: World, count: int) -> None:
        self._world = world
        self._clock = world.clock
        self._rng = world.clock.call_rng
        self._trouble_rng = world.clock.call_trouble_rng
        self.asked: list[Asked] = []
        self.is_over = False
        for _ in range(count):
            self._think()

    @property
    def open_count(self) -> int:
        """Calls whose end has not been told."""
        return sum(not asked.is_answered for asked in self.asked)

    def _think(self) -> None:
        self._clock.after(int(self._rng.random() * 400_000), self._begin)

    def _begin(self) -> None:
        if self.is_over:
            return
        number = len(self.asked)
        call = Call(f"{number + 1:032x}", "body", Payload("json", b"null"), BOOK, _CALL_US)
        trouble = self._trouble_rng.random() / self._world.options.call_trouble if self._has_trouble else 2.0
        if trouble < 1:
            call = msgspec.structs.replace(call, function=_FAILING, retry=_POLICY)
        sleeps = self._world.options.call_sleep
        if sleeps and call.function == "body" and self._clock.call_sleep_rng.random() < sleeps:
            call = msgspec.structs.replace(call, function=_SLEEPING, retry=_POLICY)
        if call.function == "body" and self._clock.call_compute_rng.random() < self._world.options.call_compute:
            call = msgspec.structs.replace(call, function=_COMPUTING)
        asked = Asked(f"call-{number}", call)
        self.asked.append(asked)
        self._ask(asked)
        if call.function == _SLEEPING:
            self._clock.after(int(self._clock.call_sleep_rng.random() * 1_500_000), self._wake, asked)
        if 0.5 < trouble < 1.5 and call.function != _COMPUTING:  # of those the log knows only one by its id
            self._clock.after(int(self._trouble_rng.random() * 800_000), self._cancel, asked)

    @property
    def _has_trouble(self) -> bool:
        return self._world.options.call_trouble > 0

    def _cancel(self, asked: Asked) -> None:
        """Have the call cancelled, by whomever answers first, unless its end has been told."""
        doors = [] if asked.is_answered else doors_of(self._world, self._trouble_rng)
        if doors:
            door = self._trouble_rng.choice(doors)
            self._clock.note(f"somebody asks {door.name} to cancel call {asked.key}")
            door.loop.create_task(self._call_off(door.ledger, asked))
        if not asked.is_answered:
            self._clock.after(_TIMEOUT_US if doors else 100_000, self._cancel, asked)

    async def _call_off(self, ledger: CallLedger, asked: Asked) -> None:
        try:
            state = await ledger.cancel(asked.call.id)
        except (NoSuchInvocation, WrongState):
            return
        except BokiError as error:
            self._clock.note(f"call {asked.key} is not cancelled: {error.code}")
        else:
            if state.attempts:
                self._clock.sometimes("a running call was cancelled")
            self._tell(asked, state.result, state.failure)

    def _wake(self, asked: Asked) -> None:
        """Append the record that a suspended call waits for, until some engine says that it is there."""
        if asked.is_woken:
            return
        engines = open_engines(self._world)
        if engines:
            engine = self._clock.call_sleep_rng.choice(engines)
            engine.loop.create_task(self._append_news(engine, asked))
        self._clock.after(_TIMEOUT_US if engines else 100_000, self._wake, asked)

    async def _append_news(self, engine: LoggedEngine, asked: Asked) -> None:
        row = (b"news", (wake_tag(asked.call.id),))
        with suppress(BokiError):
            await engine.request(Append(NEWS, encode_chunk(NEWS, [Group([row], [], None)])), {}, _CALL_US / 1e6)
            asked.is_woken = True

    def _ask(self, asked: Asked) -> None:
        if asked.is_answered:
            return
        doors = doors_of(self._world, self._rng)
        if doors:
            self._knock(self._rng.choice(doors), asked)
        # whoever was asked may die of it: then nobody answers, and another one is asked, under the same key
        self._clock.after(_TIMEOUT_US if doors else 100_000, self._ask, asked)

    def _knock(self, door: Door, asked: Asked) -> None:
        self._clock.note(f"somebody asks {door.name} for call {asked.key}")
        if asked.call.function == _COMPUTING:  # each request has an id of its own, and the key makes them one call
            asked.call = msgspec.structs.replace(asked.call, id=f"{self._clock.call_compute_rng.getrandbits(128):032x}")
        call = self._call_later if self._rng.random() < _LATER else self._call_once
        door.loop.create_task(call(door.ledger, asked))

    async def _call_once(self, ledger: CallLedger, asked: Asked) -> None:
        try:
            invocation, outcome = await ledger.call_once(asked.call, asked.key)
        except BokiError as error:
            self._clock.note(f"call {asked.key} is not told: {error.code}")
        else:
            asked.ids.add(invocation)
            self._tell(asked, outcome.result, outcome.failure)

    async def _call_later(self, ledger: CallLedger, asked: Asked) -> None:
        """Have it logged, and ask its outcome until it has ended."""
        invocation = ""
        try:
            invocation = await ledger.accept(asked.call, key=asked.key)
            asked.ids.add(invocation)
            while (state := await ledger.state(invocation, _STATE_S)).state not in OVER:
                self._clock.note(f"call {asked.key} is {state.state}")
        except NoSuchInvocation:
            asked.unknown = invocation
        except BokiError as error:
            self._clock.note(f"call {asked.key} is not told: {error.code}")
        else:
            self._tell(asked, state.result, state.failure)

    def _tell(self, asked: Asked, result: Payload | None, failure: Failure | None) -> None:
        asked.outcomes.add(result.data if result is not None else repr(failure).encode())
        self._clock.note(f"call {asked.key} has ended", result or failure)
        if not asked.is_answered:
            asked.is_answered = True
            if self._rng.random() < 0.3:  # asked once more, later, perhaps elsewhere: it must hear the same
                self._clock.after(int(self._rng.random() * 2_000_000), self._ask_again, asked)
            self._think()

    def _ask_again(self, asked: Asked) -> None:
        doors = doors_of(self._world, self._rng)
        if doors and not self.is_over:
            self._knock(self._rng.choice(doors), asked)

    def check(self, effects: list[str], ends: list[Finished]) -> list[Violation]:
        """What was told, and what the bodies and the engines that ran them have left in the log, in its order."""
        found: list[Violation] = []
        for invocation, count in Counter(end.id for end in ends).items():
            if count > 1:
                found.append(Violation("a call has one end", f"{invocation} has {count} ends in the log"))
        for asked in self.asked:
            if len(asked.ids) > 1:
                found.append(Violation("a key has one call", f"{asked.key} is {sorted(asked.ids)}"))
            if len(asked.outcomes) > 1:
                found.append(Violation("a call ends once", f"{asked.key} ended as {sorted(asked.outcomes)}"))
            if asked.unknown:
                found.append(Violation("accepted calls are known", f"nobody knows {asked.unknown} of {asked.key}"))
            if not asked.is_answered:
                found.append(Violation("accepted calls end", f"{asked.key} has not ended"))
        starts: dict[str, list[tuple[int, int]]] = {}
        sleeping = {asked.call.id for asked in self.asked if asked.call.function == _SLEEPING}
        for effect, count in Counter(effects).items():
            if count > 1 and effect.partition("/")[0] in sleeping:  # others are offered again when the log refuses them
                found.append(Violation("a run begins once", f"{effect} (call/engine/run/step) is there {count} times"))
        for effect in effects:
            invocation, incarnation, run, _ = effect.split("/")
            runs = starts.setdefault(invocation, [])
            of_run = int(incarnation), int(run)
            if of_run in runs[:-1]:
                text = f"(engine, run) {of_run} went on with call {invocation} after {runs[-1]} began"
                found.append(Violation("who is fenced appends nothing", text))
            elif of_run not in runs:
                runs.append(of_run)
        failed = [end for end in ends if end.runs.errors.get("Now and then")]
        if any(len({engine for engine, _ in starts.get(end.id, ())}) > 1 for end in failed):
            self._clock.sometimes("a call that had failed ran again at another engine")
        if any(len({engine for engine, _ in runs}) > 1 for runs in starts.values()):
            self._clock.sometimes("a call was taken over by another engine")
        asleep = [end for end in ends if end.function == _SLEEPING and not end.runs.errors]
        if any(len({engine for engine, _ in starts.get(end.id, ())}) > 1 for end in asleep):
            self._clock.sometimes("a suspended call was taken over by another engine")
        return found
