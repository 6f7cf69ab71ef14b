"""The workload: clients with sessions, keys, conditions, trims and child calls; each writes down what it sees.

Half of them come through a gateway, each time any, with their token: as log operations, or by calling a function that
does it. The others are calls that run on one engine and speak to its core directly; when that engine dies they die with
it, and a new call begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import log
from typing import Any, Final

import msgspec

from boki.errors import BokiError
from boki.log.chunk import Chunk, Group, encode_chunk
from boki.log.ids import MAX_SEQNUM
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Append, Appended, Done, Found, Get, Operation, Read, SetAuxdata, Sync, TrimBook
from boki.verify.histories.history import (
    Appending,
    Call,
    Condition,
    Getting,
    History,
    Ordered,
    Reading,
    Refused,
    Request,
    Result,
    Seen,
    Shown,
    Syncing,
    Told,
    Trimming,
    Written,
    payload_name,
)
from boki.verify.sim.engines import EngineNode
from boki.verify.sim.gateways import GatewayNode
from boki.verify.sim.nodes import World

OPERATIONS: Final = (
    "append",
    "keyed",
    "conditional",
    "many",
    "read",
    "tail",
    "get",
    "sync",
    "child",
    "poll",
    "trim",
)
WIDE: Final = ("bounded", "since", "pair", "follow", "annotate")
"""What only some seeds ask for: bounded pages, times, two conditions, pages by their cursor, and auxiliary data."""
COUNTED_TAG: Final = "!counted"
"""The tag whose counts `Options.counted` seeds name."""
_CALM: Final = ("append", "append", "read", "tail")
"""What is asked for when liveness is demanded: nothing that may be refused."""


_BY_CALL: Final = 0.2
"""So often a client of a gateway has a function do it, on any engine: its session goes along, and comes back."""


@dataclass(slots=True)
class Shared:
    """What all clients of a run know of each other. `orders`: keyed appends that were made, to be made again."""

    history: History
    orders: list[tuple[str, Appending]] = field(default_factory=list)
    payloads: int = 0
    problems: list[str] = field(default_factory=list)
    """Auxiliary data that was another record's."""
    is_calm: bool = False
    is_over: bool = False


class Client:
    """One client, one operation at a time."""

    def __init__(self, world: World, shared: Shared, number: int, gateways: list[GatewayNode]) -> None:
        self.world = world
        self.clock = world.clock
        self.rng = world.clock.work_rng
        self.shared = shared
        self.number = number
        self.ok_count = 0
        """Operations that were done, since it was last set to 0."""
        self.append_count = 0
        """Those of them that were appends, and of which it was told."""
        self.open_call: Call | None = None
        self._count = 0
        self._gateways = gateways if number % 2 == 0 else []
        self._gateway: GatewayNode | None = None
        self._engine: EngineNode | None = None
        self._engine_life = 0
        self._session = ""
        self._sessions = 0
        self._parent: tuple[str, Positions] | None = None
        self._child_steps = 0
        self._positions: Positions = {}
        self._book = ""
        self._known: dict[str, list[int]] = {}
        self._last: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}
        """Per book, how many records the tag with counts has had, as far as it knows."""
        self._again: tuple[str, Appending] | None = None
        self._times: dict[str, int] = {}
        self._cursors: dict[tuple[str, str | None], int] = {}
        options = world.options
        self._names = [name for name in OPERATIONS for _ in range(options.mix.get(name, 1))] or ["append"]
        self._names += list(WIDE) * options.wide + ["counted"] * options.counted
        self._new_session()
        self._think()

    # sessions

    def _new_session(self) -> None:
        self._sessions += 1
        self._session = f"client-{self.number}.{self._sessions}"
        self._positions = {}
        self._parent = None
        self._again = None

    def _choose_engine(self) -> bool:
        """A call needs an engine that is ready; its session ends with that engine's incarnation."""
        engine = self._engine
        if engine is not None and engine.core is not None and engine.incarnation == self._engine_life:
            return not engine.is_paused
        ready = [
            node
            for node in self.world.nodes.values()
            if isinstance(node, EngineNode) and node.core is not None and node.is_ready
        ]
        if not ready:
            return False
        self._engine = self.rng.choice(ready)
        self._engine.on_death.append(self._on_death)
        self._engine_life = self._engine.incarnation
        self._new_session()
        return True

    def _think(self) -> None:
        options = self.world.options
        pause_us = options.pause_us * (1 + self._count // options.slows_after_operations)
        delay_us = int(-log(1.0 - self.rng.random()) * pause_us) + 1
        self.clock.after(delay_us, self._act)

    # acting

    def _act(self) -> None:
        if self.shared.is_over:
            return
        if self._gateways:
            # any of them: a session is its token, wherever it is handed in
            self._gateway = self.rng.choice(self._gateways)
        if not (self._gateways or self._choose_engine()) or (self._gateway is not None and self._gateway.core is None):
            self._think()
            return
        if self._parent is not None:
            self._child_steps -= 1
            if self._child_steps < 0:
                self._return()
        elif self._gateway is not None and self.rng.random() < 0.03:
            self._new_session()
        if self._again is not None:
            book, request = self._again
            self._again = None
            self._call(book, request)
            return
        name = self.rng.choice(_CALM if self.shared.is_calm else self._names)
        if name == "child":
            self._begin_child()
            name = "read"
        self._book = f"book-{self.rng.randrange(self.world.options.books)}"
        self._call(self._book, getattr(self, f"_make_{name}")())

    def _begin_child(self) -> None:
        if self._parent is None:
            self._parent = (self._session, dict(self._positions))
            self._sessions += 1
            child = f"client-{self.number}.{self._sessions}"
            self.shared.history.fork(self._session, child, self.clock.now_us)
            self._session = child
            self._child_steps = self.rng.randint(1, 3)

    def _return(self) -> None:
        assert self._parent is not None
        parent, positions = self._parent
        self.shared.history.join(self._session, parent, self.clock.now_us)
        merge_positions(self._positions, positions)
        self._session, self._parent = parent, None

    # what to ask for

    def _tag(self) -> str:
        return tag_name(self.rng.randrange(self.world.options.tags))

    def _written(self, tag: str | None = None) -> Written:
        self.shared.payloads += 1
        tags = [tag or self._tag()]
        if self.rng.random() < 0.2:
            tags.append(self._tag())
        return Written(f"{self.number}-{self.shared.payloads}", tuple(dict.fromkeys(tags)))

    def _make_append(self) -> Request:
        return Appending((self._written(),))

    def _make_many(self) -> Request:
        return Appending(tuple(self._written() for _ in range(self.rng.randint(2, 4))))

    def _make_keyed(self) -> Request:
        mine = [request for book, request in self.shared.orders[-20:] if book == self._book]
        if mine and self.rng.random() < 0.3:
            return self.rng.choice(mine)
        request = Appending((self._written(),), key=f"key-{self.shared.payloads}")
        self.shared.orders.append((self._book, request))
        return request

    def _make_conditional(self) -> Request:
        tag = self._tag()
        last = self._last.get((self._book, tag), 0)
        return Appending((self._written(tag),), when=(Condition(tag, last),))

    def _make_read(self) -> Request:
        known = self._known.get(self._book, [])
        start = self.rng.choice(known) if known and self.rng.random() < 0.7 else 0
        tag = self._tag() if self.rng.random() < 0.5 else None
        return Reading(tag, start, limit=self.rng.choice((1, 5, 50, 500)), fresh=self.rng.random() < 0.2)

    def _make_tail(self) -> Request:
        tag = self._tag() if self.rng.random() < 0.6 else None
        limit = self.rng.choice((1, 1, 10))
        return Reading(tag, limit=limit, backward=True, stop=MAX_SEQNUM, fresh=self.rng.random() < 0.3)

    def _make_poll(self) -> Request:
        known = self._known.get(self._book)
        return Reading(None, known[-1] + 1 if known else 0, limit=10)

    def _make_bounded(self) -> Request:
        """A page between two records, in either direction."""
        known = self._known.get(self._book) or [0]
        start, stop = sorted((self.rng.choice(known), self.rng.choice(known) + self.rng.randint(0, 2)))
        tag = self._tag() if self.rng.random() < 0.5 else None
        return Reading(tag, start, stop, self.rng.choice((1, 10)), backward=self.rng.random() < 0.5)

    def _make_since(self) -> Request:
        return Reading(self._tag(), limit=20, since_us=self._times.get(self._book, 0) + self.rng.randint(-1, 1))

    def _make_pair(self) -> Request:
        """Two conditions, the second of which does not hold as often as it does; half of them under a key."""
        tags = (self._tag(), self._tag())
        when = [Condition(tag, self._last.get((self._book, tag), 0)) for tag in dict.fromkeys(tags)]
        if len(when) > 1 and self.rng.random() < 0.5:
            when[1] = Condition(tags[1], self.rng.choice(self._known.get(self._book) or [1]))
        records = tuple(self._written(tags[0]) for _ in range(self.rng.randint(1, 3)))
        if self.rng.random() < 0.5:
            return Appending(records, tuple(when))
        request = Appending(records, tuple(when), key=f"key-{self.shared.payloads}")
        self.shared.orders.append((self._book, request))
        return request

    def _make_counted(self) -> Request:
        """Appends that name their place by a count, now and then one that names none, and trims of what they count.

        Some of the trims forget that there was ever anything: what is counted before that must not count after it.
        """
        known = self._known.get(self._book)
        chance = self.rng.random()
        if known and chance < 0.15:
            return Trimming(self.rng.choice(known) + 1, COUNTED_TAG, forgets=chance < 0.1)
        records = tuple(self._written(COUNTED_TAG) for _ in range(self.rng.choice((1, 1, 2))))
        if chance < 0.25:
            return Appending(records)
        return Appending(records, (Condition(COUNTED_TAG, count=self._counts.get(self._book, 0)),))

    def _make_follow(self) -> Request:
        """The next page of a tag, or of the book, as a subscriber asks for it."""
        tag = self._tag() if self.rng.random() < 0.8 else None
        start = self._cursors.setdefault((self._book, tag), 0)
        return Reading(tag, start, limit=self.rng.choice((1, 10)), wait_us=self.rng.choice((0, 200_000)))

    def _make_annotate(self) -> Request:
        """Auxiliary data beside a record, which is then read."""
        known = self._known.get(self._book)
        if not known:
            return Reading()
        seqnum = self.rng.choice(known)
        target = self._gateway or self._engine
        assert target is not None
        data = _annotation(seqnum)
        target.submit(SetAuxdata(self._book, seqnum, data), dict(self._positions), 1_000_000, lambda *_: None)
        return Getting(seqnum)

    def _make_get(self) -> Request:
        known = self._known.get(self._book)
        return Getting(self.rng.choice(known)) if known else Reading()

    def _make_sync(self) -> Request:
        return Syncing()

    def _make_trim(self) -> Request:
        known = self._known.get(self._book)
        before = MAX_SEQNUM if self.rng.random() < 0.1 else self.rng.choice(known) if known else 1
        tag = self._tag() if self.rng.random() < 0.5 else None
        if tag is None and self.rng.random() < 0.1:
            return Trimming(MAX_SEQNUM, everything=True)
        return Trimming(before, tag)

    # asking

    def _call(self, book: str, request: Request) -> None:
        timeout_us = int(self.world.options.deadline_us * (0.3 + self.rng.random()))
        if isinstance(request, Reading) and not (request.backward or request.fresh or request.wait_us):
            wait_us = min(timeout_us, self.rng.choice((0, 0, self.world.options.poll_us)))
            request = msgspec.structs.replace(request, wait_us=wait_us)
        operation = operation_of(book, request, self.world.options.payload_bytes)
        self._count += 1
        now_us = self.clock.now_us
        call = self.shared.history.begin(self._session, book, request, now_us, now_us + timeout_us, self._positions)
        self.open_call = call
        self.clock.note(f"{self._session} asks", request)

        def done(answer: Any, positions: Positions) -> None:
            if self.open_call is call:
                self._done(call, answer, positions)

        if self._gateway is not None and self.rng.random() < _BY_CALL:
            self._gateway.call(operation, dict(self._positions), timeout_us, done)
            return
        target = self._gateway or self._engine
        assert target is not None
        target.submit(operation, dict(self._positions), timeout_us, done)

    def _on_death(self) -> None:
        """A call dies with its engine: nobody is there to be answered."""
        call, self.open_call = self.open_call, None
        if call is None:
            return
        call.is_abandoned = True
        if isinstance(call.request, Appending) and call.request.key is not None:
            again = (call.book, call.request)
            self._new_session()
            self._again = again
        self._think()

    # being answered

    def _done(self, call: Call, answer: Any, positions: Positions) -> None:
        self.open_call = None
        result = result_of(call.request, answer)
        if isinstance(answer, Found):
            self.shared.problems += _foreign_annotations(answer)
        if isinstance(answer, Appended) and answer.rejected and answer.rejected[0].seqnums:
            self.clock.sometimes("a key was used again")
        History.end(call, result, self.clock.now_us, positions)
        self.clock.note(f"{call.session} is told {type(result).__name__}", result)
        merge_positions(self._positions, positions)
        self._learn(call, result)
        self._think()

    def _learn(self, call: Call, result: Result) -> None:
        known = self._known.setdefault(call.book, [])
        match result:
            case Ordered(seqnums):
                self.ok_count += 1
                self.append_count += 1
                known += seqnums
                assert isinstance(call.request, Appending)
                for seqnum, written in zip(seqnums, call.request.records, strict=True):
                    self._note_last(call.book, written.tags, seqnum)
                for condition in call.request.when:
                    if condition.is_counted:
                        self._counts[call.book] = condition.count + len(call.request.records)
            case Shown(records):
                self.ok_count += 1
                self._note_page(call, result)
                for record in records[-3:]:
                    known.append(record.seqnum)
                    self._note_last(call.book, record.tags, record.seqnum)
            case Told():
                self.ok_count += 1
            case Refused():
                self._on_refused(call, result)
        del known[:-30]

    def _on_refused(self, call: Call, refused: Refused) -> None:
        if not isinstance(call.request, Appending):
            return
        if refused.actual_count >= 0:
            was_forgotten = refused.actual_count < max(c.count for c in call.request.when)
            self.clock.sometimes(
                "a tag began to count from 0 again" if was_forgotten else "an append that named a count lost a race"
            )
            self._counts[call.book] = refused.actual_count
        elif refused.code == "condition_failed":
            self.clock.sometimes("a conditional append lost a race")
            for condition in call.request.when:
                self._last[call.book, condition.tag] = refused.actual_seqnum
        elif call.request.key is not None and refused.outcome == "unknown":
            self._again = (call.book, call.request)

    def _note_page(self, call: Call, page: Shown) -> None:
        request = call.request
        if page.records:
            self._times[call.book] = page.records[-1].time_us
        if isinstance(request, Reading) and self._cursors.get((call.book, request.tag)) == request.start:
            self._cursors[call.book, request.tag] = page.next_start

    def _note_last(self, book: str, tags: tuple[str, ...], seqnum: int) -> None:
        for tag in tags:
            self._last[book, tag] = max(seqnum, self._last.get((book, tag), 0))


def operation_of(book: str, request: Request, payload_bytes: int) -> Operation:
    """What a client asks for, as engines and gateways take it. Payloads are filled up to this many bytes."""
    match request:
        case Appending(records, when, key):
            rows = [(record.payload.encode().ljust(payload_bytes, b"."), record.tags) for record in records]
            expects = [condition.expect() for condition in when]
            return Append(book, encode_chunk(book, [Group(rows, expects, key)]))
        case Reading(tag, start, stop, limit, backward, fresh, since_us, wait_us):
            return Read(book, tag, start, min(stop, MAX_SEQNUM), limit, backward, wait_us, fresh, since_us)
        case Getting(seqnum):
            return Get(book, seqnum)
        case Trimming(before, tag, everything, forgets):
            return TrimBook(book, before, tag, everything, (tag,) if forgets and tag is not None else ())
        case Syncing():
            return Sync(book)


def result_of(request: Request, answer: Any) -> Result:
    """An engine's answer as a history has it."""
    match answer:
        case Appended(first_seqnum, rejected):
            assert isinstance(request, Appending)
            if not rejected:
                return Ordered(tuple(range(first_seqnum, first_seqnum + len(request.records))))
            if rejected[0].seqnums:
                return Ordered(tuple(rejected[0].seqnums))
            return Refused("condition_failed", "not_applied", rejected[0].actual_seqnum, rejected[0].actual_count)
        case Found():
            return Shown(read_found(answer), answer.next_start, answer.is_end, answer.first_seqnum)
        case Done():
            return Told()
        case BokiError():
            return Refused(answer.code, answer.outcome)
    raise AssertionError(f"an engine answered {answer!r}")


def _annotation(seqnum: int) -> bytes:
    return f"beside {seqnum}".encode()


def _foreign_annotations(found: Found) -> list[str]:
    return [
        f"{seqnum} came with {data!r}"
        for slab in found.slabs
        for seqnum, data in slab.aux.items()
        if data != _annotation(seqnum)
    ]


def tag_name(number: int) -> str:
    """The tag of that number; one of them is spared by trims of whole books."""
    return f"!tag-{number}" if number == 3 else f"tag-{number}"


def read_found(found: Found) -> tuple[Seen, ...]:
    """The records of a page, without the filling of their payloads."""
    return tuple(
        Seen(seqnum, *written, slab.time_us)
        for slab in found.slabs
        for seqnum, written in zip(memoryview(slab.seqnums).cast("q"), _written_in(slab.chunk), strict=True)
    )


@lru_cache(maxsize=1_000)
def _written_in(chunk: bytes) -> list[tuple[str, tuple[str, ...]]]:
    """Payload and tags of a chunk's records: many readers see the same bytes."""
    decoded = Chunk(chunk)
    records = decoded.records(range(decoded.count), 0)
    return [(payload_name(record.data.rstrip(b".")), record.tags) for record in records]
