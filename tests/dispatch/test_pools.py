"""Functions in real worker processes: what they are given, what they return, and what their callers are told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from boki.log.operations import Append, Read
from boki.protocol.calls import Call, Outcome, Payload
from tests.engine.host import FAST, LIMITS, Gate, Host, drive, hosting, is_alive

BOTH = {
    "both": """
    @function
    async def greet(ctx: Context, who: str) -> dict:
        return {"who": who, "book": ctx.logbook.name, "id": ctx.invocation_id, "pid": os.getpid()}

    @function(book="guests")
    def greet_blocking(ctx: boki.blocking.Context, who: str) -> dict:
        return {"who": who, "book": ctx.logbook.name, "id": ctx.invocation_id, "pid": os.getpid()}

    @function
    async def fail(ctx: Context, what: str) -> None:
        fail_as(what)

    @function
    def fail_blocking(ctx: boki.blocking.Context, what: str) -> None:
        fail_as(what)

    def fail_as(what):
        if what == "exit":
            raise SystemExit(3)
        if what == "interrupt":
            raise KeyboardInterrupt
        if what == "boki":
            raise boki.ConditionFailed("not this time", actual_seqnum=7)
        if what == "mute":
            raise Mute
        if what == "surrogate":
            raise ValueError("no file \\ud800")
        if what == "long":
            raise ValueError("x" * 10_000_000)
        raise ValueError(what)

    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    @function
    async def large(ctx: Context, size: int) -> bytes:
        return bytes(size)

    @function
    async def wrong(ctx: Context) -> int:
        return "not an int"

    @function
    def large_blocking(ctx: boki.blocking.Context, size: int) -> bytes:
        return bytes(size)
    """
}
KINDS = pytest.mark.parametrize("suffix", ["", "_blocking"], ids=["async", "blocking"])


@KINDS
def test_a_function_is_given_its_call_and_its_result_comes_back(tmp_path: Path, suffix: str) -> None:
    """Payload, default book and invocation id go in; the value comes out; the process is another one, and stays."""

    async def test() -> None:
        async with hosting(tmp_path, BOTH) as host:
            call = host.call_of(f"greet{suffix}", "Ada")
            outcome = await host.call(call)
            assert outcome.result is not None
            told = msgspec.json.decode(outcome.result.data)
            assert told["who"] == "Ada"
            assert told["book"] == ("guests" if suffix else "greet")
            assert told["id"] == call.id
            again = await host.result(f"greet{suffix}", "Bob")
            assert again["pid"] == told["pid"]

    drive(test())


@KINDS
@pytest.mark.parametrize(
    ("what", "error_type"),
    [
        ("oops", "ValueError"),
        ("exit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("boki", "ConditionFailed"),
        ("mute", "RuntimeError"),
        ("long", "TooLarge"),
        ("surrogate", "ValueError"),  # which UTF-8 cannot hold
    ],
)
def test_whatever_a_function_raises_ends_its_call_and_nothing_else(
    tmp_path: Path, suffix: str, what: str, error_type: str
) -> None:
    """The caller is told type and message, the console the traceback, and the process continues."""

    async def test() -> None:
        async with hosting(tmp_path, BOTH, limits=LIMITS) as host:
            before = await host.result(f"greet{suffix}", "Ada")
            failure = await host.failure(f"fail{suffix}", what)
            assert (failure.code, failure.outcome) == ("function_failed", "failed")
            assert failure.details["error_type"] == error_type
            assert f"fail{suffix}" in failure.message
            (line,) = (line for line in host.lines if line.stream == "error")
            assert "Traceback" in line.text
            assert "fail_as(what)" in line.text
            assert "ending.py" not in line.text
            assert (await host.result(f"greet{suffix}", "Ada"))["pid"] == before["pid"]

    drive(test())


@KINDS
def test_the_traceback_travels_with_the_failure(tmp_path: Path, suffix: str) -> None:
    """As the console shows it. Who is told of it is the gateway's to decide."""

    async def test() -> None:
        async with hosting(tmp_path, BOTH) as host:
            failure = await host.failure(f"fail{suffix}", "oops")
            (line,) = (line for line in host.lines if line.stream == "error")
            assert failure.details["traceback"] == line.text

    drive(test())


@KINDS
def test_a_payload_that_does_not_fit_is_the_callers_mistake(tmp_path: Path, suffix: str) -> None:
    """The function does not run, and the message names the field."""

    async def test() -> None:
        async with hosting(tmp_path, BOTH) as host:
            failure = await host.failure(f"greet{suffix}", 3)
            assert (failure.code, failure.outcome) == ("invalid_argument", "not_applied")
            assert "payload of greet" in failure.message

    drive(test())


@KINDS
def test_a_result_over_the_limit_is_refused_by_name(tmp_path: Path, suffix: str) -> None:
    """A result of the limit travels; one byte more is an error that names the limit."""

    async def test() -> None:
        async with hosting(tmp_path, BOTH, limits=LIMITS) as host:
            outcome = await host.run(f"large{suffix}", LIMITS.request_bytes)
            assert outcome.result == Payload("bytes", bytes(LIMITS.request_bytes))
            failure = await host.failure(f"large{suffix}", LIMITS.request_bytes + 1)
            assert "limits.request_bytes" in failure.message
            assert (await host.failure("wrong")).details["error_type"] == "TypeError"

    drive(test())


def test_async_calls_run_side_by_side_in_one_process(tmp_path: Path) -> None:
    """256 calls meet at a barrier that none passes alone."""
    modules = {
        "meet": """
        barrier = asyncio.Barrier(256)

        @function(max_workers=1)
        async def meet(ctx: Context) -> int:
            await barrier.wait()
            return os.getpid()
        """
    }

    async def test() -> None:
        async with hosting(tmp_path, modules) as host:
            pids = await asyncio.gather(*(host.result("meet") for _ in range(256)))
            assert len(set(pids)) == 1

    drive(test())


def test_blocking_calls_run_in_as_many_processes_as_there_may_be(tmp_path: Path) -> None:
    """Two run at once in processes of their own; the third waits for one of them."""
    modules = {
        "block": """
        @function(max_workers=2)
        def block(ctx: boki.blocking.Context, gate: str) -> int:
            wait_at(gate)
            return os.getpid()
        """
    }

    async def test() -> None:
        async with hosting(tmp_path, modules) as host:
            with Gate(tmp_path / "gate") as gate:
                calls = [host.begin("block", gate.path) for _ in range(3)]
                pids = set(await gate.arrived(2))
                assert len(pids) == 2
                assert host.stats()[0].queued == 1
                gate.open()
                await asyncio.gather(*calls)
                assert set(gate.pids) == pids

    drive(test())


LOG = {
    "log": """
    @function(book="mine")
    async def use_log(ctx: Context) -> list:
        seqnum = await ctx.logbook.append(b"x", tags=["t"])
        record = await ctx.logbook.read_next("t")
        return [seqnum, record.data.decode(), ctx.positions[0]]

    @function(book="mine")
    def use_log_blocking(ctx: boki.blocking.Context) -> list:
        seqnum = ctx.logbook.append(b"x", tags=["t"])
        record = ctx.logbook.read_next("t")
        return [seqnum, record.data.decode(), ctx.positions[0]]

    @function
    async def cheat(ctx: Context, book: str) -> None:
        from boki.log.chunk import Group, encode_chunk
        from boki.log.operations import Append
        chunk = encode_chunk(book, [Group([(b"x", ())])])
        await ctx._access.port.request(Append(book, chunk), {}, 1.0)

    @function
    def use_threads(ctx: boki.blocking.Context, count: int) -> int:
        found = []
        def read():
            for _ in range(50):
                found.append(ctx.logbook.read_next("t").data)
        threads = [threading.Thread(target=read) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(found)

    @function
    async def too_much(ctx: Context, size: int) -> None:
        await ctx.invoke("use_log", bytes(size))
    """
}


@KINDS
def test_log_operations_go_to_the_engine_and_positions_come_back(tmp_path: Path, suffix: str) -> None:
    """What the call has seen travels with its operations, is raised by their answers, and ends in its outcome."""

    async def test() -> None:
        async with hosting(tmp_path, LOG) as host:
            outcome = await host.run(f"use_log{suffix}", positions={1: 99})
            assert outcome.result is not None
            assert msgspec.json.decode(outcome.result.data) == [1, "data", 2]
            assert outcome.positions == {0: 2, 1: 99}
            append, read = host.operations
            assert isinstance(append, Append)
            assert append.book == "mine"
            assert isinstance(read, Read)
            assert read.tag == "t"

    drive(test())


def test_a_worker_cannot_write_what_belongs_to_the_runtime(tmp_path: Path) -> None:
    """The engine checks again what came over the socket, because user code runs at its other end."""

    async def test() -> None:
        async with hosting(tmp_path, LOG) as host:
            failure = await host.failure("cheat", "boki:calls")
            assert failure.details["error_code"] == "invalid_argument"
            assert not host.operations
            await host.result("cheat", "fine")

    drive(test())


def test_threads_of_a_blocking_function_share_its_socket(tmp_path: Path) -> None:
    """Each thread gets the answers to what it has asked, though only one of them reads at a time."""

    async def test() -> None:
        async with hosting(tmp_path, LOG) as host:
            assert await host.result("use_threads", 8) == 400

    drive(test())


def test_a_request_that_no_frame_holds_is_refused_in_the_worker(tmp_path: Path) -> None:
    """A payload over all limits is an error in the function, not the end of its process."""

    async def test() -> None:
        async with hosting(tmp_path, LOG, limits=LIMITS) as host:
            failure = await host.failure("too_much", 10_000_000)
            assert failure.details["error_type"] == "TooLarge"
            assert host.stats()[0].workers == 1

    drive(test())


def test_a_later_call_is_handed_to_the_log_and_its_id_comes_back(tmp_path: Path) -> None:
    """`invoke_later` returns what the ledger says, or raises what it refuses with, in both kinds."""
    modules = {
        "later": """
        @function
        async def soon(ctx: Context, key: str) -> str:
            return await ctx.invoke_later("soon", key, delay_s=1.5, key=key)

        @function
        def soon_blocking(ctx: boki.blocking.Context, key: str) -> str:
            return ctx.invoke_later("soon", key, delay_s=1.5, key=key)
        """
    }

    async def test() -> None:
        async with hosting(tmp_path, modules) as host:
            for i, name in enumerate(("soon", "soon_blocking")):
                told = await host.result(name, "key")
                call, delay_s, key = host.later_calls[i]
                assert (call.id, call.function, delay_s, key) == (told, "soon", 1.5, "key")
                failure = await host.failure(name, "bad")
                assert "that key is bad" in failure.message

    drive(test())


def test_workers_leave_when_idle_and_come_back_when_called(tmp_path: Path) -> None:
    """A pool goes to zero processes, and the next call starts one again."""

    async def test() -> None:
        async with hosting(tmp_path, BOTH, budget=FAST) as host:
            first = (await host.result("greet", "Ada"))["pid"]
            await host.until(lambda: len(host.ended) == 1)
            assert not is_alive(first)
            assert host.ended[0].ending == "exited with status 0"
            second = (await host.result("greet", "Ada"))["pid"]
            assert second != first

    drive(test())


def test_the_least_number_of_workers_is_there_before_the_first_call(tmp_path: Path) -> None:
    """`min_workers` processes are started with the host, and stay when idle."""
    modules = {
        "warm": """
        @function(min_workers=2)
        async def warm(ctx: Context) -> int:
            return os.getpid()
        """
    }

    async def test() -> None:
        async with hosting(tmp_path, modules, budget=FAST) as host:
            await host.until(lambda: host.stats()[0].workers == 2)
            starts = host.stats()[0].starts
            pid = await host.result("warm")
            assert pid in [link.pid for link in host._processes.links.values()]
            assert host.stats()[0].starts == starts == 2

    drive(test())


def test_a_worker_holds_only_its_own_descriptors(tmp_path: Path) -> None:
    """No socket of the engine, the zygote or another worker is open in it, so that closing one is seen; stdin is
    empty, and what is written past Python goes to stderr.
    """
    modules = {
        "files": """
        @function(min_workers=2)
        def look(ctx: boki.blocking.Context) -> list:
            open_files = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                          and os.path.exists(f"/proc/self/fd/{fd}")]
            same = os.readlink("/proc/self/fd/1") == os.readlink("/proc/self/fd/2")
            return [open_files, same, os.read(0, 1).decode()]
        """
    }

    async def test() -> None:
        async with hosting(tmp_path, modules) as host:
            await host.until(lambda: host.stats()[0].workers == 2)
            files, same, empty = await host.result("look")
            assert len([file for file in files if file.startswith("socket:")]) == 1
            assert not [file for file in files if file.startswith("pipe:")]
            assert same
            assert empty == ""

    drive(test())


def test_workers_are_forked_from_one_thread(tmp_path: Path) -> None:
    """The zygote holds nothing that must not be forked: no second thread, no loop, none of the engine's libraries."""

    async def test() -> None:
        async with hosting(tmp_path, BOTH) as host:
            await host.result("greet", "Ada")
            zygote = Path(f"/proc/{host._processes.zygote_pid}")
            assert len(list((zygote / "task").iterdir())) == 1
            links = [str(entry.readlink()) for entry in (zygote / "fd").iterdir()]
            assert not [link for link in links if "eventpoll" in link]
            maps = (zygote / "maps").read_text()
            assert "uvloop" in maps
            assert "zmq" not in maps
            assert "rocksdict" not in maps

    drive(test())


def test_cancelling_whoever_waits_cancels_the_call(tmp_path: Path) -> None:
    """A caller that goes away takes its function along, which may clean up."""
    modules = {
        "endless": """
        @function
        async def endless(ctx: Context) -> None:
            try:
                print("begun")
                await asyncio.Event().wait()
            finally:
                print("cancelled")
        """
    }

    async def test() -> None:
        async with hosting(tmp_path, modules) as host:
            waiting = host.begin("endless")
            await host.until(lambda: host.texts("stdout") == ["begun"])
            waiting.cancel()
            await host.until(lambda: host.texts("stdout") == ["begun", "cancelled"])
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await host.until(lambda: host._dispatch.is_empty)
            assert not host.texts("error")

    drive(test())


def test_a_host_without_a_folder_knows_no_function() -> None:
    """An engine may run without functions: calls are refused, and it stops at once."""

    async def test() -> None:
        host = Host(None)
        await host.start()
        assert (await host.failure("greet")).code == "no_such_function"
        assert host.modules == []
        await host.stop(1)

    drive(test())


def test_a_host_that_was_never_started_can_be_stopped(tmp_path: Path) -> None:
    """A start that failed before the functions' turn is cleaned up like any other."""

    async def test() -> None:
        host = Host(tmp_path)
        await host.stop(1)
        assert (await host.failure("greet")).code == "unavailable"

    drive(test())


def test_an_engine_may_run_on_asyncios_own_loop(tmp_path: Path) -> None:
    """uvloop makes things faster, and nothing else."""

    async def test() -> None:
        async with hosting(tmp_path, BOTH | LOG, budget=FAST) as host:
            for suffix in ("", "_blocking"):
                assert (await host.result(f"greet{suffix}", "Ada"))["who"] == "Ada"
                assert (await host.failure(f"fail{suffix}", "oops")).code == "function_failed"
                await host.result(f"use_log{suffix}")
            await host.until(lambda: len(host.ended) == 4)

    asyncio.run(test())


def test_calls_are_answered_in_the_callers_loop_in_the_order_of_their_ends(tmp_path: Path) -> None:
    """`start_call` needs no coroutine: it calls back, and a callback may start the next call."""

    async def test() -> None:
        async with hosting(tmp_path, BOTH) as host:
            outcomes: list[Outcome] = []
            done = asyncio.get_running_loop().create_future()

            def next_one(outcome: Outcome) -> None:
                outcomes.append(outcome)
                if len(outcomes) == 5:
                    done.set_result(None)
                else:
                    host.start_call(call(), next_one)

            def call() -> Call:
                return host.call_of("greet", "Ada")

            host.start_call(call(), next_one)
            await asyncio.wait_for(done, 30)
            assert all(outcome.failure is None for outcome in outcomes)

    drive(test())
