"""The checker of message queues: from what producers and consumers were told, and what is found in the end.

Payloads are unique. A push that was not acknowledged may have happened; everything else is exact: each message is taken
by one op alone, each op is always given the same message, one consumer's messages of a queue come in the queue's order,
and what is committed together with an ack happens once for each message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Pushed:
    """A producer has pushed, or tried to: `id` is what it was told, "" if it never was."""

    queue: str
    payload: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """A consumer's op was given a message for good. The rows of one consumer are in the order in which it was told."""

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


def find_lost_and_doubled(queue: str, pushed: Iterable[Pushed], found: Sequence[str]) -> Iterator[str]:
    """Violations of exactly-once: `found` are the payloads of the queue that have come out, all of them, in the end."""
    tried = {push.payload for push in pushed if push.queue == queue}
    known = {push.payload for push in pushed if push.queue == queue and push.id}
    counted = Counter(found)
    yield from _told(f"{queue}: messages came out more than once", [each for each, n in counted.items() if n > 1])
    yield from _told(f"{queue}: acknowledged messages never came out", sorted(known - counted.keys()))
    yield from _told(f"{queue}: messages came out that nobody has pushed", sorted(counted.keys() - tried))


def find_wrong_ops(taken: Sequence[Taken]) -> Iterator[str]:
    """Violations of what an op promises, and of the queue's order as one consumer sees it."""
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
        if before is not None and before.op != row.op and row.place <= before.place:
            yield f"{row.queue}: {row.consumer} was given {row.id} after {before.id}"
        last[row.queue, row.consumer] = row


def _told(what: str, payloads: Sequence[str]) -> Iterator[str]:
    if payloads:
        more = f" and {len(payloads) - _NAMED} more" if len(payloads) > _NAMED else ""
        yield f"{what}: {', '.join(payloads[:_NAMED])}{more}"
