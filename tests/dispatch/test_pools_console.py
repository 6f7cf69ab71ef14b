"""What functions print, log and raise arrives at the engine's console, each line with its call."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from boki.worker.console import MAX_LINE_CHARS
from tests.engine.host import drive, hosting

KINDS = pytest.mark.parametrize("suffix", ["", "_blocking"], ids=["async", "blocking"])
MODULES = {
    "talk": """
    import logging
    import sys
    import warnings

    print("imported")

    @function
    async def speak(ctx: Context, who: str) -> None:
        speak_as(ctx, who)

    @function
    def speak_blocking(ctx: boki.blocking.Context, who: str) -> None:
        speak_as(ctx, who)

    def speak_as(ctx, who):
        print("one", who)
        print("two\\nthree", end="")
        print(" and more", file=sys.stderr)
        sys.stdout.buffer.write("bytes é\\n".encode())
        logging.getLogger("shop").warning("careful, %s", who)
        ctx.log.error("it is on fire")
        warnings.warn("old", stacklevel=1)
        print("x" * 40_000)
        print("no end of line", end="")

    @function
    async def in_turn(ctx: Context, who: str) -> None:
        for i in range(3):
            print(who, end=" ")
            await asyncio.sleep(0)
            print(i)

    @function
    async def thread(ctx: Context, who: str) -> None:
        await asyncio.to_thread(print, "from a thread", who)

    @function
    def thread_blocking(ctx: boki.blocking.Context, who: str) -> None:
        other = threading.Thread(target=print, args=("from a thread", who))
        other.start()
        other.join()

    @function
    async def flood(ctx: Context) -> None:
        for i in range(100_000):
            print("x" * 100)

    @function
    async def surrogates(ctx: Context) -> None:
        print("bad \\udc80 text")
    """
}


@KINDS
def test_whole_lines_carry_function_and_invocation(tmp_path: Path, suffix: str) -> None:
    """Printing in pieces, to both streams and as bytes, logging and warning: line by line, in order, with the call."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            call = host.call_of(f"speak{suffix}", "Ada")
            assert (await host.call(call)).failure is None
            lines = [line for line in host.lines if line.function]
            assert {(line.module, line.function, line.invocation) for line in lines} == {
                ("talk", f"speak{suffix}", call.id)
            }
            told = [(line.stream, line.text) for line in lines if not line.text.startswith("x")]
            assert told[:6] == [
                ("stdout", "one Ada"),
                ("stdout", "two"),
                ("stderr", " and more"),
                ("stdout", "threebytes é"),
                ("log", "careful, Ada"),
                ("log", "it is on fire"),
            ]
            assert any(stream == "stderr" and "UserWarning: old" in text for stream, text in told)
            assert told[-1] == ("stdout", "no end of line")
            assert [line.level for line in lines if line.stream == "log"] == [logging.WARNING, logging.ERROR]
            assert next(line.logger for line in lines if line.stream == "log") == "shop"
            assert "".join(line.text for line in lines if line.text.startswith("x")) == "x" * 40_000
            assert max(len(line.text) for line in lines) == MAX_LINE_CHARS

    drive(test())


def test_what_a_module_prints_when_it_is_imported_carries_its_name(tmp_path: Path) -> None:
    """Outside of calls the module speaks."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            line = host.lines[0]
            assert (line.module, line.function, line.invocation, line.text) == ("talk", "", "", "imported")

    drive(test())


def test_calls_that_print_in_turn_do_not_mix(tmp_path: Path) -> None:
    """Unfinished lines are kept apart by call."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            await asyncio.gather(*(host.result("in_turn", who) for who in "abc"))
            for who in "abc":
                assert [line.text for line in host.lines if line.text.startswith(f"{who} ")] == [
                    f"{who} {i}" for i in range(3)
                ]
            assert len({line.invocation for line in host.lines if line.function}) == 3

    drive(test())


@KINDS
def test_threads_speak_for_their_call(tmp_path: Path, suffix: str) -> None:
    """Lines of other threads are not lost and not misattributed."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            call = host.call_of(f"thread{suffix}", "Ada")
            assert (await host.call(call)).failure is None
            await host.until(lambda: any(line.text == "from a thread Ada" for line in host.lines))
            (line,) = (line for line in host.lines if line.text == "from a thread Ada")
            assert line.invocation == call.id

    drive(test())


def test_a_flood_is_bounded_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A function that prints faster than anybody reads loses lines, not memory; how many is said."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            await host.result("flood")
            kept = sum(line.function == "flood" for line in host.lines)
            assert 1000 < kept < 100_000
            assert f"{100_000 - kept} console lines of functions were left out" in caplog.text

    drive(test())


def test_text_that_is_no_unicode_arrives_replaced(tmp_path: Path) -> None:
    """A lone surrogate does not break the protocol."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            await host.result("surrogates")
            assert "bad ? text" in host.texts("stdout")

    drive(test())


@KINDS
def test_a_result_that_cannot_travel_is_on_the_console(tmp_path: Path, suffix: str) -> None:
    """With the reason and the line of the function, as its caller is told: its author may be another person."""
    module = """
    @function
    async def returns_object(ctx: Context):
        return object()

    @function
    def returns_object_blocking(ctx: boki.blocking.Context):
        return object()
    """

    async def test() -> None:
        async with hosting(tmp_path, {"m": module}) as host:
            failure = await host.failure(f"returns_object{suffix}")
            assert "holds an object of type object" in failure.message
            await host.until(lambda: bool(host.texts("error")))
            assert host.texts("error") == [failure.message]

    drive(test())


@KINDS
def test_a_forgotten_await_is_one_line_on_the_console(tmp_path: Path, suffix: str) -> None:
    """Python's own warning, which shows a line of the worker instead of the function's, does not come on top."""
    module = """
    @function
    async def forgets(ctx: Context):
        return asyncio.sleep(0)

    @function
    def forgets_blocking(ctx: boki.blocking.Context):
        return asyncio.sleep(0)

    @function
    async def done(ctx: Context) -> None:
        pass

    @function
    def done_blocking(ctx: boki.blocking.Context) -> None:
        pass
    """

    async def test() -> None:
        async with hosting(tmp_path, {"m": module}) as host:
            failure = await host.failure(f"forgets{suffix}")
            assert "an await is missing" in failure.message
            await host.result(f"done{suffix}")  # what was printed before is there
            assert [line.text for line in host.lines if line.function.startswith("forgets")] == [failure.message]

    drive(test())


@pytest.mark.parametrize(("level", "shown"), [("info", ["i", "w"]), ("debug", ["d", "i", "w"]), ("warning", ["w"])])
def test_the_least_level_of_what_functions_log_can_be_set(tmp_path: Path, level: str, shown: list[str]) -> None:
    """What is below it does not leave the worker; what is printed always does."""
    module = """
    @function
    async def speak(ctx: Context) -> None:
        ctx.log.debug("d")
        ctx.log.info("i")
        ctx.log.warning("w")
        print("p")
    """

    async def test() -> None:
        async with hosting(tmp_path, {"m": module}, log_level=level) as host:
            await host.result("speak")
            await host.until(lambda: bool(host.texts("stdout")))
            assert host.texts("log") == shown

    drive(test())
