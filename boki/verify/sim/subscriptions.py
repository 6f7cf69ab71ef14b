"""C11 of a promise machine, as an invariant of each simulated engine: what is settled takes no subscriptions.

A suspended call subscribes to tags: the end of a child, a message, the end of a lock's holder. A tag that has such a
record already is settled, and answers the subscription at once; one that is settled later ends it. A subscription that
stands although its record is in the engine's index waits for what has been, and its call may sleep forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from boki.books.calls.sleepers import Finish
from boki.engine.core import EngineCore
from boki.engine.watches import _all
from boki.log.ids import MAX_SEQNUM, NodeId
from boki.log.metalog import Positions
from boki.log.operations import Answer
from boki.verify.sim.clockwork import Clockwork
from boki.verify.sim.loops import SimulatedLoop

SETTLED: Final = "what is settled takes no subscriptions"

Done = Callable[[Answer, Positions], None]


class WatchingEngine(Protocol):
    """What subscriptions use of a simulated engine: `boki.verify.sim.engines.EngineNode`."""

    clock: Clockwork
    name: NodeId
    loop: SimulatedLoop

    @property
    def engine(self) -> EngineCore | None:
        """Its core, once it is decided which index it begins from."""

    def watch(self, book: str, tag: str, min_seqnum: int, done: Done) -> None:
        """Wait for a record of that tag, for as long as it takes."""


class _Standing(NamedTuple):
    min_seqnum: int
    done: Done


class Subscriptions:
    """The subscriptions of the suspended calls of one incarnation of an engine. `tell` is told what is wrong."""

    def __init__(self, node: WatchingEngine, tell: Callable[[str], None]) -> None:
        self._node = node
        self._tell = tell
        self._standing: dict[tuple[str, str, Finish], _Standing] = {}

    def add(self, book: str, tag: str, min_seqnum: int, finish: Finish) -> None:
        """Call `finish` once, soon after the tag has a record at or above `min_seqnum`."""
        key = book, tag, finish
        loop = self._node.loop
        is_answered = False

        def done(answer: Answer, positions: Positions) -> None:
            nonlocal is_answered
            is_answered = True
            self._standing.pop(key, None)
            loop.call_soon(finish, answer, positions)

        self._standing[key] = _Standing(min_seqnum, done)
        self._node.watch(book, tag, min_seqnum, done)
        if is_answered:
            self._node.clock.sometimes("a record was there before its call was suspended")
        elif self._is_settled(book, tag, min_seqnum):
            self._tell(f"{self._node.name} took a subscription to {tag} of {book} from {min_seqnum} on, which it has")

    def remove(self, book: str, tag: str, finish: Finish) -> None:
        """Nobody waits for that any more. Repeatable."""
        standing = self._standing.pop((book, tag, finish), None)
        if standing is not None and self._node.engine is not None:
            self._node.engine.watches.remove(book, tag, standing.done)

    def has(self, book: str, tag: str, finish: Finish) -> bool:
        """Whether `finish` is going to be called, by a watch of the engine for what may come."""
        standing, engine = self._standing.get((book, tag, finish)), self._node.engine
        if standing is None or engine is None:
            return False
        watched = _all(engine.watches._rows.get(book, {}).get(tag))  # noqa: SLF001 - nothing else needs them
        return any(watch.token is standing.done for watch in watched)

    def find_unreachable(self) -> Iterator[str]:
        """Subscriptions that stand when everything has come, for records behind the next one: no wait leads there."""
        for (book, tag, _), standing in self._standing.items():
            engine = self._node.engine
            if engine is None:
                continue
            known = max(engine.index.last(book, each) for each in (None, tag))
            trimmed = max(engine.index.floor(book, each) for each in (None, tag))
            if standing.min_seqnum > max(known + 1, trimmed, 1):
                where = f"{tag} of {book} from {standing.min_seqnum} on"
                yield f"{self._node.name} waits for {where}, which ends at {known}"

    def find_settled(self) -> Iterator[str]:
        """Subscriptions that stand at a quiet moment, though what they wait for is there."""
        for (book, tag, _), standing in self._standing.items():
            if self._is_settled(book, tag, standing.min_seqnum):
                yield f"{self._node.name} still waits for {tag} of {book} from {standing.min_seqnum} on, which it has"

    def _is_settled(self, book: str, tag: str, min_seqnum: int) -> bool:
        engine = self._node.engine
        return engine is not None and len(engine.index.page(book, tag, min_seqnum, MAX_SEQNUM, 1)) > 0
