"""The conditions of a message in a group: which follow which."""

from __future__ import annotations

from random import Random

import pytest

from boki.libs.bokiqueue import groups
from boki.libs.bokiqueue.records import (
    ACK,
    BURY,
    EXTEND,
    GIVE_BACK,
    NACK,
    PURGE,
    REDRIVE,
    RELEASE,
    Credit,
    Grant,
    Settle,
    Take,
)
from tests.libs.bokiqueue.test_state import SECOND, Stream


def test_messages_move_between_conditions_as_the_table_says() -> None:
    """Every move of `MOVES` happens, and no other one does."""
    seen: set[tuple[int, int]] = set()
    move = groups.Group._move

    def noted(self: groups.Group, aside: groups.Aside, to: int, due_us: int = 0) -> None:
        seen.add((aside.status, to))
        move(self, aside, to, due_us)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups.Group, "_move", noted)
        for seed in range(30):
            drive(Random(seed), Stream(max_deliveries=seed % 3))
        late = Stream()
        late.push(2, keys=["k", "k"])
        assert late.take(lease_s=9) == [0]
        assert late.settle(NACK, 0, late.token)
        assert late.take() == [0]
        popped = late.token
        late.act(kept_from=popped, takes=[Take("", 1, 9 * SECOND)])
        late.act(kept_from=popped, settles=[Settle("", GIVE_BACK, [(0, popped)])])
    assert seen == {(was, to) for was, following in groups.MOVES.items() for to in following}


def drive(random: Random, stream: Stream) -> None:
    """Anything that may become of messages."""
    popped: list[tuple[int, int]] = []
    for _ in range(60):
        stream.now_us += random.choice([0, 0, 1, 5]) * SECOND
        step = random.choice(["push", "push", "take", "take", "pop", "settle", "settle", "fence", "grant"])
        if step == "push":
            keys = [random.choice(["", "a"]) for _ in range(2)]
            stream.push(2, keys=keys, delay_us=random.choice([0, 2 * SECOND]), ttl_us=random.choice([0, 60 * SECOND]))
        elif step == "grant":
            stream.number += 1
            stream.append(Grant(0, b"gone", 1, [], [], [], 0, [Credit("", 0, 3)]))
        elif step == "take":
            stream.take(2, lease_s=3)
        elif step == "pop":
            popped += [(pos, stream.token + 10) for pos in stream.take(2)]
            back = [Settle("", GIVE_BACK, [(pos, stream.token)]) for pos, _ in popped[-2:]]
            stream.act(settles=random.choice([[], back]), kept_from=stream.token)
        elif "" in stream.state.groups:
            if step == "fence":
                stream.fence()
            asides = [*stream.state.groups[""].aside.items()]
            for pos, aside in random.sample(asides, min(len(asides), 2)) if step == "settle" else ():
                verb = random.choice([ACK, NACK, EXTEND, RELEASE, BURY, REDRIVE, PURGE])
                stream.settle(verb, pos, aside.token, random.choice([0, 2]))
