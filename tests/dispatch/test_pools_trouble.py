"""Workers that crash, hang, grow and misbehave: who is told what, and that nobody else notices."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from boki.dispatch.orders import Budget, SendCall, StartWorker
from boki.log.operations import Appended
from boki.protocol.calls import Outcome, RequestHead
from tests.engine.host import Gate, drive, hosting, is_alive, wait_for_end

KINDS = pytest.mark.parametrize("suffix", ["", "_blocking"], ids=["async", "blocking"])
MODULES = {
    "m": """
    import signal
    import subprocess

    from boki.api.suspension import CallsById

    @function(concurrency=8)
    async def die(ctx: Context, how: str) -> None:
        end_by(how)

    @function
    def die_blocking(ctx: boki.blocking.Context, how: str) -> None:
        end_by(how)

    def end_by(how):
        if how == "exit":
            os._exit(3)
        if how == "close":
            os.closerange(3, 100)
            threading.Event().wait()
        if how == "garbage":
            for fd in map(int, os.listdir("/proc/self/fd")):
                if os.path.exists(f"/proc/self/fd/{fd}") and os.readlink(f"/proc/self/fd/{fd}").startswith("socket"):
                    os.write(fd, bytes([255]) * 64)
            threading.Event().wait()
        os.kill(os.getpid(), signal.SIGKILL)

    @function(concurrency=8, max_workers=1)
    async def hang(ctx: Context, gate: str) -> int:
        wait_at(gate)
        return os.getpid()

    @function(max_workers=1)
    def hang_blocking(ctx: boki.blocking.Context, gate: str) -> int:
        wait_at(gate)
        return os.getpid()

    @function
    async def pid(ctx: Context) -> int:
        return os.getpid()

    @function
    def pid_blocking(ctx: boki.blocking.Context) -> int:
        return os.getpid()

    @function
    async def forever(ctx: Context) -> None:
        print("begun")
        await asyncio.Event().wait()

    @function
    async def never_mind(ctx: Context) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                print("cancelled")

    @function
    def parent(ctx: boki.blocking.Context, gate: str) -> None:
        subprocess.Popen(["sh", "-c", f"echo $$ > {gate}.in; read line < {gate}.out"], close_fds=False)
        threading.Event().wait()

    @function
    async def append(ctx: Context) -> None:
        await ctx.logbook.append(b"x")

    @function
    async def log_later(ctx: Context) -> None:
        await ctx.invoke_later(append)

    @function
    async def cancel_other(ctx: Context) -> None:
        await CallsById(ctx).cancel("ab" * 16)
    """,
    "hungry": """
    @function(memory_bytes=160 << 20)
    async def grow(ctx: Context, size: int) -> int:
        block = bytearray(size)
        block[::4096] = b"x" * len(block[::4096])
        await asyncio.Event().wait()
        return len(block)

    @function(memory_bytes=160 << 20)
    def grow_blocking(ctx: boki.blocking.Context, size: int) -> int:
        block = bytearray(size)
        block[::4096] = b"x" * len(block[::4096])
        threading.Event().wait()
        return len(block)

    @function
    async def grown(ctx: Context) -> int:
        return os.getpid()

    @function
    def grown_blocking(ctx: boki.blocking.Context) -> int:
        return os.getpid()
    """,
    "single": """
    @function(concurrency=1, max_workers=1)
    async def one(ctx: Context, gate: str) -> None:
        wait_at(gate)

    @function(max_workers=1)
    async def another(ctx: Context) -> None:
        pass
    """,
    "n": """
    @function
    async def other(ctx: Context) -> int:
        return os.getpid()

    @function(max_workers=1)
    def alone(ctx: boki.blocking.Context, gate: str) -> None:
        wait_at(gate)

    @function
    def alone_pid(ctx: boki.blocking.Context) -> int:
        return os.getpid()
    """,
}


@KINDS
@pytest.mark.parametrize(
    ("how", "known"),
    [
        ("exit", "exited with status 3"),
        ("kill", "killed by signal 9 (SIGKILL"),
        ("close", "closed its connection to the engine, and was killed for that"),
        ("garbage", "sent what is no frame"),
    ],
)
def test_a_worker_that_dies_is_replaced_and_its_caller_told_what_is_known(
    tmp_path: Path, suffix: str, how: str, known: str
) -> None:
    """The call may have run in part; the next one finds a new process; another pool keeps its own."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            other, before = await host.result("other"), await host.result(f"pid{suffix}")
            failure = await host.failure(f"die{suffix}", how)
            assert (failure.code, failure.outcome) == ("call_lost", "unknown")
            assert known in failure.message
            assert not is_alive(before)
            assert await host.result(f"pid{suffix}") != before
            assert await host.result("other") == other

    drive(test())


def test_calls_beside_a_crash_are_told_the_same(tmp_path: Path) -> None:
    """What had begun in the same process may have done anything."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            beside = host.begin("forever")
            await host.until(lambda: bool(host.texts("stdout")))
            await host.failure("die", "exit")
            outcome = await beside
            assert outcome.failure is not None
            assert outcome.failure.code == "call_lost"
            assert "exited with status 3" in outcome.failure.message

    drive(test())


@KINDS
def test_a_function_that_blocks_past_its_deadline_is_killed(tmp_path: Path, suffix: str) -> None:
    """The caller is told at the deadline; the process goes after a grace; what waited runs in a new one."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            with Gate(tmp_path / "gate") as gate:
                hung = host.begin(f"hang{suffix}", gate.path, timeout_s=0.3)
                (pid,) = await gate.arrived()
                behind = host.begin(f"hang{suffix}", gate.path)
                outcome = await hung
                assert outcome.failure is not None
                assert (outcome.failure.code, outcome.failure.outcome) == ("deadline_exceeded", "unknown")
                assert is_alive(pid)
                await host.until(lambda: len(host.ended) == 1)
                assert not is_alive(pid)
                await gate.arrived(2)
                gate.open()
                assert (await behind).failure is None
                assert [pool.kills for pool in host.stats() if pool.kills] == [{"deadline": 1}]

    drive(test())


def test_calls_that_a_hung_process_had_not_begun_run_elsewhere(tmp_path: Path) -> None:
    """They were sent to it, and it never looked: they run once, in another process, and nobody is told of it."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            with Gate(tmp_path / "gate") as gate:
                hung = host.begin("hang", gate.path, timeout_s=0.3)
                (pid,) = await gate.arrived()
                behind = [host.begin("pid") for _ in range(3)]
                await host.until(lambda: sum(isinstance(effect, SendCall) for effect in host.effects) == 4)
                pids = {await host_result(call) for call in behind}
                assert pid not in pids
                assert len(pids) == 1
                await hung

    drive(test())


async def host_result(call: asyncio.Task) -> int:
    outcome = await call
    assert outcome.failure is None, outcome.failure
    return int(outcome.result.data)


def test_an_overdue_coroutine_is_cancelled_and_its_process_lives_on(tmp_path: Path) -> None:
    """A function that only waits lets itself be cancelled: no process is lost for it."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            before = await host.result("pid")
            failure = await host.failure("forever", timeout_s=0.2)
            assert (failure.code, failure.outcome) == ("deadline_exceeded", "unknown")
            await host.until(lambda: host._dispatch.is_empty)
            assert await host.result("pid") == before

    drive(test())


def test_a_coroutine_that_will_not_be_cancelled_is_killed(tmp_path: Path) -> None:
    """Catching the cancellation buys a grace and no more."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            failure = await host.failure("never_mind", timeout_s=0.2)
            assert failure.code == "deadline_exceeded"
            await host.until(lambda: len(host.ended) == 1)
            assert host.texts("stdout") == ["cancelled"]

    drive(test())


@KINDS
def test_a_worker_that_outgrows_its_limit_is_killed_with_the_figure(tmp_path: Path, suffix: str) -> None:
    """Memory is watched, and the error says how much it was and what was allowed."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            failure = await host.failure(f"grow{suffix}", 200 << 20)
            assert failure.code == "call_lost"
            assert "more than its memory_bytes of" in failure.message
            await host.result(f"grown{suffix}")
            assert {"memory": 1} in [pool.kills for pool in host.stats()]

    drive(test())


@KINDS
def test_growth_that_is_too_fast_to_be_seen_fails_in_the_function(tmp_path: Path, suffix: str) -> None:
    """The hard limit of the process is the backstop: an allocation beyond it is a `MemoryError`, and nobody dies."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            before = await host.result(f"grown{suffix}")
            failure = await host.failure(f"grow{suffix}", 400 << 20)
            assert failure.details["error_type"] == "MemoryError"
            assert await host.result(f"grown{suffix}") == before

    drive(test())


def test_what_a_worker_has_started_dies_with_it(tmp_path: Path) -> None:
    """A killed worker leaves no process of its session behind."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            with Gate(tmp_path / "gate") as gate:
                lost = host.begin("parent", gate.path, timeout_s=1)
                (grandchild,) = await gate.arrived()
                assert is_alive(grandchild)
                await lost
                await host.until(lambda: len(host.ended) == 1)
                await asyncio.get_running_loop().run_in_executor(None, wait_for_end, [grandchild])

    drive(test())


def test_a_lost_call_is_told_only_when_its_appends_are_decided(tmp_path: Path) -> None:
    """Whoever runs the call again must not be overtaken by the old run's append."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            host.holds_appends = True
            lost = host.begin("append")
            await host.until(lambda: bool(host.unanswered))
            (link,) = host._processes.links.values()
            os.kill(link.pid, signal.SIGKILL)
            await host.until(lambda: link.is_closed and bool(link.ending))
            assert not lost.done()
            host.unanswered[0][1](Appended(1), {})
            outcome = await lost
            assert outcome.failure is not None
            assert outcome.failure.code == "call_lost"

    drive(test())


@pytest.mark.parametrize("function", ["log_later", "cancel_other"])
def test_a_lost_call_is_told_only_when_what_it_has_done_to_logged_calls_is_decided(
    tmp_path: Path, function: str
) -> None:
    """A call that it asked to be logged, or a cancellation, must not take effect beside its next run."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            host.may_log_calls.clear()
            lost = host.begin(function)
            await host.until(lambda: bool(host.later_calls or host.asked_calls))
            (link,) = host._processes.links.values()
            os.kill(link.pid, signal.SIGKILL)
            await host.until(lambda: link.is_closed and bool(link.ending))
            assert not lost.done()
            host.may_log_calls.set()
            outcome = await lost
            assert outcome.failure is not None
            assert outcome.failure.code == "call_lost"

    drive(test())


def test_a_dead_zygote_is_replaced(tmp_path: Path) -> None:
    """Its workers die with it and their callers are told; later calls, of any module, wait for its successor."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            pid = await host.result("pid")
            other = await host.result("other")
            lost = host.begin("forever")
            await host.until(lambda: bool(host.texts("stdout")))
            zygote = host._processes.zygote_pid
            os.kill(zygote, signal.SIGKILL)
            await host.until(lambda: host._processes.zygote_pid == 0)
            waiting = [host.begin("pid"), host.begin("other"), host.begin("alone_pid")]
            outcome = await lost
            assert outcome.failure is not None
            assert outcome.failure.code == "call_lost"
            assert "the process that forks workers ended" in outcome.failure.message
            await asyncio.get_running_loop().run_in_executor(None, wait_for_end, [pid, other])
            assert [told.failure for told in await asyncio.gather(*waiting)] == [None] * 3
            assert await host.result("pid") != pid
            assert host._processes.zygote_pid not in (0, zygote)

    drive(test())


def test_stopping_lets_running_calls_end_and_refuses_new_ones(tmp_path: Path) -> None:
    """A drain waits for what was accepted."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            with Gate(tmp_path / "gate") as gate:
                running = host.begin("hang", gate.path)
                (pid,) = await gate.arrived()
                stopping = asyncio.get_running_loop().create_task(host.stop(30))
                await asyncio.sleep(0)
                refused = await host.failure("pid")
                assert (refused.code, refused.outcome) == ("unavailable", "not_applied")
                gate.open()
                outcome = await running
                assert outcome.failure is None
                await stopping
                assert not is_alive(pid)

    drive(test())


def test_stopping_waits_no_longer_than_it_was_told(tmp_path: Path) -> None:
    """What still runs after the drain is lost, and its callers are told so; no process is left."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            with Gate(tmp_path / "gate") as gate:
                running = host.begin("alone", gate.path)
                queued = host.begin("alone", gate.path)
                (pid,) = await gate.arrived()
                zygote = host._processes.zygote_pid
                await host.stop(0.1)
                lost, refused = (await running).failure, (await queued).failure
                assert lost is not None
                assert (lost.code, lost.outcome) == ("call_lost", "unknown")
                assert refused is not None
                assert (refused.code, refused.outcome) == ("unavailable", "not_applied")
                assert not is_alive(pid)
                assert not is_alive(zygote)

    drive(test())


def test_a_worker_is_sent_its_calls_in_the_order_in_which_they_are_counted(tmp_path: Path) -> None:
    """What has begun is told by a number, so a call that a callback makes must not overtake one decided before it."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            done = asyncio.get_running_loop().create_future()

            def call_another(_: Outcome) -> None:
                host.start_call(host.call_of("another"), done.set_result)

            with Gate(tmp_path / "gate") as gate:
                host.start_call(host.call_of("one", gate.path), call_another)
                queued = host.begin("one", gate.path)
                await gate.arrived()
                gate.open()
                await queued
                await done
            sent = [effect.ticket for effect in host.effects if isinstance(effect, SendCall)]
            assert sent == sorted(sent)

    drive(test())


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_a_request_that_cannot_be_encoded_is_refused_alone(tmp_path: Path, is_warm: bool) -> None:
    """It starts no worker, and what its worker has begun is counted as before: a lost call is not run again."""
    head = RequestHead("POST", "/", (), (("Referer", "caf\udce9"),), "")

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            if is_warm:
                await host.result("pid")
            failure = await host.failure("pid", request=head)
            assert (failure.code, failure.outcome) == ("invalid_argument", "not_applied")
            assert sum(isinstance(effect, StartWorker) for effect in host.effects) == is_warm
            lost = host.begin("forever")
            await host.until(lambda: bool(host.texts("stdout")))
            (link,) = host._processes.links.values()
            os.kill(link.pid, signal.SIGKILL)
            outcome = await lost
            assert outcome.failure is not None
            assert outcome.failure.code == "call_lost"
            assert host.texts("stdout") == ["begun"]

    drive(test())


def test_a_stalled_worker_does_not_hold_up_others_of_its_module(tmp_path: Path) -> None:
    """While one process is blocked, a second one takes the calls that come."""
    modules = {
        "m": """
        @function(max_workers=2)
        async def block(ctx: Context, gate: str) -> int:
            if gate:
                wait_at(gate)
            return os.getpid()
        """
    }

    async def test() -> None:
        async with hosting(tmp_path, modules, budget=Budget()) as host:
            with Gate(tmp_path / "gate") as gate:
                blocked = host.begin("block", gate.path)
                (pid,) = await gate.arrived()
                first = host.begin("block", "")
                await host.until(lambda: any(worker.stalled for worker in host._dispatch._fleet.workers.values()))
                assert await host.result("block", "") != pid
                gate.open()
                assert (await blocked).failure is None
                assert await host_result(first) == pid

    drive(test())
