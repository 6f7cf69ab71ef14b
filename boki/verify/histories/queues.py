"""The checkers of message queues: from what producers and consumers were told, and what is found in the end.

Payloads are unique. A push that was not acknowledged may have happened; everything else is exact: each message is taken
by one op alone, each op is always given the same message, one consumer's messages of a queue come in the queue's order,
and what is committed together with an ack happens once for each message. A lease holds until it has run out by the
log's time or its consumer gives it up, and it holds the messages of the same group key, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

BURIED: Final = "buried: "
"""With this the reasons begin that consumers give for messages which they bury."""
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Pushed:
    """A producer has pushed, or tried to: `id` is what it was told, "" if it never was."""

    queue: str
    payload: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """A consumer's op was given a message permanently. The rows of one consumer are in the order in which it was
    told.
    """

    queue: str
    consumer: str
    op: str
    payload: str
    id: str

    @property
    def place(self) -> tuple[int, int]:
        """Where the message stands in its queue."""
        seqnum, _, index = self.id.partition("-")
        return int(seqnum), int(index)


@dataclass(slots=True)
class Leased:
    """A consumer was given a message under a lease. Times by the log's clock; `due_us`: not to be given before.

    `token` is where in the log it was given. `is_given_up` is set before the consumer asks for the lease's end, by
    whatever means: from then on it may end at any time.
    """

    queue: str
    payload: str
    id: str
    shard: int
    token: int
    taken_us: int
    until_us: int
    due_us: int = 0
    is_delayed: bool = False
    key: str = ""
    is_given_up: bool = False
    is_done: bool = False
    """The consumer was told that its ack, or its commit, has ended the message."""

    @property
    def place(self) -> tuple[int, int]:
        """Where the message stands in its queue."""
        seqnum, _, index = self.id.partition("-")
        return int(seqnum), int(index)


@dataclass(slots=True)
class Endings:
    """The outcome of leased messages, by payload. Of one that nobody knows the end of, nothing stands here."""

    results: list[str] = field(default_factory=list)
    """Found in the end: what was appended together with an ack."""
    committed: set[str] = field(default_factory=set)
    """Whose consumer was told that its effects are there."""
    acked: list[str] = field(default_factory=list)
    """Whose consumer was told that the ack counts."""
    maybe_acked: list[str] = field(default_factory=list)
    """Whose consumer has not heard the outcome of its ack, once for each time."""
    dead: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Found in the end: dead letters, with the reason, and how often they were given."""


def find_lost_and_doubled(
    queue: str, pushed: Iterable[Pushed], found: Sequence[str], unheard: int = 0
) -> Iterator[str]:
    """Violations of exactly-once: `found` are the payloads of the queue that have come out, all of them, in the end.

    `unheard`: this many pops without an op came to no end, each of which may have taken a message with it.
    """
    tried = {push.payload for push in pushed if push.queue == queue}
    known = {push.payload for push in pushed if push.queue == queue and push.id}
    counted = Counter(found)
    yield from _told(f"{queue}: messages came out more than once", [each for each, n in counted.items() if n > 1])
    lost = sorted(known - counted.keys())
    yield from _told(f"{queue}: acknowledged messages never came out", lost if len(lost) > unheard else [])
    yield from _told(f"{queue}: messages came out that nobody has pushed", sorted(counted.keys() - tried))


def find_wrong_ops(taken: Sequence[Taken], *, is_ordered: bool = True) -> Iterator[str]:
    """Violations of what an op promises, and of the queue's order as one consumer sees it.

    `is_ordered`: nobody pops without an op. A message that such a pop took and that nobody got goes back, and comes
    before all that is untouched, but after what others have taken meanwhile.
    """
    given: dict[tuple[str, str], str] = {}
    takers: dict[tuple[str, str], str] = {}
    last: dict[tuple[str, str], Taken] = {}
    for row in taken:
        first = given.setdefault((row.queue, row.op), row.payload)
        if first != row.payload:
            yield f"{row.queue}: op {row.op} was given {first}, and then {row.payload}"
        taker = takers.setdefault((row.queue, row.payload), row.op)
        if taker != row.op:
            yield f"{row.queue}: {row.payload} was given to op {taker} and to op {row.op}"
        before = last.get((row.queue, row.consumer))
        if is_ordered and before is not None and before.op != row.op and row.place <= before.place:
            yield f"{row.queue}: {row.consumer} was given {row.id} after {before.id}"
        last[row.queue, row.consumer] = row


def find_wrong_leases(leased: Iterable[Leased]) -> Iterator[str]:
    """Leases that overlap, messages of one key out of order or two at a time, given before they are due, or once done.

    Who has lost a lease can end nothing, so a message that was done under one was not given under a later one.

    Of two messages of one key neither of which was delayed, the later one is given only when the earlier one is done.
    """
    rows = sorted(leased, key=lambda row: row.token)
    held: dict[tuple[str, ...], list[Leased]] = defaultdict(list)
    for row in rows:
        held[row.queue, row.id].append(row)
        if row.key:
            held[row.queue, str(row.shard), row.key].append(row)
        if row.taken_us < row.due_us:
            yield f"{row.queue}: {row.payload} was given {row.due_us - row.taken_us} µs before it was due"
    for same in held.values():
        for before, after in pairwise(same):
            if after.taken_us < before.until_us and not before.is_given_up:
                text = f"{after.payload} was given at {after.token}, while {before.payload} was leased since"
                yield f"{after.queue}: {text} {before.token} for {before.until_us - after.taken_us} µs more"
            if before.is_done and after.id == before.id:
                text = f"{after.payload} was given at {after.token}, and was done under the lease of"
                yield f"{after.queue}: {text} {before.token}"
            if after.place < before.place and not (after.is_delayed or before.is_delayed):
                text = f"{after.payload} ({after.id}) of key {after.key} was given after {before.payload}"
                yield f"{after.queue}: {text} ({before.id})"


def find_wrong_endings(queue: str, pushed: Sequence[Pushed], endings: Endings, max_deliveries: int) -> Iterator[str]:
    """Messages of a queue without exactly one end: done with effects, acked, or a dead letter that says why.

    `max_deliveries`: a message is no dead letter before it was given so often, unless a consumer has buried it.
    """
    known = {push.payload for push in pushed if push.queue == queue and push.id}
    results, acked = Counter(endings.results), Counter(endings.acked)
    ends = Counter(results.keys()) + Counter(acked.keys()) + Counter(endings.dead.keys())
    yield from _told(f"{queue}: effects happened more than once", [each for each, n in results.items() if n > 1])
    yield from _told(f"{queue}: acks counted more than once", [each for each, n in acked.items() if n > 1])
    yield from _told(f"{queue}: messages ended in two ways", [each for each, n in ends.items() if n > 1])
    yield from _told(f"{queue}: committed effects are not there", sorted(endings.committed - results.keys()))
    yield from _told(
        f"{queue}: acknowledged messages have no end", sorted(known - ends.keys() - set(endings.maybe_acked))
    )
    tried = {push.payload for push in pushed if push.queue == queue}
    yield from _told(f"{queue}: messages ended that nobody has pushed", sorted(ends.keys() - tried))
    for payload, (reason, deliveries) in endings.dead.items():
        if not reason:
            yield f"{queue}: dead letter {payload} does not say why"
        if not reason.startswith(BURIED) and deliveries < max_deliveries:
            yield f"{queue}: {payload} became a dead letter after {deliveries} of {max_deliveries} deliveries: {reason}"


def find_torn_effects(queue: str, results: Sequence[str], passed_on: Sequence[str]) -> Iterator[str]:
    """Records and messages that were committed with the same acks, of which only some are there."""
    if sorted(passed_on) != sorted(results):
        yield f"{queue}: {len(results)} results and {len(passed_on)} messages passed on, which must be the same"


def _told(what: str, payloads: Sequence[str]) -> Iterator[str]:
    if payloads:
        more = f" and {len(payloads) - _NAMED} more" if len(payloads) > _NAMED else ""
        yield f"{what}: {', '.join(payloads[:_NAMED])}{more}"
