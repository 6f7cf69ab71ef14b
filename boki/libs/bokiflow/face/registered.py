"""Workflows that are registered at a gateway, and the LogBooks that they run in."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from boki import InvalidArgument, NoSuchFunction
from boki.faces import GatewayPort
from boki.libs.bokiflow.workflows import LIBRARY
from boki.log.checks import check_book
from boki.protocol.calls import FunctionInfo

_NAMED: Final = 8
"""The maximum number of workflows that are named where one is not there."""


def workflow_info(gateway: GatewayPort, workflow: str) -> FunctionInfo:
    """A registered workflow. `NoSuchFunction`, or `InvalidArgument` for a function that is none."""
    functions = gateway.functions
    info = functions.get(workflow)
    if info is None:
        known = sorted(name for name, one in functions.items() if one.settings_of(LIBRARY) is not None)
        near = get_close_matches(workflow, known, n=1)
        more = [f"{len(known) - _NAMED:,} more"] if len(known) > _NAMED else []
        listed = ", ".join([*known[:_NAMED], *more]) or "none"
        guess = f"did you mean {near[0]}?" if near else f"there are {listed}"
        raise NoSuchFunction(f"there is no workflow {workflow!r:.100}: {guess}", function=workflow[:128])
    if info.settings_of(LIBRARY) is None:
        raise InvalidArgument(
            f"{workflow} is a function and no workflow: call it at /function/{workflow}, or decorate it with @workflow",
            field="workflow",
        )
    return info


def is_workflow(gateway: GatewayPort, function: str) -> bool:
    """Whether that function is registered, and a workflow."""
    info = gateway.functions.get(function)
    return info is not None and info.settings_of(LIBRARY) is not None


def book_of(book: str, info: FunctionInfo) -> str:
    """The LogBook of a workflow: the one that is named, else its own."""
    return check_book(book) if book else info.book or info.name
