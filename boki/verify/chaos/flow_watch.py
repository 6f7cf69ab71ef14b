"""Workflows under chaos: users start errands, signal and cancel them over HTTP, and its outcome all.

The workflows run in the cluster's own workers, so the faults that hit engines, gateways and the log hit them. What a
user asks is repeated under its key until it is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

import msgspec

from boki.client import Client
from boki.errors import BokiError, NotFound
from boki.libs.bokiflow import NoSuchWorkflow, WorkflowEnded
from boki.libs.bokiflow.face.requests import Flows
from boki.log.record import Record
from boki.verify.workloads.errand_checks import Run, find_wrong_flows
from boki.verify.workloads.errands import BOOK, DEEDS, DONE, ITEM, KEYED, Errand, chore, draw_errand, errand

_USERS: Final = 3
_REST_S: Final = 0.5
_RETRY_S: Final = 0.3
_POLL_S: Final = 2.0
_ENDS_WITHIN_S: Final = 120.0
"""How long the workflows under way may take after the last fault: one of them may wait for a lease or two."""
_OVER: Final = ("done", "failed", "cancelled")


class FlowWatch:
    """The users of one run. `violations` are what must not have come of their workflows."""

    def __init__(self, url: str, seed: int, tell: Callable[[str], None]) -> None:
        self.violations: list[str] = []
        self._url = url
        self._seed = seed
        self._tell = tell
        self._runs: list[Run] = []
        self._users: list[asyncio.Task[None]] = []
        self._is_calm = False

    @property
    def ended_count(self) -> int:
        """How many workflows have come to their end."""
        return sum(bool(run.ended) for run in self._runs)

    def start(self) -> None:
        """Let the users begin."""
        self._users = [asyncio.create_task(self._use(number + 1)) for number in range(_USERS)]

    async def finish(self) -> None:
        """Begin no more workflows, wait for the end of those under way, and judge. The cluster is well again."""
        self._is_calm = True
        _, late = await asyncio.wait(self._users, timeout=_ENDS_WITHIN_S)
        for user in self._users:
            if not user.cancel() and user.exception() is not None:
                self.violations.append(f"a user of workflows was refused: {user.exception()!r}")
        if late:
            self._tell(f"{len(late)} workflows have not ended {_ENDS_WITHIN_S:g} s after the last fault")
        deeds: list[Record] = []
        keyed: list[Record] = []
        try:
            async with Client(self._url) as client:
                book = client.logbook(DEEDS)
                await book.sync()
                for tag, records in ((DONE, deeds), (KEYED, keyed)):
                    start = 0
                    while (page := await book.read(tag, start=start)).records:
                        records += page.records
                        start = page.next_start
        except BokiError as error:
            self.violations.append(f"the deeds of workflows could not be read when every fault was over: {error!r}")
            return
        self.violations += map(str, find_wrong_flows(self._runs, deeds, keyed))
        if not self.ended_count:
            self.violations.append("not one workflow has ended")

    async def close(self) -> None:
        """Leave no task behind."""
        for user in self._users:
            user.cancel()
        await asyncio.gather(*self._users, return_exceptions=True)

    # what users do

    async def _use(self, number: int) -> None:
        random = Random(f"{self._seed}/flows/{number}")
        with Flows(self._url, "", BOOK) as flows:
            while not self._is_calm:
                run = Run(f"errand-{number}-{len(self._runs)}", draw_errand(random))
                self._runs.append(run)
                await self._run(flows, run, random)
                await asyncio.sleep(_REST_S * random.random())

    async def _run(self, flows: Flows, run: Run, random: Random) -> None:
        order = run.order
        path = (errand.name, run.id)
        early = random.choice((0, 0, order.items))
        await self._signal(flows, run, early, random)
        await self._post(flows, errand.name, body=order, key=f"start {run.id}", query={"id": run.id})
        await self._signal(flows, run, order.items * order.rounds - early, random)
        if order.is_endless:
            await asyncio.sleep(random.random() * 1.5)
            with suppress(WorkflowEnded):
                await self._post(flows, *path, "cancel", query={"reason": "enough"})
        run.ended, run.done = await self._end_of(flows, *path)
        if order.is_endless and await self._is_there(flows, chore.name, f"{run.id}/chore"):
            run.child, _ = await self._end_of(flows, chore.name, f"{run.id}/chore")

    async def _signal(self, flows: Flows, run: Run, count: int, random: Random) -> None:
        for _ in range(count):
            await asyncio.sleep(random.random() * 0.6)
            run.sent.append(number := len(run.sent))
            await self._post(flows, errand.name, run.id, "signal", ITEM, body=number, key=str(number))

    async def _post(self, flows: Flows, *path: str, body: Any = None, **options: Any) -> None:
        """Ask until it is answered: the key, or the id in the path, makes that one request."""
        if body is not None:
            options |= {"body": msgspec.json.encode(body), "content_type": "application/json"}
        await self._until_done(lambda: flows.post(*path, **options))

    async def _is_there(self, flows: Flows, *path: str) -> bool:
        """Whether there is a workflow of that id."""

        def look() -> bool:
            try:
                flows.get(*path)
            except NoSuchWorkflow:
                return False
            return True

        return bool(await self._until_done(look))

    async def _end_of(self, flows: Flows, *path: str) -> tuple[str, Errand | None]:
        """How a workflow has ended, once it has: "done" and its result, or the type of its error."""
        while True:
            state = await self._until_done(lambda: flows.get(*path, query={"wait_s": _POLL_S}, wait_s=_POLL_S))
            if state["state"] == "done":
                is_errand = path[0] == errand.name
                return "done", msgspec.convert(state["result"], Errand) if is_errand else None
            if state["state"] in _OVER:
                return str(state["error"]["details"].get("error_type")), None

    async def _until_done(self, ask: Callable[[], Any]) -> Any:
        while True:
            try:
                return await asyncio.to_thread(ask)
            except WorkflowEnded:
                raise
            except BokiError as error:
                told = f"a user was told: {error.message}"
                if isinstance(error, NotFound) and told not in self.violations:
                    self.violations.append(told)  # whatever they ask for is there
                await asyncio.sleep(_RETRY_S)
