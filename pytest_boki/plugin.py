"""`async def` tests, and contexts over a log in memory and virtual time as fixtures.

- `boki_context` is a `boki.testing.Context` for `async def` tests, `boki_blocking_context` one for plain `def` tests.
  The marker `boki` says what they are made with: `@pytest.mark.boki(book="guests", functions=[remind])`.
- An `async def` test that uses `boki_context` runs in the event loop of that context. One that uses no fixture of ours
  is run only if no other plugin does, as `asyncio.run` would.

Nothing of Boki, nor asyncio, is imported before a test needs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    import asyncio

    from boki.testing import BlockingContext, Context

_MARKER: Final = "boki"
_OPTIONS: Final = ("book", "functions", "log", "limits")
_RUNNER: Final = pytest.StashKey["asyncio.Runner"]()
_IS_PLAIN: Final = pytest.StashKey[bool]()
"""The test is a plain `def` and takes `boki_context` itself."""


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", f"{_MARKER}({', '.join(_OPTIONS)}): what boki_context and boki_blocking_context are made with."
    )


@pytest.fixture
def boki_context(request: pytest.FixtureRequest) -> Iterator[Context]:
    """A context for an `async def` test: its LogBook is in memory, its time is virtual."""
    import asyncio

    import boki.testing
    from boki.errors import BokiError

    if request.node.stash.get(_IS_PLAIN, False):  # nothing in it would be awaited, and the test would pass
        pytest.fail(
            "boki_context is for `async def` tests: write `async def`, or take boki_blocking_context", pytrace=False
        )
    options = _options(request)
    with asyncio.Runner() as runner:
        request.node.stash[_RUNNER] = runner
        opened = boki.testing.context(**options)
        try:
            context = runner.run(opened.__aenter__())
        except BokiError as error:
            pytest.fail(f"boki_context: {error.message}", pytrace=False)
        try:
            yield context
        finally:
            runner.run(opened.__aexit__(None, None, None))


@pytest.fixture
def boki_blocking_context(request: pytest.FixtureRequest) -> Iterator[BlockingContext]:
    """A blocking context for a plain `def` test: its LogBook is in memory, its time is virtual."""
    import boki.testing
    from boki.errors import BokiError

    opened = boki.testing.blocking_context(**_options(request))
    try:
        context = opened.__enter__()
    except BokiError as error:
        pytest.fail(f"boki_blocking_context: {error.message}", pytrace=False)
    try:
        yield context
    finally:
        opened.__exit__(None, None, None)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test whose context lives in our event loop must run there, whatever plugin runs other `async def` tests."""
    if not isinstance(item, pytest.Function) or boki_context.__name__ not in item.fixturenames:
        return
    if _is_async(item):
        item.runtest = lambda: _run_in(item.stash[_RUNNER], item)  # type: ignore[method-assign]
    elif not inspect.iscoroutinefunction(inspect.unwrap(item.obj)):
        item.stash[_IS_PLAIN] = boki_context.__name__ in inspect.signature(item.obj).parameters


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test that no other plugin has taken: those that take some are asked first, or have made it a
    plain function by now. (Asked last, this would come after pytest itself, which fails the test.)
    """
    if not _is_async(pyfuncitem):
        return None
    import asyncio

    with asyncio.Runner() as runner:
        _run_in(runner, pyfuncitem)
    return True


def _is_async(item: pytest.Function) -> bool:
    return inspect.iscoroutinefunction(item.obj)  # and not what it wraps: pytest-asyncio wraps what it runs


def _run_in(runner: asyncio.Runner, item: pytest.Function) -> None:
    values = {name: item.funcargs[name] for name in inspect.signature(item.obj).parameters if name in item.funcargs}
    runner.run(item.obj(**values))


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the test's markers say; the nearest one wins."""
    options: dict[str, Any] = {}
    for marker in request.node.iter_markers(_MARKER):
        if marker.args or not marker.kwargs.keys() <= set(_OPTIONS):
            pytest.fail(
                f"@pytest.mark.{_MARKER} takes {', '.join(f'{name}=' for name in _OPTIONS)} only", pytrace=False
            )
        options = {**marker.kwargs, **options}
    return options
