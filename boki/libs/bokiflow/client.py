"""Workflows from outside of functions, for `async` code. The plain twin is `client_blocking`.

::

    async with Client("http://127.0.0.1:8080") as client:
        flows = FlowClient(client)
        trip = await flows.start(travel, "Rome", id="order-7")  # or by name: flows.start("travel", "Rome")
        await trip.signal("go", "now")
        booking = await trip.result()

Each method is a request to the gateway, which calls the method of that name of a `boki.libs.bokiflow.Handle`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Generic, TypeVar, Unpack, overload

import msgspec

from boki import Client, DeadlineExceeded
from boki.extending import OVER, Attribute, encode_any
from boki.libs.bokiflow.client_schedules import FlowSchedule
from boki.libs.bokiflow.handles import WorkflowState, WorkflowStatus
from boki.libs.bokiflow.options import IfEnded, IfRunning, ScheduleOptions, StartOptions
from boki.libs.bokiflow.outside import (
    creation_of,
    failure_of_body,
    id_or_new,
    name_of,
    pairs_of,
    path_of,
    payload_of,
    result_of_body,
    schedule_of_body,
    schedule_path_of,
    state_of_body,
)
from boki.libs.bokiflow.schedules.handle import ScheduleState
from boki.libs.bokiflow.timeline import Span
from boki.libs.bokiflow.upgrading import Upgrade
from boki.libs.bokiflow.workflows import Workflow
from boki.libs.fold.arguments import MAX_KEY_CHARS

Pay = TypeVar("Pay")
R = TypeVar("R")

_POLL_S = 20.0
_ANSWER_S = 40.0
"""How much longer than usual an answer may take."""
_PAGE = 100


class FlowClient:
    """The workflows of a running system."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @overload
    async def start(
        self,
        workflow: Workflow[None, R],
        /,
        *,
        book: str = "",
        **options: Unpack[StartOptions],
    ) -> FlowHandle[R]: ...

    @overload
    async def start(
        self,
        workflow: Workflow[Pay, R],
        payload: Pay,
        /,
        *,
        book: str = "",
        **options: Unpack[StartOptions],
    ) -> FlowHandle[R]: ...

    @overload
    async def start(
        self,
        workflow: str,
        payload: Any = ...,
        /,
        *,
        book: str = "",
        **options: Unpack[StartOptions],
    ) -> FlowHandle[Any]: ...

    async def start(
        self,
        workflow: Workflow[Any, Any] | str,
        /,
        *payload: Any,
        id: str | None = None,  # noqa: A002 - as everywhere
        if_running: IfRunning = "use",
        if_ended: IfEnded = "use",
        delay_s: float = 0,
        attributes: Mapping[str, Attribute] | None = None,
        limit_key: str | None = None,
        priority: int = 0,
        book: str = "",
    ) -> FlowHandle[Any]:
        """Start a workflow, given as the function or by its name; its handle, once that is durable.

        See `Workflow.start` for the options. After an error that leaves the
        outcome open, start it again under the same `id`.
        """
        query = {
            "id": id_or_new(id),
            "if_running": if_running,
            "if_ended": if_ended,
            "delay_s": delay_s,
            "attribute": pairs_of(attributes),
            "limit_key": limit_key or "",
            "priority": priority,
            "book": book,
        }
        body = payload_of(workflow, payload)
        found = await self._client.page(path_of(name_of(workflow)), query, body, posts=True)
        return FlowHandle(self._client, workflow, found["id"], book)

    @overload
    def handle(self, workflow: Workflow[Any, R], id: str, *, book: str = "") -> FlowHandle[R]: ...

    @overload
    def handle(self, workflow: str, id: str, *, book: str = "") -> FlowHandle[Any]: ...

    def handle(self, workflow: Workflow[Any, Any] | str, id: str, *, book: str = "") -> FlowHandle[Any]:  # noqa: A002
        """The workflow of that id, whether it was started or not. Nothing is sent."""
        return FlowHandle(self._client, workflow, id, book)

    async def list(
        self,
        workflow: Workflow[Any, Any] | str = "",
        *,
        states: Sequence[WorkflowStatus] = (),
        id: str = "",  # noqa: A002
        attributes: Mapping[str, Attribute] | None = None,
        since_us: int = 0,
        until_us: int = 0,
        version: int = 0,
        limit: int = _PAGE,
    ) -> list[WorkflowState]:
        """Workflows, those that changed last first: of that name, in one of these states, whose ids begin with `id`."""
        query: dict[str, object] = {
            "workflow": name_of(workflow),
            "state": [*states],
            "id": id,
            "attribute": pairs_of(attributes),
            "since_us": since_us,
            "until_us": until_us,
            "version": version,
        }
        return [state_of_body(one) for one in await self._pages(path_of(), query, "workflows", limit)]

    async def schedule(
        self,
        workflow: Workflow[Any, Any] | str,
        /,
        *payload: Any,
        id: str,  # noqa: A002
        book: str = "",
        **options: Unpack[ScheduleOptions],
    ) -> FlowSchedule:
        """Have the workflow be started with this payload at each tick of a cron line or an interval.

        See `Workflow.schedule` for the options, and for what is refused. The payload of one that takes bytes must be
        UTF-8.
        """
        found = self.schedule_handle(workflow, id, book=book)
        said = creation_of(workflow, payload, options)
        await self._client.page(schedule_path_of(found.workflow, found.id), {"book": book}, said, posts=True)
        return found

    def schedule_handle(self, workflow: Workflow[Any, Any] | str, id: str, *, book: str = "") -> FlowSchedule:  # noqa: A002
        """The schedule of that id, whether it was created or not. Nothing is sent."""
        return FlowSchedule(self._client, workflow, id, book)

    async def schedules(
        self,
        workflow: Workflow[Any, Any] | str = "",
        *,
        id: str = "",  # noqa: A002
        limit: int = _PAGE,
    ) -> Sequence[ScheduleState]:
        """The schedules that there are: of that workflow, and those whose ids begin with `id`."""
        query = {"workflow": name_of(workflow), "id": id}
        return [schedule_of_body(one) for one in await self._pages(schedule_path_of(), query, "schedules", limit)]

    async def _pages(self, path: str, query: Mapping[str, object], name: str, limit: int) -> Sequence[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        before = ""
        while len(found) < limit:
            asked = {**query, "before": before, "limit": min(_PAGE, limit - len(found))}
            page = await self._client.page(path, asked)
            found += page[name]
            before = page.get("before", "")
            if not before:
                break
        return found


class FlowHandle(Generic[R]):
    """A workflow by its id, from outside. It may have ended, or not have been started yet."""

    def __init__(self, client: Client, workflow: Workflow[Any, Any] | str, flow_id: str, book: str) -> None:
        """See `FlowClient.start` and `FlowClient.handle`."""
        self._client = client
        self._code = workflow
        self.workflow = name_of(workflow)
        """The name of the workflow."""
        self.id = flow_id
        """The id that it was given when it was started."""
        self._book = book

    def __repr__(self) -> str:
        return f"<{self.workflow} {self.id!r}>"

    async def status(self) -> WorkflowState:
        """See `Handle.status`."""
        return state_of_body(await self._get())

    async def result(self, *, wait_s: float | None = None) -> R:
        """What it returned, once it has ended; raises what it ended with. `DeadlineExceeded` after `wait_s`."""
        until = None if wait_s is None else monotonic() + wait_s
        while True:
            left_s = _POLL_S if until is None else max(0.0, min(_POLL_S, until - monotonic()))
            body = await self._get(wait_s=left_s)
            failure = failure_of_body(body)
            if failure is not None:
                raise failure.error()
            if body["state"] in OVER:
                found: R = result_of_body(self._code, body)
                return found
            if until is not None and monotonic() >= until:
                raise DeadlineExceeded(
                    f"{self!r} has not ended (it is {body['state']}): wait longer, or ask again", outcome="not_applied"
                )

    async def history(self, *, limit: int = 200) -> list[Span]:
        """What it did: its last `limit` steps, calls, timers and messages, as `boki flow show` draws them."""
        body = await self._get("history", query={"limit": limit})
        return msgspec.convert(body["spans"], list[Span])

    async def signal(self, name: str, payload: Any = None, *, key: str | None = None) -> None:
        """See `Handle.signal`."""
        await self._ask("signal", name, payload=(payload, f"payload of signal {name}"), key=key or "")

    async def update(self, name: str, payload: Any = None, *, id: str | None = None, wait_s: float = 60.0) -> Any:  # noqa: A002
        """See `Handle.update`. `DeadlineExceeded` after `wait_s`: the same `id` gives the answer later."""
        key, until = id_or_new(id, MAX_KEY_CHARS), monotonic() + wait_s
        while True:
            left_s = min(_POLL_S, until - monotonic())
            try:
                found = await self._ask(
                    "update", name, payload=(payload, f"payload of update {name}"), key=key, wait_s=max(left_s, 0.001)
                )
            except DeadlineExceeded:
                if monotonic() >= until:
                    raise
            else:
                return found["answer"]

    async def query(self, name: str, payload: Any = None) -> Any:
        """See `Handle.query`."""
        return (await self._ask("query", name, payload=(payload, f"payload of query {name}")))["answer"]

    async def resolve(self, promise: str, value: Any = None) -> None:
        """See `Handle.resolve`."""
        await self._ask("promise", promise, payload=(value, f"value of promise {promise}"))

    async def reject(self, promise: str, reason: str = "") -> None:
        """Have the promise of that name raise a `TerminalError` that says why. See `Handle.reject`."""
        await self._ask("promise", promise, "reject", query={"reason": reason})

    async def cancel(self, reason: str = "") -> None:
        """See `Handle.cancel`."""
        await self._ask("cancel", query={"reason": reason})

    async def kill(self) -> None:
        """See `Handle.kill`."""
        await self._ask("kill")

    async def pause(self, reason: str = "") -> None:
        """See `Handle.pause`."""
        await self._ask("pause", query={"reason": reason})

    async def resume(self) -> None:
        """See `Handle.resume`."""
        await self._ask("resume")

    async def rewind(self, step: int | None = None) -> int:
        """See `Handle.rewind`."""
        found = await self._ask("rewind", query={"step": "" if step is None else str(step)})
        return int(found["step"])

    async def fork(self, step: int | None = None, *, id: str | None = None) -> FlowHandle[R]:  # noqa: A002
        """See `Handle.fork`."""
        found = await self._ask("fork", query={"step": "" if step is None else str(step), "id": id_or_new(id)})
        return FlowHandle(self._client, self._code, found["id"], self._book)

    async def upgrade(self, version: int | None = None, *, dry_run: bool = False) -> Upgrade:
        """See `Handle.upgrade`."""
        query = {"version": version or "", "dry_run": "true" if dry_run else ""}
        return msgspec.convert(await self._ask("upgrade", query=query), Upgrade)

    async def _get(self, *path: str, query: Mapping[str, object] | None = None, wait_s: float = 0.0) -> dict[str, Any]:
        return await self._ask(*path, query=query, wait_s=wait_s, posts=False)

    async def _ask(
        self,
        *path: str,
        payload: tuple[Any, str] | None = None,
        query: Mapping[str, object] | None = None,
        key: str = "",
        wait_s: float = 0.0,
        posts: bool = True,
    ) -> dict[str, Any]:
        waits = {"wait_s": f"{wait_s:.6f}"} if wait_s > 0 else {}
        asked = {"book": self._book, **waits, **(query or {})}
        body = None if payload is None else encode_any(*payload)
        where = path_of(self.workflow, self.id, *path)
        return await self._client.page(where, asked, body, key, posts=posts, wait_s=max(wait_s, _ANSWER_S))
