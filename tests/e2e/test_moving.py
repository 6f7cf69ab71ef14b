"""A cluster of separate roles becomes one of nodes with all roles, machine by machine, as docs/operations.md says.

Sessions append, read, trim and call functions meanwhile, and the checkers of `boki.verify.histories` judge what they
were told: nothing is lost or doubled, and every engine shows the same order. While machines are only stopped and
started, no append fails at all. A `kill -9` may leave the outcome of those unknown that were under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from boki.client import Client
from boki.errors import ConditionFailed
from boki.verify.chaos.faults import becomes_so
from boki.verify.chaos.sessions import Progress, Session, now_us
from boki.verify.histories.checkers import find_violations
from boki.verify.histories.history import Appending, Call, History, Ordered, Readout, Refused, Seen
from tests.e2e.functions.reading import Found
from tests.e2e.machines import WITHIN_S, Machines

SESSIONS = 4
BOOKS = ("moving-0", "moving-1")
PAUSE_S = 0.01
ENOUGH = 20
"""Appends that are acknowledged in each layout that the cluster goes through."""


class Load:
    """Sessions that work until `stop`, and what they were told."""

    def __init__(self, url: str) -> None:
        self.history = History()
        self.progress = Progress(lambda _stall_s: None)
        self._over = asyncio.Event()
        self.sessions = [
            Session(f"s{number}", Client(url), Random(number), self.history, self.progress, BOOKS)
            for number in range(SESSIONS)
        ]
        self._running = [asyncio.create_task(self._work(session)) for session in self.sessions]

    async def _work(self, session: Session) -> None:
        while not self._over.is_set():
            await session.step()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), PAUSE_S)

    async def more(self) -> None:
        """Until there have been some more acknowledged appends."""
        wanted = self.progress.acknowledged + ENOUGH

        async def is_so() -> bool:
            return self.progress.acknowledged >= wanted

        assert await becomes_so(is_so, WITHIN_S), f"{wanted - self.progress.acknowledged} appends are missing"

    async def stop(self) -> None:
        """Let each session end what it is at, and see that every call that was accepted has ended."""
        self._over.set()
        await asyncio.gather(*self._running)
        for session in self.sessions:
            assert await session.unfinished(WITHIN_S) == []

    async def close(self) -> None:
        """Close the connections of all."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.gather(*(session.close() for session in self.sessions))

    @property
    def failures(self) -> list[Call]:
        """Appends without a seqnum, but for those whose condition did not hold."""
        appends = [call for call in self.history.calls if isinstance(call.request, Appending) and not call.is_abandoned]
        return [call for call in appends if not isinstance(call.result, Ordered) and not _is_answer(call)]


def _is_answer(call: Call) -> bool:
    return isinstance(call.result, Refused) and call.result.code == ConditionFailed.code


async def read_everywhere(load: Load, url: str) -> None:
    """Every book, as the index of each of the three engines shows it. A call goes to the least busy one."""
    async with Client(url) as client:
        for book in BOOKS:
            found: dict[int, Found] = {}

            async def is_so(book: str = book, found: dict[int, Found] = found) -> bool:
                asked = [client.invoke("read_here", book, result_type=Found) for _ in range(3)]
                found.update({one.parent: one for one in await asyncio.gather(*asked)})
                return len(found) == 3

            assert await becomes_so(is_so, WITHIN_S), f"{len(found)} of three engines have read {book}"
            for parent, one in found.items():
                seen = [Seen(seqnum, payload, tuple(tags), time) for seqnum, payload, tags, time in one.records]
                load.history.read_out(f"engine of {parent}", book, now_us(), seen)
            first, *others = (one.records for one in found.values())
            assert first
            assert all(other == first for other in others)


def judge(load: Load) -> None:
    """All promises; that the history could break them is shown by taking a record out of what was read in the end."""
    assert find_violations(load.history) == []
    assert [text for session in load.sessions for text in session.witnessed] == []
    last = next(row for row in reversed(load.history.rows) if isinstance(row, Readout))
    known = {call.result.seqnums[-1] for call in load.history.calls if isinstance(call.result, Ordered)}
    lost = next(record for record in reversed(last.records) if record.seqnum in known)
    rows = [row for row in load.history.rows if row is not last]
    kept = tuple(record for record in last.records if record is not lost)
    assert find_violations(History([*rows, Readout(last.reader, last.book, last.at_us, kept)]))


async def move(machines: Machines, load: Load, number: int) -> None:
    """One machine: its processes stop, a node with all roles takes over what they have kept."""
    ended = await machines.stop(machines.names(number))
    assert set(ended.values()) == {0}, ended
    await load.more()
    await machines.start_node(number)
    await machines.all_at_work([number])
    await load.more()


def run(story: Callable[[Machines, Load], Coroutine[Any, Any, None]], machines: Machines) -> Load:
    """The old layout, then `story` under load, then everything is read and judged."""

    async def body() -> Load:
        async with machines:
            await machines.start_separate()
            await machines.all_at_work()
            load = Load(machines.url)
            try:
                await load.more()
                await story(machines, load)
                await load.stop()
                await read_everywhere(load, machines.url)
            finally:
                await load.close()
        return load

    load = asyncio.run(body())
    judge(load)
    return load


async def move_all(machines: Machines, load: Load) -> None:
    for number in (1, 2, 3):
        await move(machines, load, number)


@pytest.mark.parametrize(
    "has_keys", [pytest.param(False, marks=pytest.mark.whole, id="open"), pytest.param(True, id="keys")]
)
def test_no_append_fails_while_machine_by_machine_becomes_a_node(
    tmp_path: Path, zookeeper: str, chroot: str, *, has_keys: bool
) -> None:
    """Nothing is killed, so nothing may be felt but a pause. With keys, nodes learn of the new ones while they run."""
    load = run(move_all, Machines(tmp_path, zookeeper, chroot, has_keys=has_keys))
    assert load.failures == []


async def kill_a_node(machines: Machines, load: Load) -> None:
    """When two machines are nodes, the first of these is killed under load, with all its roles."""
    await move(machines, load, 1)
    await move(machines, load, 2)
    await machines.kill("node-1")
    await load.more()
    await machines.start_node(1)
    await machines.all_at_work([1, 2])
    await move(machines, load, 3)


async def kill_one_that_takes_over(machines: Machines, load: Load) -> None:
    """A node is killed when its storage node and its sequencer have just begun to share a log."""
    await move(machines, load, 1)
    await machines.stop(machines.names(2))
    await machines.start_node(2)
    await machines.until_said("node-2", "sequencer-2: at work")
    await machines.kill("node-2")
    await load.more()
    await machines.start_node(2)
    await machines.all_at_work([1, 2])
    await move(machines, load, 3)


async def kill_a_role(machines: Machines, load: Load) -> None:
    """One machine is a node, another one has separate roles, and is killed with all of them."""
    await move(machines, load, 1)
    for name in machines.names(2):
        await machines.kill(name)
    await load.more()
    await machines.start_node(2)
    await machines.all_at_work([1, 2])
    await move(machines, load, 3)


@pytest.mark.parametrize(
    "story",
    [
        kill_a_node,
        pytest.param(kill_one_that_takes_over, marks=pytest.mark.whole),
        pytest.param(kill_a_role, marks=pytest.mark.whole),
    ],
)
def test_a_kill_in_the_middle_leaves_at_most_what_was_under_way_unknown(
    tmp_path: Path, zookeeper: str, chroot: str, story: Callable[[Machines, Load], Coroutine[Any, Any, None]]
) -> None:
    """No append is refused, and each under a key has a known outcome in the end."""
    load = run(story, Machines(tmp_path, zookeeper, chroot, has_keys=False))
    for call in load.failures:
        assert isinstance(call.result, Refused), call
        assert call.result.outcome == "unknown", call
    appends = [call for call in load.history.calls if isinstance(call.request, Appending) and not call.is_abandoned]
    known = {call.request.key for call in appends if isinstance(call.result, Ordered)}
    assert known >= {call.request.key for call in appends}
