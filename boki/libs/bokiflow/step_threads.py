"""Threads of a process for the `def` steps of its workflows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from boki.libs.bokiflow.refusals import NoThread


class StepThreads(Executor):
    """At most `most` threads. One is started when all others are busy.

    Threads take memory for their stacks, and their number may be bounded: where the system starts no other one, work
    waits for one that there is. Where there is none it is refused (`NoThread`), and does not run later, which the
    `ThreadPoolExecutor` of the standard library does not promise.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = Lock()
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._started = 0
        """Number of threads: none of them ends before the process."""
        self._unfinished = 0
        """How much work runs or waits."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run it in a thread. `NoThread`: it does not run."""
        future: Future[Any] = Future()
        with self._lock:
            if self._unfinished >= self._started and self._started < self.most:
                self._start()
            self._unfinished += 1
            self._work.put((future, partial(fn, *args, **kwargs)))
        return future

    def _start(self) -> None:
        thread = Thread(target=self._run, daemon=True, name=f"boki-step_{self._started}")
        try:
            thread.start()
        except RuntimeError as error:
            if not self._started:
                raise NoThread(f"no thread for a step: {error}") from error
        else:
            self._started += 1

    def _run(self) -> None:
        while True:
            self._carry_out(*self._work.get())

    def _carry_out(self, future: Future[Any], work: Callable[[], Any]) -> None:
        result, error = None, None
        is_wanted = future.set_running_or_notify_cancel()
        try:
            result = work() if is_wanted else None
        except BaseException as raised:  # noqa: BLE001 - the future has it
            error = raised
        with self._lock:
            self._unfinished -= 1
        if error is not None:
            future.set_exception(error)
            error = None  # it refers to this frame
        elif is_wanted:
            future.set_result(result)
