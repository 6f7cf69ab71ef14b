"""Every process comes to the same fold, whatever was trimmed before it looked."""

from __future__ import annotations

import asyncio
import tracemalloc
from random import Random
from typing import Any, cast

import msgspec
import pytest

from boki import LogBook, Record
from boki.libs.bokiqueue import Queue
from boki.libs.bokiqueue import folds as queue_folds
from boki.libs.bokiqueue.following import queues_of
from boki.libs.bokiqueue.records import OpenGroup, Part, Saved, checkpoint_tag, encode
from boki.libs.bokiqueue.state import Snapshot
from boki.libs.bokiqueue.stored import history, newest_state
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process, drain, small_checkpoints
from tests.libs.bokiqueue.test_state import SECOND, Stream


async def come_to_rest(*queues: Queue[int]) -> None:
    """Checkpoints are written, and trims are done."""
    for queue in queues:
        await queues_of(queue.logbook).come_to_rest(20)


async def folds(queue: Queue[int]) -> list[Snapshot]:
    """What this process sees of each shard, having looked at all that there is."""
    await queue.stats()
    followed = queues_of(queue.logbook).find("test", "q", 0.0)
    assert followed is not None
    return [line.state.snapshot() for line in followed.lines]


async def step(random: Random, port: MemoryPort, queue: Queue[int], number: int) -> None:
    """Something that may happen to a queue; the other processes do not look meanwhile."""
    group: Queue[int] = Queue(queue.logbook, "q", group=random.choice(["", "g"]))
    match random.choice(["push", "push", "pop", "pop", "pop", "lease", "bury", "replay", "group", "time"]):
        case "push":
            await queue.push_many(
                range(number, number + random.randint(1, 3)),
                delay_s=random.choice([0, 0, 40]),
                ttl_s=random.choice([0, 0, 60]),
            )
        case "pop":
            await group.pop_many(random.randint(1, 6))
        case "lease":
            await group.lease(30)
        case "bury":
            if (message := await group.lease(30)) is not None:
                await group.bury(message, reason="no")
        case "replay":
            tail = await queue.logbook.check_tail()
            assert tail is not None
            start: list[int | str] = ["earliest", tail.seqnum - random.randint(0, 60)]
            await group.replay(start=random.choice(start))
        case "group":
            await queue.create_group(f"late-{number}")
            await Queue[int](queue.logbook, "q", group=f"late-{number}").pop_many(random.randint(0, 50) + 1)
            await queue.drop_group(f"late-{number}")
        case "time":
            await port.clock.advance(random.choice([1, 30, 20 * 60]))
    await come_to_rest(queue)


@asynchronous
async def test_processes_that_look_now_and_then_see_what_new_ones_see() -> None:
    """Whoever replays, begins groups and lets checkpoints trim what was replayed, while the others do not look."""
    for seed in range(8):
        random = Random(seed)
        port = MemoryPort()
        queues: list[Queue[int]] = [Queue(Process(port).logbook(), "q") for _ in range(3)]
        await queues[0].create(shards=random.choice([1, 1, 3]), retain_s=random.choice([0, 60, 3600]))
        for group in ("", "g"):
            await queues[0].create_group(group)
        busy = queues[0]
        with small_checkpoints(random.choice([4, 9])):
            for number in range(60):
                if random.random() < 0.15:
                    busy = random.choice(queues)
                await step(random, port, busy, 10 * number)
            queues.append(Queue(Process(port).logbook(), "q"))
            for queue in queues:  # a process that comes to the end may have a checkpoint to write
                await folds(queue)
                await come_to_rest(*queues)
            seen = [await folds(queue) for queue in queues]
        assert all(one == seen[0] for one in seen), f"seed {seed}"


@asynchronous
async def test_who_comes_late_to_a_replay_gets_what_is_left_of_it() -> None:
    """It was trimmed meanwhile, as far as it was taken again: nothing is lost, and nothing comes twice."""
    port = MemoryPort()
    first, late = (Queue[int](Process(port).logbook(), "q") for _ in range(2))
    await first.create(retain_s=3600)
    with small_checkpoints(5):
        for number in range(40):
            await first.push(number)
            assert await first.pop() is not None
            await port.clock.advance(60)
            await come_to_rest(first)
        await late.stats()
        await first.replay()
        taken = []
        for pause_s in (3000, 0):
            for _ in range(12):
                message = await first.pop()
                assert message is not None
                taken.append(message.value)
                await come_to_rest(first)
            await port.clock.advance(pause_s)
        assert (await late.stats()).depth == (await first.stats()).depth == 16
        taken += [message.value for message in await late.pop_many(5)]
    assert taken + await drain(first) == list(range(40))


def test_a_checkpoint_of_before_a_group_lets_go_of_nothing_that_the_group_begins_with() -> None:
    """Who begins from it comes to the group's record, and needs its history."""
    stream = Stream()
    first = stream.push(10)
    stream.take(10)
    stream.act()
    covers = floor = stream.state.at
    stream.append(OpenGroup(0, "late"))
    assert len(stream.take(10, group="late")) == 10
    stream.act()
    stream.append(Saved(0, covers, 1, floor))
    assert stream.state.floor < first
    stream.reload()
    stream.append(Saved(0, covers, 1, floor))
    assert stream.state.floor < first
    stream.append(Saved(0, stream.state.at, 1, floor))
    assert stream.state.floor == floor


@asynchronous
async def test_a_checkpoint_does_not_take_the_place_of_one_that_knows_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one has dropped what the earlier one begins with."""
    monkeypatch.setattr(queue_folds, "SAVE_RECORDS", 10**6)
    port = MemoryPort()
    slow, quick = (Queue[int](Process(port).logbook(), "q") for _ in range(2))
    await slow.push_many(range(20))
    await drain(slow)
    await quick.stats()
    lines = []
    for queue in (slow, quick):
        followed = queues_of(queue.logbook).find("test", "q", 0.0)
        assert followed is not None
        lines.append((followed.folds, followed.lines[0]))
    await quick.push(20)
    await drain(quick)
    for keeper, line in reversed(lines):
        await keeper.save(slow.logbook, line)
    state, _ = await newest_state(slow.logbook, "q", 0)
    assert state.at == lines[1][1].state.at > lines[0][1].state.at


@asynchronous
async def test_history_is_read_without_its_bodies() -> None:
    """All that is retained may be more than a process has room for."""
    port = MemoryPort()
    queue: Queue[bytes] = Queue(Process(port).logbook(), "q")
    for _ in range(40):
        await queue.push(bytes(500_000))
    tracemalloc.start()
    try:
        segments, kept_from = await history(queue.logbook, "q", 0, 1, 0, 2**62)
        assert tracemalloc.get_traced_memory()[0] < 10_000_000
    finally:
        tracemalloc.stop()
    assert (len(segments), kept_from) == (40, 0)
    assert segments[0].size_bytes == 500_000


@asynchronous
async def test_a_history_that_no_checkpoint_has_is_taken_as_it_is() -> None:
    """Somebody has trimmed the queue's tag by hand: the process says what is left, and does not begin again forever."""
    port = MemoryPort()
    queue: Queue[int] = Queue(Process(port).logbook(), "q")
    await queue.create(retain_s=3600)
    for number in range(6):
        await queue.push(number)
    assert await drain(queue) == list(range(6))
    tail = await queue.logbook.check_tail("!q:q:0")
    assert tail is not None
    await queue.logbook.trim(tail.seqnum, tag="!q:q:0")
    await queue.push(6)
    await asyncio.wait_for(queue.replay(), 20)
    for reader in (queue, Queue[int](Process(port).logbook(), "q")):
        assert (await reader.stats()).depth == 1
    assert await drain(queue) == [6]


@asynchronous
async def test_a_checkpoint_that_is_completed_while_another_process_looks_for_one_is_not_missed() -> None:
    """The process has seen its first part, and looks for the one before it, which is trimmed by then: to find none
    would be to begin where the stream is not there any more. The simulator found it by seed 287.
    """
    queue: Queue[int] = Queue(Process(MemoryPort()).logbook(), "q")
    log, tag = queue.logbook, checkpoint_tag("q", 0)
    await queue.push_many(range(20))
    await drain(queue)
    snapshot = (await folds(queue))[0]
    data = msgspec.msgpack.encode(snapshot)

    async def append_part() -> int:
        return await log.append(encode(Part(0, data)), [tag])

    async def complete(first: int) -> None:
        await log.append(encode(Saved(0, snapshot.at, first, 0)), [tag])
        await log.trim(first, tag=tag)

    await complete(await append_part())
    second = await append_part()

    class Interrupted:
        """The log, on which the second checkpoint is completed between two questions."""

        def __getattr__(self, name: str) -> Any:
            return getattr(log, name)

        async def read_prev(self, tag: str, *, max_seqnum: int) -> Record | None:
            await complete(second)
            return await log.read_prev(tag, max_seqnum=max_seqnum)

    state, resume = await newest_state(cast("LogBook", Interrupted()), "q", 0)
    assert (state.backlog.next_pos, resume > 0) == (20, True)


@pytest.mark.parametrize("ttl_us", [0, 60 * SECOND])
def test_what_a_push_lets_go_of_does_not_depend_on_where_the_fold_began(ttl_us: int) -> None:
    """A checkpoint does not say whether anything ever expired here: a fold that begins from it forgets as much."""
    stream = Stream()
    stream.push(ttl_us=SECOND)
    stream.take()
    stream.now_us += 10 * SECOND
    stream.push()
    stream.take()
    before = stream.state
    stream.reload()
    stream.now_us += 20 * 60 * SECOND
    stream.push(ttl_us=ttl_us)
    seqnum, time_us, push = stream.records[-1]
    before.apply(seqnum, time_us, push)
    assert before.snapshot() == stream.state.snapshot()
