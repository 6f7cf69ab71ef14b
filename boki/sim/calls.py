"""Logged calls: the code that engines run (`boki.engine.calls`), over simulated engines, in virtual time.

Some processes ask for calls under keys: a gateway, or, as a function does, an engine; and again elsewhere when whoever
was asked is gone. A call's body appends a few records, so that it leaves traces of each of its starts. Some bodies fail
now and then, and run again as their policy says; some calls are cancelled, wherever they are. Promised is:

- a key has one call, and a call has one outcome, whoever asks wherever, and one end in the log;
- what was accepted is known from then on, and ends, whatever becomes of its engine;
- once another engine has started a call again, nothing of the earlier start is appended any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from boki.calls import OVER, Call, InvocationState, Outcome, Payload
from boki.engine.calls.ledger import Finished, Owner
from boki.engine.calls.logged_calls import LoggedCalls
from boki.errors import BokiError, FunctionFailed, NoSuchInvocation, WrongState
from boki.histories.facts import Violation
from boki.log.chunk import Group, encode_chunk
from boki.log.membership import Membership
from boki.log.metalog import Positions
from boki.log.operations import Answer, Append, Done, Failure, Operation
from boki.retry import Retry
from boki.sim.gateways import GatewayNode
from boki.sim.loops import SimulatedLoop, answer_of

if TYPE_CHECKING:
    from boki.sim.engines import EngineNode
    from boki.sim.nodes import World

BOOK: Final = "effects"
_STEPS: Final = 3
_CALL_US: Final = 5_000_000
_PATIENCE_US: Final = 3_000_000
_RUNNING: Final = 64
_BY_GATEWAY: Final = 0.7
_LATER: Final = 0.4
_STATE_S: Final = 0.5
_FAILING: Final = "failing"
_FAILURES: Final = 0.5
_POLICY: Final = Retry(attempts=1_000, first_s=0.1, max_s=0.4)
_GRACE_S: Final = 0.5
"""An engine that is registered no more is soon taken for lost: wrongly, sometimes, which must do no harm."""


@dataclass(slots=True)
class Asked:
    """A call as its caller knows it: under which id it was accepted, and what was told of its end."""

    key: str
    call: Call
    ids: set[str] = field(default_factory=set)
    outcomes: set[bytes] = field(default_factory=set)
    is_answered: bool = False
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

    async def cancel(self, invocation_id: str) -> InvocationState:
        """End it."""


@dataclass(frozen=True, slots=True)
class _Door:
    """Where one can ask for calls, and the loop of whoever answers there."""

    name: str
    loop: SimulatedLoop
    ledger: CallLedger


class _Story(logging.Handler):
    """What the code says in its log is part of the story; what it says of its own bugs is one."""

    def __init__(self, world: World, who: str) -> None:
        super().__init__(logging.INFO)
        self._world = world
        self._who = who

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._world.clock.note(f"{self._who}: {text}")
        if record.exc_info is not None and not isinstance(record.exc_info[1], BokiError):
            self._world.raised.append(f"{self._who}: {text}: {record.exc_info[1]!r}")


@contextmanager
def heard(world: World, name: str, who: str) -> Iterator[None]:
    """Let the run hear what is said to the logger of that name; the story knows it as `who`."""
    logger, story = logging.getLogger(name), _Story(world, who)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(story)
    try:
        yield
    finally:
        logger.removeHandler(story)
        logger.propagate = propagated


class LoggedEngine:
    """The logged calls of one life of an engine."""

    def __init__(self, node: EngineNode) -> None:
        self.name = node.name
        self._node = node
        self._incarnation = node.incarnation
        self._is_dead = False
        self._is_used = bool(node.world.options.calls)
        self.is_open = not self._is_used
        self.loop = node.loop
        self.calls = LoggedCalls(
            self,
            self._run,
            me=Owner(node.name, node.incarnation),
            fence=self._fence,
            clock=node.now_us,
            grace_s=_GRACE_S,
            max_running=_RUNNING,
        )

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
        """See `boki.runtime.port.LogPort`."""
        timeout_us = int(timeout_s * 1e6)
        return await self._await(lambda done: self._node.submit(operation, positions, timeout_us, done), positions)

    async def _await(self, begin: Callable[[Callable[..., None]], None], positions: Positions) -> Answer:
        return await answer_of(self.loop, begin if not self._is_dead else lambda _done: None, positions)

    async def _fence(self, incarnation: int) -> None:
        answer = await self._await(lambda done: self._node.fence(incarnation, 10_000_000, done), {})
        assert isinstance(answer, Done)

    async def _run(self, call: Call) -> Outcome:
        """The body: some records, each with who has started it. Its result says, too, so that two ends would show."""
        clock = self._node.clock
        clock.note(f"{self._node.name} runs call {call.id}")
        start = f"{call.id}/{self._incarnation}"
        for step in range(_STEPS):
            row = (f"{start}/{step}".encode(), ("effect",))
            await self.request(Append(BOOK, encode_chunk(BOOK, [Group([row], [], None)])), {}, _CALL_US / 1e6)
            await asyncio.sleep(clock.schedule_rng.random() * 0.2)
        if call.function == _FAILING and clock.call_trouble_rng.random() < _FAILURES:
            failed = FunctionFailed("it fails now and then", error_type="Now and then")
            return Outcome(None, Failure.of(failed))
        return Outcome(Payload("json", f'"{start} at {clock.now_us}"'.encode()), None)


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
        asked = Asked(f"call-{number}", call)
        self.asked.append(asked)
        self._ask(asked)
        if 0.5 < trouble < 1.5:
            self._clock.after(int(self._trouble_rng.random() * 800_000), self._cancel, asked)

    @property
    def _has_trouble(self) -> bool:
        return self._world.options.call_trouble > 0

    def _cancel(self, asked: Asked) -> None:
        """Have the call cancelled, by whomever answers first, unless its end has been told."""
        doors = [] if asked.is_answered else self._doors(self._trouble_rng)
        if doors:
            door = self._trouble_rng.choice(doors)
            self._clock.note(f"somebody asks {door.name} to cancel call {asked.key}")
            door.loop.create_task(self._call_off(door.ledger, asked))
        if not asked.is_answered:
            self._clock.after(_PATIENCE_US if doors else 100_000, self._cancel, asked)

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

    def _doors(self, rng: Random) -> list[_Door]:
        """Whom one could ask."""
        nodes = [node for node in self._world.nodes.values() if node.core is not None]
        gateways = [_Door(node.name, node.loop, node.backend.ledger) for node in nodes if isinstance(node, GatewayNode)]
        if gateways and rng.random() < _BY_GATEWAY:
            return gateways
        logged = [getattr(node, "logged", None) for node in nodes]
        return [_Door(each.name, each.loop, each.calls) for each in logged if each is not None and each.is_open]

    def _ask(self, asked: Asked) -> None:
        if asked.is_answered:
            return
        doors = self._doors(self._rng)
        if doors:
            self._knock(self._rng.choice(doors), asked)
        # whoever was asked may die of it: then nobody answers, and another one is asked, under the same key
        self._clock.after(_PATIENCE_US if doors else 100_000, self._ask, asked)

    def _knock(self, door: _Door, asked: Asked) -> None:
        self._clock.note(f"somebody asks {door.name} for call {asked.key}")
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
        """Have it logged, and ask what became of it until it has ended."""
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
        doors = self._doors(self._rng)
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
        starts: dict[str, list[int]] = {}
        for effect in effects:
            invocation, incarnation, _ = effect.split("/")
            lives = starts.setdefault(invocation, [])
            life = int(incarnation)
            if life in lives[:-1]:
                text = f"engine incarnation {life} went on with call {invocation} after incarnation {lives[-1]} began"
                found.append(Violation("who is fenced appends nothing", text))
            elif life not in lives:
                lives.append(life)
        if any(end.runs.errors.get("Now and then") and len(starts.get(end.id, ())) > 1 for end in ends):
            self._clock.sometimes("a call that had failed ran again at another engine")
        if any(len(lives) > 1 for lives in starts.values()):
            self._clock.sometimes("a call was taken over by another engine")
        return found
