"""What is remembered of those who take is bounded, and the same for everybody."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from boki import BokiError
from boki.libs.bokiqueue import Queue, folds, sessions
from boki.libs.bokiqueue.following import following
from boki.libs.bokiqueue.lines import Asked, Outstanding
from boki.libs.bokiqueue.records import ACK, GIVE_BACK, Act, Settle, Take
from boki.libs.bokiqueue.sessions import Given
from boki.libs.bokiqueue.state import ShardState
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process
from tests.libs.bokiqueue.test_state import SECOND, Stream


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few acts reach them."""
    for name, bound in {"MAX_TAKERS": 20, "MAX_TAKEN": 60, "MAX_LONG_TAKEN": 24}.items():
        monkeypatch.setattr(sessions, name, bound)


def remembered(stream: Stream) -> int:
    """For how many messages it is known who has them, twice if they may be given back."""
    return sum(1 for _ in stream.state.takers.deliveries())


def taken_by_many(stream: Stream, count: int, pause_s: int) -> None:
    """This many processes take two messages each, permanently, and end."""
    for number in range(count):
        stream.push(2)
        stream.number = 0
        stream.act(b"%d" % number, takes=[Take("", 2)])
        stream.now_us += pause_s * SECOND


def test_processes_that_take_once_and_end_leave_little_behind() -> None:
    """However many they are: of the last ones it is known what they were given, of some more that they have counted."""
    for pause_s, bound, oldest in ((0, 60, 85), (10, 24, 94), (120, 24, 94)):
        stream = Stream(reload_every=7)
        taken_by_many(stream, 100, pause_s)
        assert remembered(stream) == bound
        given = stream.state.takers.last
        assert len(given) <= 20
        assert [int(taker) for taker, one in given.items() if not one.is_forgotten] == list(range(oldest, 100))


def test_what_is_forgotten_is_not_counted_twice_and_not_given_back() -> None:
    """A repetition of the act changes nothing, and its messages stay taken."""
    stream = Stream(reload_every=1)
    taken_by_many(stream, 15, pause_s=61)
    assert stream.state.takers.last[b"3"].is_forgotten
    stream.push(1)
    assert stream.append(Act(0, b"3", 1, takes=[Take("", 2)])) is None
    token = next(seqnum for seqnum, _, record in stream.records if isinstance(record, Act) and record.taker == b"3")
    stream.number = 1
    back = stream.act(b"3", settles=[Settle("", GIVE_BACK, [(6, token)])], kept_from=token)
    assert back.settles == [[False]]
    assert stream.take(9) == [30]


def test_the_last_act_is_remembered_however_much_it_was_given() -> None:
    """Whoever asked has not heard of it yet."""
    stream = Stream()
    taken_by_many(stream, 5, pause_s=0)
    stream.push(500)
    stream.number = 0
    stream.act(b"last", takes=[Take("", 500)])
    assert remembered(stream) == 1_000
    assert not stream.state.takers.last[b"last"].is_forgotten


def test_the_bounds_are_reached_in_all_folds_at_the_same_records() -> None:
    """In those that have begun from a checkpoint, too: acts that come twice, pops given back, groups that go."""
    for seed in range(20):
        streams = [Stream(), Stream(reload_every=1)]
        for stream in streams:
            random = Random(seed)
            numbers = dict.fromkeys([b"a", b"b", b"c", b"d"], 0)
            for _ in range(80):
                stream.now_us += random.choice([0, 1, 30]) * SECOND
                taker = random.choice(list(numbers))
                numbers[taker] += random.random() < 0.8
                stream.push(random.randint(1, 9))
                kept_from = stream.token - random.choice([0, 50, 200])
                pop = Take("", random.randint(1, 20), random.choice([0, 0, 9 * SECOND]))
                stream.append(Act(0, taker, numbers[taker], takes=[pop], kept_from=max(0, kept_from)))
        assert streams[0].state.snapshot() == streams[1].state.snapshot(), f"seed {seed}"
        assert list(streams[0].state.takers.weights.items()) == list(streams[1].state.takers.weights.items())


@asynchronous
async def test_who_asks_too_late_what_came_of_its_act_is_told_that_nobody_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It had stalled while others took very much, and begins again from a checkpoint that has only its number."""
    queue: Queue[int] = Queue(Process(MemoryPort()).logbook(), "q")
    await queue.push(1)
    await queue.stats()
    followed = following(queue.logbook, "q", 1)
    line = followed.lines[0]
    settle = Settle("", ACK, [(0, 5)])
    waiting = asyncio.get_running_loop().create_future()
    line.outstanding = Outstanding(Act(0, followed.taker, 7, settles=[settle]), settles=[Asked(settle, waiting)])

    async def newest_state(*_: object) -> tuple[ShardState, int]:
        line.state.takers.last[followed.taker] = Given(7, 0, [], [])
        return line.state, 0

    monkeypatch.setattr(folds, "newest_state", newest_state)
    await followed.load(queue.logbook)
    assert followed.lines[0].outstanding is None
    error = waiting.exception()
    assert isinstance(error, BokiError)
    assert error.outcome == "unknown"
