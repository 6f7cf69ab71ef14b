"""How long a loop is kept from sleeping, and how seldom where nothing comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from boki.dispatch.server.worker_link import WorkerLink
from boki.log.limits import DEFAULT_LIMITS
from boki.log.metalog import Positions
from boki.log.operations import Found, Operation, Read, TrimBook
from boki.protocol.calls import Call, Payload
from boki.worker.busy_polling import BusyPolling
from boki.worker.frames import Fork, LogReply, LogRequest, Start, encode_frame
from boki.worker.tally import Tally
from boki.worker.worker import AsyncWorker

WINDOW_NS = 200_000
TURN_NS = 5_000


class TurningLoop:
    """An event loop that would sleep when nothing is to be called; each turn takes `TURN_NS`."""

    def __init__(self) -> None:
        self.now_ns = 1
        self._due: list[Callable[[], None]] = []
        self.polling = BusyPolling(WINDOW_NS, self._due.append, lambda: self.now_ns)

    def turn(self) -> None:
        """Call what is due, after the time that a turn takes."""
        assert len(self._due) <= 1, "a loop is asked once a turn"
        due, self._due[:] = self._due[:], []
        self.now_ns += TURN_NS
        for each in due:
            each()

    def run(self, message_after_ns: int | None = None) -> int:
        """Turn until the loop would sleep; a message comes meanwhile. How long it turned, in nanoseconds."""
        began_ns = self.now_ns
        while self._due:
            if message_after_ns is not None and self.now_ns + TURN_NS - began_ns >= message_after_ns:
                self.polling.came()
            self.turn()
        return self.now_ns - began_ns

    def windows(self, occasions: int) -> int:
        """How many windows are opened on this many occasions on which nothing comes."""
        opened = 0
        for _ in range(occasions):
            self.polling.expect()
            opened += self.run() > 0
        return opened

    def until_it_looks(self) -> None:
        """Let occasions pass until one that opens a window, which pays."""
        while True:
            self.polling.expect()
            if self.run(message_after_ns=10_000):
                return


def test_a_loop_turns_until_the_message_comes_and_no_longer() -> None:
    """Each message that comes in time ends its window at once, a hundred times in a row."""
    loop = TurningLoop()
    for _ in range(100):
        loop.polling.expect()
        assert loop.run(message_after_ns=40_000) == 40_000


def test_a_window_ends_by_itself() -> None:
    """A loop sleeps again after the window, although nothing has come."""
    loop = TurningLoop()
    loop.polling.expect()
    assert WINDOW_NS <= loop.run() <= WINDOW_NS + TURN_NS


def test_windows_in_which_nothing_comes_become_rare() -> None:
    """The number of occasions that are left out doubles up to 64, and stays there."""
    loop = TurningLoop()
    assert loop.windows(70) == 7  # the 1st, 3rd, 6th, 11th, 20th, 37th and 70th: 1, 2, 4, 8, 16 and 32 are left out
    assert loop.windows(65 * 100) == 100


def test_one_message_in_time_makes_it_look_each_time_again() -> None:
    """After one that paid a loop that had become rare looks on each occasion, and the next failure leaves out one."""
    loop = TurningLoop()
    loop.windows(200)
    loop.until_it_looks()
    for _ in range(10):
        loop.polling.expect()
        assert loop.run(message_after_ns=10_000) == 10_000
    assert loop.windows(3) == 2


def test_what_is_expected_twice_is_one_window() -> None:
    """A second expectation within a window does not lengthen it."""
    loop = TurningLoop()
    loop.polling.expect()
    for _ in range(10):
        loop.turn()
        loop.polling.expect()
    assert loop.run() <= WINDOW_NS - 9 * TURN_NS


def test_a_message_that_was_not_expected_changes_nothing() -> None:
    """What comes outside of a window does not count as one that came in time."""
    loop = TurningLoop()
    loop.windows(200)
    loop.until_it_looks()
    loop.windows(6)
    loop.polling.came()
    assert loop.windows(14) == 2  # 4 and 8 are left out


def test_a_new_window_after_a_message_of_the_same_turn() -> None:
    """A window that opens in the turn in which the last one ended is as long as any."""
    loop = TurningLoop()
    loop.polling.expect()
    loop.polling.came()
    loop.polling.expect()
    assert loop.run(message_after_ns=50_000) == 50_000


READ, WAITING, FRESH = Read("b"), Read("b", wait_us=1), Read("b", fresh=True)
TRIM = TrimBook("b", 1)
NOTHING = Found((), 0)


class Noted:
    """In place of `BusyPolling`: what it is told."""

    def __init__(self) -> None:
        self.expected = self.came_count = 0

    def expect(self) -> None:
        self.expected += 1

    def came(self) -> None:
        self.came_count += 1


@pytest.fixture
def worker() -> Iterator[AsyncWorker]:
    """A worker whose loop does not run."""
    loop, tally = asyncio.new_event_loop(), Tally(-1)
    worker = AsyncWorker(Fork(1, "async", "m", "m.py", ".", 0, DEFAULT_LIMITS, pin_sources=False), tally, loop)
    worker._polling = Noted()  # type: ignore[assignment]
    yield worker
    tally.close()
    loop.close()


def polled(worker: AsyncWorker, *operations: Operation) -> list[int]:
    """Ask for these, one beside the other; how often the loop was kept awake until then, each time."""
    noted: Any = worker._polling
    counts, asked = [], []
    for operation in operations:
        asked.append(worker.request(operation, {}, 1.0))
        asked[-1].send(None)
        counts.append(noted.expected)
    for each in asked:
        each.close()
    return counts


def test_a_worker_looks_for_the_answer_of_its_only_request(worker: AsyncWorker) -> None:
    """And of one that is answered at once: a second request, or one that may take long, lets it sleep."""
    assert polled(worker, READ, READ) == [1, 1]
    worker._answers.clear()
    assert polled(worker, WAITING) == polled(worker, FRESH) == polled(worker, TRIM) == [1]


def test_a_worker_with_a_write_under_way_sleeps(worker: AsyncWorker) -> None:
    """A request that no task waits for is one, too."""
    assert worker.begin_request(TRIM, {}, 1.0, lambda *_: None)
    assert polled(worker, READ) == [0]


def test_only_an_answer_ends_the_window_of_a_worker(worker: AsyncWorker) -> None:
    """A new call that comes meanwhile is not what was looked for."""
    noted: Any = worker._polling
    worker._launch = lambda *_: None  # type: ignore[method-assign]
    worker.data_received(encode_frame(Start(1, Call("1" * 32, "f", Payload("json", b"1"), "b", 1_000_000))))
    assert noted.came_count == 0
    worker.data_received(encode_frame(LogReply(0, {}, NOTHING)))
    assert noted.came_count == 1


class Log:
    """A log that answers when it is told to, or at once."""

    def __init__(self, *, at_once: bool) -> None:
        self.at_once = at_once
        self.open: list[Callable[[], None]] = []

    def submit(self, _operation: Operation, positions: Positions, _timeout_us: int, finish: Any) -> None:
        """See `LogDoor`."""
        self.open.append(lambda: finish(NOTHING, positions))
        if self.at_once:
            self.open.pop()()

    def abandon(self, finish: Any) -> None:
        """See `LogDoor`."""


def looks(at_once: bool, *operations: Operation) -> list[int]:
    """An engine gets these from a worker; how often it has stayed awake until then, each time."""

    async def run() -> list[int]:
        tally, log, noted, counts = Tally(-1), Log(at_once=at_once), Noted(), []
        nobody: Any = None
        link = WorkerLink(1, nobody, nobody, DEFAULT_LIMITS, log, tally)
        link._polling = noted  # type: ignore[assignment]
        for number, operation in enumerate(operations):
            link.data_received(encode_frame(LogRequest(number, {}, 1_000_000, operation)))
            counts.append(noted.expected)
        tally.close()
        return [*counts, noted.came_count]

    return asyncio.run(run())


def test_an_engine_that_has_answered_at_once_looks_for_the_next_request() -> None:
    """After each such read, and after nothing else: neither where an answer is still open, nor after a write."""
    assert looks(True, READ, READ) == [1, 2, 2]
    assert looks(False, READ) == [0, 1]
    assert looks(True, WAITING, FRESH, TRIM) == [0, 0, 0, 3]
