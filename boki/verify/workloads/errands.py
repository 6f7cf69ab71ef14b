"""Workflows that tell whether workflows keep their promises: deployed by `boki chaos`, simulated by `boki sim`.

An errand does deeds: steps that leave two records each, one as often as the step's body runs and one under the step's
key. A deed's record says what the errand had come to before it, and its value is the seqnum of that record, so another
run of the body is another value: if two executions of an errand ever disagreed, some deed would show it.

This file stands on the public API alone: a cluster loads it as any module of functions.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

import msgspec

from boki import Retry
from boki.libs.bokiflow import WouldDeadlock, flow, step, workflow
from boki.libs.bokiflow.storing import FlowTransaction

BOOK: Final = "errands"
DEEDS: Final = "deeds"
DONE, KEYED = "done", "keyed"
"""Tags of `DEEDS`: a record for each run of a step's body, and one for each `step.key`."""
ITEM: Final = "item"
UNDO: Final = "undo"
_TRYING: Final = Retry(attempts=1_000, first_s=0.1, max_s=0.4)


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """What an errand is to do in each of its rounds, and how far it has come."""

    rounds: int = 1
    items: int = 0
    """Signals that it takes in each round."""
    handles: bool = False
    """Whether a handler takes them, at any time, or the body, when it comes to it."""
    nap_s: float = 0.0
    has_child: bool = False
    is_endless: bool = False
    """Whether it waits for its cancellation in the end."""
    round: int = 0
    taken: list[int] = []
    said: list[int] = []
    """The value of each deed of the errand itself."""


class Deed(msgspec.Struct, frozen=True):
    """What a record of `DEEDS` says."""

    errand: str
    label: str
    before: list[int]
    """What the errand had come to when it began this."""


@step(retry=_TRYING)
async def deed(errand: str, label: str, before: list[int]) -> int:
    """Leave both records; the seqnum of the one that each run of this leaves."""
    book = step.ctx.logbook_named(DEEDS)
    data = msgspec.json.encode(Deed(errand, label, before))
    seqnum = await book.append(data, [DONE])
    await book.append(data, [KEYED], key=f"deed {step.key}")
    return seqnum


@step(pure=True)
async def total(values: list[int]) -> int:
    """What takes no effect, and no record of its own."""
    return sum(values)


class Misread(Exception):
    """The store does not hold what the errand has written, or has written it twice."""


async def keep_accounts(order: Errand) -> int:
    """Count this round in an object of all errands, and move something between two others of which the sum is 0.

    What is returned is what other errands change: each execution must see the same.
    """
    seen: int = await flow.store.read("east", default=0)
    count = await flow.store.object("rounds").increment([flow.id])
    if count != order.round + 1 or await flow.store.read("rounds", [flow.id]) != count:
        raise Misread(f"round {order.round} was counted as {count}")
    await put_round(order)

    async def move(txn: FlowTransaction) -> None:
        east, west = [await txn.object(name).increment("", by) for name, by in (("east", 1), ("west", -1))]
        if east + west:
            raise Misread(f"east has {east} and west {west}")

    await flow.store.run(move)
    return seen


async def put_round(order: Errand) -> None:
    """Put an object of this errand alone, and one of all errands, neither of which is read for that."""
    own = f"round:{flow.id}"
    if (before := await flow.store.read(own, default=0)) != order.round:
        raise Misread(f"round {order.round} found {before} in its object")
    await flow.store.write(own, order.round + 1)
    await flow.store.write("latest", [flow.id, order.round])
    if (found := await flow.store.read(own)) != order.round + 1:
        raise Misread(f"round {order.round} has put {order.round + 1}, and reads {found}")


async def change(key: str, token: int) -> None:
    """A read and a write of their own, which two locks guard: no other errand comes in between."""
    seen = await flow.store.read("turns", default=[0, {}])
    if seen[1].get(key, 0) >= token:
        raise Misread(f"lock {key} was granted at {token}, and before at {seen[1][key]}")
    await flow.sleep(0.02)
    turns = [seen[0] + 1, {**seen[1], key: token}]
    if not await flow.store.cond_write("turns", turns, expected=seen if seen[0] else None):
        raise Misread(f"turn {turns[0]} was taken by another errand, which held both locks, too")


async def take_turn() -> None:
    """Change what two locks guard. They are taken in any order, and again if that would deadlock."""
    one, other = flow.random().sample(("left", "right"), 2)
    while True:
        try:
            async with flow.lock(one):
                await flow.sleep(0.2)
                async with flow.lock(other) as held:
                    await change(other, held.token)
                return
        except WouldDeadlock:
            continue


@workflow
async def chore(order: Errand) -> int:
    """The child of an errand."""
    if order.is_endless:
        flow.compensate(deed, flow.id, UNDO, [])
        await flow.receive("never")
    await flow.sleep(order.nap_s)
    return await deed(flow.id, f"chore {order.round}", [])


@workflow
async def errand(order: Errand) -> Errand:
    """Deeds one after the other and side by side, a timer, signals, a child, and then the next round."""
    taken = list(order.taken)
    wanted = order.items * (order.round + 1)
    if order.handles:
        flow.on_signal(ITEM, taken.append)
    if order.is_endless:
        flow.compensate(deed, flow.id, UNDO, [])
        await flow.start(chore, order, id=f"{flow.id}/chore", parent_close="cancel")
    first = await deed(flow.id, f"{order.round} first", [len(taken), *order.said])
    napping = asyncio.create_task(flow.sleep(order.nap_s))
    both = await asyncio.gather(*(deed(flow.id, f"{order.round} {side}", [first, len(taken)]) for side in "ab"))
    await napping
    if order.has_child:
        both.append(await flow.call(chore, order))
    if order.handles:
        await flow.wait_for(lambda: len(taken) >= wanted)
    else:
        for _ in range(order.items):
            taken.append(await flow.receive(ITEM))
    if order.is_endless:
        await flow.receive("never")
    summed = await total([first, *both])
    seen = await keep_accounts(order)
    await take_turn()
    await flow.lock("end")  # left with the body
    last = await deed(flow.id, f"{order.round} last", [summed, seen, *taken])
    said = [*order.said, first, *both, last]
    # a copy, as whatever is handed over: a handler that came too late would still change the list itself
    done = msgspec.structs.replace(order, round=order.round + 1, taken=list(taken), said=said)
    if done.round < done.rounds:
        flow.continue_as_new(done)
    return done


def draw_errand(rng: Random) -> Errand:
    """An errand of any kind."""
    is_endless = rng.random() < 0.25
    return Errand(
        rounds=rng.choice((1, 2, 3)),
        items=rng.choice((0, 1, 2)),
        handles=rng.random() < 0.5,
        nap_s=round(rng.choice((0.0, 0.2, 1.0)) * rng.random(), 3),
        has_child=rng.random() < 0.3 and not is_endless,
        is_endless=is_endless,
    )
