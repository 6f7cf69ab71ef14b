"""How long a loop is kept from sleeping, and how seldom where nothing comes."""

from __future__ import annotations

from collections.abc import Callable

from boki.worker.busy_polling import WINDOW_NS, BusyPolling

TURN_NS = 5_000


class TurningLoop:
    """An event loop that would sleep when nothing is to be called; each turn takes `TURN_NS`."""

    def __init__(self) -> None:
        self.now_ns = 1
        self.turns = 0
        self._due: list[Callable[[], None]] = []
        self.polling = BusyPolling(self._due.append, lambda: self.now_ns)

    def run(self, message_after_ns: int | None = None) -> int:
        """Turn until the loop would sleep; a message comes meanwhile. How long it turned, in nanoseconds."""
        began_ns = self.now_ns
        while self._due:
            assert len(self._due) == 1, "a loop is asked once a turn"
            due, self._due[:] = self._due[:], []
            self.now_ns += TURN_NS
            if message_after_ns is not None and self.now_ns - began_ns >= message_after_ns:
                self.polling.came()
            for each in due:
                each()
        return self.now_ns - began_ns

    def windows(self, occasions: int) -> int:
        """How many windows are opened on this many occasions on which nothing comes."""
        opened = 0
        for _ in range(occasions):
            self.polling.expect()
            opened += self.run() > 0
        return opened


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
    """A loop that had become rare looks on each occasion after one that paid."""
    loop = TurningLoop()
    loop.windows(200)
    while True:
        loop.polling.expect()
        if loop.run(message_after_ns=10_000):
            break
    for _ in range(10):
        loop.polling.expect()
        assert loop.run(message_after_ns=10_000) == 10_000


def test_what_is_expected_twice_is_one_window() -> None:
    """A second expectation neither lengthens the window nor asks the loop twice."""
    loop = TurningLoop()
    loop.polling.expect()
    loop.polling.expect()
    assert loop.run() <= WINDOW_NS + TURN_NS


def test_a_message_that_was_not_expected_changes_nothing() -> None:
    """What comes outside of a window does not count as one that came in time."""
    loop = TurningLoop()
    loop.windows(3)
    loop.polling.came()
    loop.polling.expect()
    assert not loop.run()


def test_a_new_window_after_a_message_of_the_same_turn() -> None:
    """A window that opens in the turn in which the last one ended is as long as any."""
    loop = TurningLoop()
    loop.polling.expect()
    loop.polling.came()
    loop.polling.expect()
    assert loop.run(message_after_ns=50_000) == 50_000
