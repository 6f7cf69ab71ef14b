"""The pytest plugin: `async def` tests and contexts with nothing to configure, and nobody else disturbed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pytest_boki import plugin

pytest_plugins = ["pytester"]

FUNCTIONS = """
import pytest

import boki.blocking
import boki.testing
from boki import Context, function


@function
async def remind(ctx: Context, who: str) -> str:
    await ctx.logbook.append(who.encode())
    return "reminded"


@function
def shout(ctx: boki.blocking.Context, word: str) -> int:
    return ctx.logbook.append(word.upper().encode())
"""


def run(pytester: pytest.Pytester, tests: str) -> pytest.RunResult:
    """The tests in a project that has configured nothing, with every warning an error."""
    pytester.makepyfile(FUNCTIONS + tests)
    strict = ("-W", "error", "--strict-markers", "--strict-config", "-p", "no:cacheprovider", "-p", "no:xdist")
    return pytester.runpytest_inprocess(*strict, plugins=[plugin])


def test_fixtures_give_contexts_of_both_kinds(pytester: pytest.Pytester) -> None:
    """With the book and the functions that a marker names, in virtual time; each test has a log of its own."""
    result = run(
        pytester,
        """
pytestmark = pytest.mark.boki(functions=[remind])


@pytest.mark.boki(book="guests")
async def test_later(boki_context):
    assert boki_context.logbook.name == "guests"
    call = await boki_context.invoke_later("remind", "Ada", delay_s=3600)
    await boki_context.clock.advance(3599)
    assert await boki_context.logbook.check_tail() is None
    assert await boki_context.result_of(call) == "reminded"


@pytest.mark.parametrize("word", ["hey", "you"])
def test_blocking(boki_blocking_context, word):
    assert boki_blocking_context.logbook.name == "test"
    assert boki_blocking_context.logbook.check_tail() is None
    seqnum = shout(boki_blocking_context, word)
    assert boki_blocking_context.logbook.get(seqnum).data == word.upper().encode()


class TestInAClass:
    async def test_it(self, boki_context, tmp_path):
        assert await remind(boki_context, tmp_path.name) == "reminded"
""",
    )
    result.assert_outcomes(passed=4)


def test_async_tests_without_a_fixture_run_too(pytester: pytest.Pytester) -> None:
    """What the documents show can be pasted (found.md, E2); a failure is one, and names its line."""
    result = run(
        pytester,
        """
async def test_context():
    async with boki.testing.context() as ctx:
        assert await remind(ctx, "Ada") == "reminded"


async def test_wrong(boki_context):
    assert await remind(boki_context, "Ada") == "forgotten"


async def test_wrong_too():
    assert 1 == 2
""",
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["E *'reminded' == 'forgotten'*", "E *assert 1 == 2*"])


def test_a_marker_that_says_something_else_is_refused(pytester: pytest.Pytester) -> None:
    """With the names that there are; the marker itself is known to pytest."""
    result = run(pytester, "@pytest.mark.boki(bok='guests')\nasync def test_it(boki_context):\n    pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*@pytest.mark.boki takes book=, functions=, log=, limits= only*"])


def test_a_marker_with_names_in_place_of_functions_is_refused_in_a_line(pytester: pytest.Pytester) -> None:
    """For both fixtures, and without the frames of the plugin."""
    result = run(
        pytester,
        """
@pytest.mark.boki(functions=["remind"])
async def test_it(boki_context):
    pass


@pytest.mark.boki(functions=["remind"])
def test_blocking(boki_blocking_context):
    pass
""",
    )
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        ["boki_context: functions*is the name 'remind'*", "boki_blocking_context: functions*is the name 'remind'*"]
    )
    result.stdout.no_fnmatch_line("*plugin.py*")


def test_a_plain_test_is_not_given_the_context_of_async_ones(pytester: pytest.Pytester) -> None:
    """Nothing in it would be awaited, and it would pass. Fixtures may take it for an `async def` test."""
    result = run(
        pytester,
        """
@pytest.fixture
def guests(boki_context):
    return boki_context.logbook


def test_plain(boki_context):
    pass


async def test_it(guests):
    await guests.append(b"Ada")
""",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["boki_context is for `async def` tests: write `async def`, or take boki_blocking_context"]
    )


def test_other_plugins_keep_their_async_tests(pytester: pytest.Pytester) -> None:
    """Those that another plugin runs are left to it; those that use our context run in its event loop all the same."""
    pytester.makeconftest(
        """
import asyncio
import inspect

import pytest

TAKEN = []


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        TAKEN.append(pyfuncitem.name)
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
        return True


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"taken: {TAKEN}")
"""
    )
    result = run(
        pytester,
        """
async def test_theirs():
    pass


async def test_ours(boki_context):
    assert await remind(boki_context, "Ada") == "reminded"
""",
    )
    result.assert_outcomes(passed=2)
    assert "taken: ['test_theirs']" in result.outlines


def test_starting_pytest_imports_nothing_of_boki() -> None:
    """Projects that only have Boki installed wait for nothing."""
    code = "import sys, pytest_boki.plugin; print(sorted({'boki', 'asyncio', 'msgspec'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_pytest_finds_the_plugin() -> None:
    """By an entry point under the module's own name, so that naming it twice is no error."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"pytest_boki.plugin": "pytest_boki.plugin"}
    assert "pytest_boki" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
