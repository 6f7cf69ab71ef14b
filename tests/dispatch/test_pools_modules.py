"""The functions folder: broken modules, and changes while the host runs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from boki.dispatch.orders import Budget
from boki.dispatch.server.modules import Modules
from boki.protocol.calls import ModuleInfo
from boki.worker.frames import Described
from tests.engine.host import FAST, Host, drive, hosting, write_modules

GOOD = """
@function
async def good(ctx: Context) -> str:
    return "good"
"""


def error_of(host: Host, module: str) -> str:
    return next(info.error for info in host.modules if info.module == module)


@pytest.mark.parametrize(
    ("source", "line", "known"),
    [
        ("def broken(:\n    pass\n", 1, "SyntaxError"),
        ("x = 1\nimport nosuchmodule\n", 2, "No module named 'nosuchmodule'"),
        ("def f():\n    return 1 / 0\n\nf()\n", 2, "ZeroDivisionError"),
        ("raise SystemExit(3)\n", 1, "SystemExit"),
        ("from boki import function\n\n@function\ndef f():\n    pass\n", 3, "must take the context"),
        ("import os\nos._exit(5)\n", None, "exited with status 5"),
        ("import threading\nthreading.Event().wait()\n", None, "took longer than 2 s"),
    ],
    ids=["syntax", "import", "raises", "exits", "signature", "dies", "hangs"],
)
def test_a_broken_module_is_shown_with_its_place_and_hurts_no_other(
    tmp_path: Path, source: str, line: int | None, known: str
) -> None:
    """The error has file and line, the others run, and calling into it says why its functions are not there."""

    async def test() -> None:
        folder = tmp_path / "functions"
        folder.mkdir()
        (folder / "bad.py").write_text(source)
        async with hosting(tmp_path, {"fine": GOOD}, budget=Budget(start_us=2_000_000)) as host:
            error = error_of(host, "bad")
            assert error.startswith(f"{folder / 'bad.py'}:{line}:" if line else str(folder / "bad.py"))
            assert known in error
            assert await host.result("good") == "good"
            failure = await host.failure("broken")
            assert failure.code == "no_such_function"
            assert known in failure.message

    drive(test())


@pytest.mark.parametrize(
    ("name", "known"), [("json", "would hide the module 'json'"), ("two-words", "cannot be the name of a module")]
)
def test_a_module_whose_name_would_break_others_is_refused(tmp_path: Path, name: str, known: str) -> None:
    """A file named like a module that Python or Boki imports says so, instead of breaking strange things."""

    async def test() -> None:
        async with hosting(tmp_path, {name: GOOD, "fine": GOOD.replace("good", "fine")}) as host:
            assert known in error_of(host, name)
            assert await host.result("fine") == "fine"

    drive(test())


def test_two_modules_with_one_function_name_are_told_apart_by_an_error(tmp_path: Path) -> None:
    """The first by name keeps it; the error of the other names both files."""

    async def test() -> None:
        async with hosting(tmp_path, {"a": GOOD, "b": GOOD.replace('"good"', '"other"')}) as host:
            assert "a.py" in error_of(host, "b")
            assert "b.py" in error_of(host, "b")
            assert "'good'" in error_of(host, "b")
            assert await host.result("good") == "good"

    drive(test())


def test_files_that_are_no_function_modules_are_left_alone(tmp_path: Path) -> None:
    """Names that start with an underscore are for others to import; only `.py` files count; no folder is fine too."""

    async def test() -> None:
        (tmp_path / "functions" / "package").mkdir(parents=True)
        (tmp_path / "functions" / "notes.txt").write_text("x")
        modules = {
            "_shared": "VALUE = 'shared'",
            "uses": GOOD.replace('"good"', "VALUE") + "\nfrom _shared import VALUE\n",
        }
        async with hosting(tmp_path, modules) as host:
            assert [module.module for module in host.modules] == ["uses"]
            assert await host.result("good") == "shared"
        host = Host(tmp_path / "nowhere")
        await host.start()
        assert host.modules == []
        await host.stop(0)

    drive(test())


def test_modules_may_import_each_other_and_call_by_object(tmp_path: Path) -> None:
    """A function of another module is called where that is at home, and registered only there."""
    modules = {
        "score": GOOD,
        "uses": """
        from score import good

        @function
        async def use(ctx: Context) -> str:
            return await ctx.invoke(good)
        """,
    }

    async def test() -> None:
        for pinned in (False, True):
            async with hosting(tmp_path / str(pinned), modules, reload=pinned) as host:
                assert sorted(host.functions) == ["good", "use"]
                assert not any(module.error for module in host.modules)
                assert await host.result("use") == "good"

    drive(test())


def test_a_changed_module_runs_anew_and_others_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """New code answers after the change; a module that did not change keeps its version. Each successful reload is
    told, also when its functions are the same ones, or are back after a syntax error (found.md, D).
    """
    caplog.set_level(logging.INFO, "boki.functions")

    async def test() -> None:
        modules = {"a": GOOD, "b": GOOD.replace("good", "still")}
        async with hosting(tmp_path, modules, reload=True) as host:
            assert await host.result("good") == "good"
            write_modules(tmp_path / "functions", {"a": GOOD.replace('"good"', '"better"')})
            await host.until(lambda: version(host, "a") == 2)
            assert await host.result("good") == "better"
            assert version(host, "b") == 1
            write_modules(tmp_path / "functions", {"a": "oops("})
            await host.until(lambda: bool(error_of(host, "a")))
            write_modules(tmp_path / "functions", {"a": GOOD.replace('"good"', '"better"')})
            await host.until(lambda: not error_of(host, "a"))
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
        assert told == ["module 'a' is loaded: good"] * 2

    drive(test())


def version(host: Host, module: str) -> int:
    return max((pool.version for pool in host.stats() if pool.module == module), default=0)


def test_a_change_that_breaks_a_module_leaves_its_last_good_version_running(tmp_path: Path) -> None:
    """Old code answers, also from a process that is started after the file was broken; the error is shown until it is
    fixed.
    """

    async def test() -> None:
        modules = {"a": "from _shared import VALUE\n" + GOOD.replace('"good"', "VALUE"), "_shared": "VALUE = 'first'"}
        async with hosting(tmp_path, modules, reload=True, budget=FAST) as host:
            assert await host.result("good") == "first"
            write_modules(tmp_path / "functions", {"a": "oops(", "_shared": "also oops("})
            await host.until(lambda: bool(error_of(host, "a")))
            assert "SyntaxError" in error_of(host, "a")
            assert list(host.functions) == ["good"]
            await host.until(lambda: len(host.ended) == 1)
            assert await host.result("good") == "first"
            write_modules(tmp_path / "functions", {"a": GOOD.replace('"good"', '"mended"')})
            await host.until(lambda: not error_of(host, "a"))
            assert await host.result("good") == "mended"

    drive(test())


def test_what_modules_share_reaches_those_that_use_it(tmp_path: Path) -> None:
    """A changed helper makes new versions of the modules that import it."""

    async def test() -> None:
        modules = {
            "a": "from _shared import VALUE\n" + GOOD.replace('"good"', "VALUE"),
            "b": GOOD.replace("good", "apart"),
            "_shared": "VALUE = 'one'",
        }
        async with hosting(tmp_path, modules, reload=True) as host:
            assert await host.result("good") == "one"
            write_modules(tmp_path / "functions", {"_shared": "VALUE = 'two'"})
            await host.until(lambda: version(host, "a") == 2)
            assert await host.result("good") == "two"
            assert version(host, "b") == 1

    drive(test())


def test_modules_come_and_go(tmp_path: Path) -> None:
    """A new file is loaded, a removed one's functions are unknown, and a name that it held is free again."""

    async def test() -> None:
        async with hosting(tmp_path, {"a": GOOD}, reload=True) as host:
            assert await host.result("good") == "good"
            write_modules(tmp_path / "functions", {"b": GOOD.replace('"good"', '"from b"')})
            await host.until(lambda: len(host.modules) == 2)
            assert "'good'" in error_of(host, "b")
            (tmp_path / "functions" / "a.py").unlink()
            await host.until(lambda: len(host.modules) == 1 and not error_of(host, "b"))
            assert await host.result("good") == "from b"
            (tmp_path / "functions" / "b.py").unlink()
            await host.until(lambda: not host.modules)
            assert (await host.failure("good")).code == "no_such_function"

    drive(test())


def test_a_module_that_imports_differently_in_workers_is_told_so(tmp_path: Path) -> None:
    """What was registered when the module was described and is not in the worker is an error that explains itself;
    what cannot be imported there any more answers with the module's error.
    """

    async def test() -> None:
        marker = tmp_path / "marker"
        fickle = f"""
        seen = os.path.exists({str(marker)!r})
        open({str(marker)!r}, "w").close()

        @function(name="after" if seen else "before")
        async def f(ctx: Context) -> None:
            pass
        """
        moody = f"""
        if os.path.exists({str(marker) + "2"!r}):
            raise RuntimeError("not again")
        open({str(marker) + "2"!r}, "w").close()

        @function
        async def once(ctx: Context) -> None:
            pass
        """
        async with hosting(tmp_path, {"fickle": fickle, "moody": moody}) as host:
            failure = await host.failure("before")
            assert "registered 'before' when it was described, and now registers after" in failure.message
            failure = await host.failure("once")
            assert (failure.code, failure.outcome) == ("unavailable", "not_applied")
            assert "moody.py:" in failure.message
            assert "RuntimeError: not again" in failure.message

    drive(test())


def test_an_import_that_hangs_holds_up_no_other_module(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A module that is written beside it is there at once, it is said that the import still runs, and an edit that
    repairs it ends the import.
    """

    async def test() -> None:
        async with hosting(tmp_path, {"fine": GOOD}, reload=True) as host:
            folder = tmp_path / "functions"
            hang = "import threading\nthreading.Event().wait()\n"
            for name in ("w", "x", "y", "z", "zz"):
                (folder / f"{name}.py").write_text(hang)
            await host.until(lambda: any("still running" in record.message for record in caplog.records))
            write_modules(folder, {"zzz": GOOD.replace("good", "beside")})
            await host.until(lambda: "beside" in host.functions)
            assert await host.result("beside") == "beside"
            write_modules(folder, {"w": GOOD.replace("good", "repaired")})
            await host.until(lambda: "repaired" in host.functions)
            assert await host.result("repaired") == "repaired"

    with caplog.at_level(logging.WARNING, "boki.functions"):
        drive(test())
    told = [record.getMessage() for record in caplog.records if "still running" in record.message]
    assert len(told) == 5
    assert told[0].endswith("functions/w.py: its import is still running; its functions are taken over when it ends")


def test_subfolders_with_functions_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing registers them; what only helps others is left in peace."""
    folder = tmp_path / "functions"
    for path, source in {
        "pkg/m.py": "from boki import function\n\n@function\nasync def lost(ctx): ...\n",
        "pkg/deep/n.py": "import boki\n\n@boki.function(timeout_s=5)\nasync def lost(ctx): ...\n",
        "pkg/helper.py": "# decorate it with @function\nx = 1\n",
        "_private/m.py": "@function\ndef f(): ...\n",
        "pkg/data.txt": "@function",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(source)

    async def test() -> None:
        async with hosting(tmp_path, {"fine": GOOD}) as host:
            assert await host.result("good") == "good"

    with caplog.at_level(logging.WARNING, "boki.functions"):
        drive(test())
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"{folder}/{file} is not looked into: functions are registered by .py files at the top of {folder}"
        for file in ("pkg/m.py", "pkg/deep/n.py")
    ]


async def test_a_save_that_the_import_has_read_is_told_of_once(tmp_path: Path) -> None:
    """An editor that empties the file before it writes, or a formatter that saves again: one import, one line."""
    file = tmp_path / "app.py"
    file.write_text("")

    async def describe(module: str, path: str) -> Described:
        if not file.read_bytes():
            file.write_text("x = 1\n")
        return Described(ModuleInfo(module=module, path=path), {path: file.read_bytes()}, is_pinned=True)

    modules = Modules(tmp_path, describe)
    assert [[one.module for one in (await modules.refresh()).described] for _ in range(3)] == [["app"], [], []]
    file.write_text("y = 2\n")
    assert [len((await modules.refresh()).described) for _ in range(2)] == [1, 0]
