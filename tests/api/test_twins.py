"""The async and the blocking API are the same API: one pair of eyes for both."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from boki import blocking
from boki.api import blocking_context, blocking_logbook, context, logbook
from tests import unasync

TWINS = [
    (context.Context, blocking_context.Context),
    (logbook.LogBook, blocking_logbook.LogBook),
    (logbook.LogSession, blocking_logbook.LogSession),
]


AWAITING_ONLY = {"come_to_rest"}
"""What a client does before its event loop ends; blocking code keeps no tasks that could rest."""


def public(cls: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in vars(cls).items()
        if not name.startswith("_") and name not in AWAITING_ONLY and callable(member)
    }


@pytest.mark.parametrize(("awaiting", "plain"), TWINS, ids=lambda cls: cls.__name__)
def test_the_methods_are_the_same(awaiting: type, plain: type) -> None:
    """The same names, parameters, defaults and promises; one awaits and the other does not."""
    assert public(awaiting).keys() == public(plain).keys()
    for name, method in public(awaiting).items():
        twin = public(plain)[name]
        assert not inspect.iscoroutinefunction(twin)
        if name not in ("append", "ask") or awaiting is not logbook.LogSession:
            assert [repr(p) for p in inspect.signature(method).parameters.values()] == [
                repr(p) for p in inspect.signature(twin).parameters.values()
            ], name
            said = (method.__doc__ or "").replace("async for", "for").replace("await ", "")
            assert said.split() == (twin.__doc__ or "").split(), name


def test_the_blocking_client_is_made_from_the_async_one() -> None:
    """As below, for the whole file."""
    assert (unasync.BOKI / unasync.CLIENT[1]).read_text(encoding="utf-8") == unasync.blocking_client()


@pytest.mark.parametrize("name", unasync.CLASSES)
def test_the_blocking_classes_are_those_that_are_made(name: str) -> None:
    """Nobody changes one half alone: `python -m tests.unasync` makes the other one."""
    twin = unasync.BOKI / unasync.CLASSES[name]
    assert twin.read_text(encoding="utf-8") == unasync.plain_classes(name)


def test_what_the_blocking_module_offers() -> None:
    """`boki.blocking` has the names of `boki` that differ, and the bridge from one side to the other."""
    assert blocking.Context is blocking_context.Context
    assert blocking.LogBook is blocking_logbook.LogBook
    assert set(blocking.__all__) == {"Context", "LogBook", "Subscription", "run"}


def test_the_blocking_twin_awaits_nothing() -> None:
    """Nor does it import asyncio."""
    for module in (blocking_context, blocking_logbook):
        assert not re.search(r"\b(await|async|asyncio)\b", inspect.getsource(module).split('"""', 2)[2])
