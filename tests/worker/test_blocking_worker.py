"""A blocking worker's side of its log operations."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from boki.log.limits import DEFAULT_LIMITS
from boki.log.metalog import Positions
from boki.log.operations import Appended, TrimBook
from boki.worker.blocking_worker import BlockingWorker, _Calls
from boki.worker.frames import Fork, LogReply
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

        monkeypatch.setattr(worker, "ask", lambda *_: LogReply(1, {0: 7}, Appended(7)))
        positions: Positions = Watched()
        _Calls(worker, 1).request(TrimBook("b", 1), positions, 1.0)
        assert positions == {0: 7}
        assert may_enter == [False]
