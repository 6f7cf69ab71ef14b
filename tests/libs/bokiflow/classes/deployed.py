"""Versions of a workflow's code in every mode: which one runs a call is what an engine decides by the call's pin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from boki import Context
from boki.api.call_state import CallState
from boki.extending import PINNED, CallsById, version_of
from boki.libs.bokiflow import Workflow, workflows
from boki.protocol.calls import Call


class Deployment:
    """What is deployed: version `number` of the code."""

    def __init__(self, code: tuple[Workflow[Any, Any], ...], *, pins: bool) -> None:
        self.number = 1
        self._code = code
        self._pins = pins

    def runs(self, ctx: Context, workflow: Any) -> Any:
        """The code that runs a call: as `boki.dispatch.server.deployed` chooses it."""
        chosen = CallsById(ctx).chosen
        number = version_of(None if chosen is None else chosen.attributes) or self.number
        return self._code[number - 1] if workflow.name == self._code[0].name else workflow

    def pinned(self, call: Call) -> Call:
        """The call as it is accepted: as `boki.books.calls.lives` pins it."""
        if not self._pins or call.chosen is None or call.chosen.attributes.get(PINNED) != 0:
            return call
        attributes = {**call.chosen.attributes, PINNED: self.number}
        return msgspec.structs.replace(call, chosen=msgspec.structs.replace(call.chosen, attributes=attributes))


@contextmanager
def deployed(*code: Workflow[Any, Any], pins: bool = True) -> Iterator[Deployment]:
    """Versions 1, 2 and so on of a workflow, the first of which runs. Start it and ask for it by the first.

    `pins`: whether calls are pinned to the version that runs where they are accepted, as on a cluster; else they run
    with the code that exists, as under `boki dev`.
    """
    found = Deployment(code, pins=pins)
    run_workflow, later = workflows.run_workflow, CallState.later

    async def run(ctx: Context, workflow: Any, arguments: tuple[Any, ...]) -> Any:
        return await run_workflow(ctx, found.runs(ctx, workflow), arguments)

    def accepted(*arguments: Any, **options: Any) -> Call:
        return found.pinned(later(*arguments, **options))

    with patch.object(workflows, "run_workflow", run), patch.object(CallState, "later", accepted):
        yield found
