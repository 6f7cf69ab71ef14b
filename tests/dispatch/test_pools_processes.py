"""What functions do to processes: start some that stay, cancel themselves, look at their environment."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import socket
from pathlib import Path
from types import ModuleType

import pytest

from boki.host.clock import now_us
from tests.engine.host import drive, hosting, is_alive, wait_for_end

MAP = mmap.mmap
DAEMONS = {
    "m": """
    import time

    def daemon(depth: int) -> int:
        # A process that leaves its session and its parent; the pid of the last one.
        pids, told = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                if depth:
                    daemon(depth - 1)
                os.write(told, b"%d " % os.getpid())
                time.sleep(600)
            os._exit(0)
        os.wait()
        return int(os.read(pids, 100).split()[0])

    @function
    def leave(ctx: boki.blocking.Context, depth: int) -> int:
        return daemon(depth)

    @function
    def crash(ctx: boki.blocking.Context) -> None:
        os._exit(3)

    @function
    async def gives_up(ctx: Context) -> None:
        asyncio.current_task().cancel()
        await asyncio.sleep(60)

    @function
    async def settings(ctx: Context) -> list[str]:
        return [name for name in os.environ if name.startswith("BOKI_") or name == "OTHER"]
    """
}


@pytest.mark.parametrize("ending", ["the worker", "the engine"])
def test_what_forks_twice_does_not_outlive_its_worker(tmp_path: Path, ending: str) -> None:
    """Also if it has left the worker's session: it is not there when the worker, or all of the engine, has ended."""

    async def test() -> None:
        async with hosting(tmp_path, DAEMONS) as host:
            pids = [await host.result("leave", depth) for depth in (0, 2)]
            assert all(is_alive(pid) for pid in pids)
            if ending == "the worker":
                await host.failure("crash")
                await asyncio.to_thread(wait_for_end, pids)
        await asyncio.to_thread(wait_for_end, pids)

    drive(test())


def test_a_function_that_cancels_itself_has_failed(tmp_path: Path) -> None:
    """Its time was not over, and nobody else has cancelled it."""

    async def test() -> None:
        async with hosting(tmp_path, DAEMONS) as host:
            failure = await host.failure("gives_up")
            assert (failure.code, failure.details["error_type"]) == ("function_failed", "CancelledError")
            assert failure.message == (
                "gives_up: CancelledError: the function cancelled its own task, or what it awaited was cancelled"
            )

    drive(test())


@pytest.mark.parametrize("made", [(socket, "socketpair"), (mmap, "mmap"), (os, "ftruncate")], ids=lambda made: made[1])
def test_a_worker_for_which_no_descriptor_is_left_has_failed_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: tuple[ModuleType, str]
) -> None:
    """Its call is told so, nothing of it is left open, and the next start succeeds."""

    async def test() -> None:
        async with hosting(tmp_path, DAEMONS) as host:
            before = descriptors()
            with monkeypatch.context() as patch:
                patch.setattr(*made, refuse)
                failure = await host.failure("settings")
            assert (failure.code, failure.outcome) == ("unavailable", "not_applied")
            assert "could not be started: [Errno 24] Too many open files" in failure.message
            assert descriptors() == before
            (pool,) = (pool for pool in host._dispatch._fleet.pools.values() if pool.key.is_async)
            await host.until(lambda: now_us() >= pool.retry_us)
            assert await host.result("settings") == []

    drive(test())


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def refuse(*arguments: object) -> object:
    """Fail as without descriptors, but for memory that needs none."""
    if arguments[:1] == (-1,):
        return MAP(*arguments)
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_functions_do_not_see_the_settings_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is among them; everything else of the environment is inherited."""
    monkeypatch.setenv("BOKI_TOKEN", "secret")
    monkeypatch.setenv("OTHER", "x")

    async def test() -> None:
        async with hosting(tmp_path, DAEMONS) as host:
            assert await host.result("settings") == ["OTHER"]

    drive(test())
