"""A blocking worker's side of its log operations."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from boki.log.limits import DEFAULT_LIMITS
from boki.log.metalog import Positions
from boki.log.operations import Appended, TrimBook
from boki.worker import blocking_worker
from boki.worker.blocking_worker import BlockingWorker, _Calls
from boki.worker.frames import Fork, LogReply, encode_frame
from boki.worker.tally import Tally


def test_threads_of_a_function_raise_its_positions_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one puts back what another has raised meanwhile, and the call no longer reads its own writes."""
    tally, (ours, theirs) = Tally(-1), socket.socketpair()
    with closing(tally), ours, theirs, ThreadPoolExecutor(1) as other:
        worker = BlockingWorker(
            Fork(1, "blocking", "m", "m.py", ".", 0, DEFAULT_LIMITS, pin_sources=False), tally, ours
        )
        may_enter: list[bool] = []

        class Watched(dict[int, int]):
            def get(self, *arguments: int) -> int:
                may_enter.append(other.submit(worker._arrived.acquire, False).result())
                return super().get(*arguments)

        monkeypatch.setattr(worker, "ask", lambda *_, **__: LogReply(1, {0: 7}, Appended(7)))
        positions: Positions = Watched()
        _Calls(worker, 1).request(TrimBook("b", 1), positions, 1.0)
        assert positions == {0: 7}
        assert may_enter == [False]


@pytest.mark.parametrize(("window_ns", "looks"), [(0, [None] * 2), (60_000_000_000, [b"it"] * 3)])
def test_an_answer_that_is_looked_for_is_taken_when_it_comes(
    monkeypatch: pytest.MonkeyPatch, window_ns: int, looks: list[bytes | None]
) -> None:
    """Within the window as well as after it; one that failed leaves the next occasion out."""
    monkeypatch.setattr(blocking_worker, "ANSWER_NS", window_ns)
    tally, (ours, theirs) = Tally(-1), socket.socketpair()
    seen: list[bytes | None] = []

    def answer(reply: LogReply) -> None:
        assert theirs.recv(100) == b"a read"
        theirs.sendall(encode_frame(reply))

    class Watched(BlockingWorker):
        def _look(self) -> bytes | None:
            data = super()._look()
            seen.append(data and b"it")
            return data

    with closing(tally), ours, theirs, ThreadPoolExecutor(1) as engine:
        worker = Watched(Fork(1, "blocking", "m", "m.py", ".", 0, DEFAULT_LIMITS, pin_sources=False), tally, ours)
        for number in range(1, 4):
            reply = LogReply(number, {}, Appended(number))
            answered = engine.submit(answer, reply)
            assert worker.ask(1, number, b"a read", LogReply, is_quick=True) == reply
            answered.result()
        answered = engine.submit(answer, LogReply(4, {}, Appended(4)))
        assert worker.ask(1, 4, b"a read", LogReply) is not None, "what may take long is not looked for"
        answered.result()
    assert seen == looks
