"""Schedules from outside of functions, for `async` code. The plain twin is `client_schedules_blocking`.

Each method is a request to the gateway, which calls the method of that name of a `Schedule`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import uuid4

from boki import Client
from boki.extending import Payload, encode_any
from boki.libs.bokiflow.outside import name_of, schedule_of_body, schedule_path_of
from boki.libs.bokiflow.schedules.handle import MAX_SCHEDULE_ID_CHARS, MAX_TRIGGER_CHARS, ScheduleState
from boki.libs.bokiflow.schedules.spec import Overlap
from boki.libs.bokiflow.workflows import Workflow
from boki.libs.fold.arguments import check_key


class FlowSchedule:
    """A schedule by its id, from outside. It may not have been created yet."""

    def __init__(self, client: Client, workflow: Workflow[Any, Any] | str, schedule_id: str, book: str) -> None:
        """See `FlowClient.schedule` and `FlowClient.schedule_handle`."""
        self._client = client
        self.workflow = name_of(workflow)
        """The name of the workflow that it starts."""
        self.id = check_key(schedule_id, "id", MAX_SCHEDULE_ID_CHARS)
        """The id that it was given when it was created."""
        self._book = book

    def __repr__(self) -> str:
        return f"<schedule {self.id!r} of {self.workflow}>"

    async def state(self) -> ScheduleState:
        """What is known of it: its next ticks, what runs, and what it did lately. `NoSuchSchedule`"""
        return schedule_of_body(await self._ask(posts=False))

    async def pause(self, reason: str = "") -> None:
        """Let ticks pass by until `resume`. What runs continues, and what waits for it is started."""
        await self._ask("pause", query={"reason": reason})

    async def resume(self) -> None:
        """Let ticks count again, from now on: those that have passed stay out."""
        await self._ask("resume")

    async def trigger(self, *, key: str | None = None, overlap: Overlap | None = None) -> str:
        """Start the workflow now, also while paused: its id. The same key starts it once. See `Schedule.trigger`."""
        chosen = uuid4().hex if key is None else check_key(key, "key", MAX_TRIGGER_CHARS)
        return str((await self._ask("trigger", query={"overlap": overlap or ""}, key=chosen))["id"])

    async def backfill(self, start: datetime, end: datetime, *, overlap: Overlap | None = None) -> int:
        """Start the workflows of the ticks from `start` to before `end`: how many that is. See `Schedule.backfill`."""
        said = encode_any({"start": start, "end": end, "overlap": overlap}, "times of a backfill")
        return int((await self._ask("backfill", said=said))["ticks"])

    async def delete(self) -> None:
        """Start nothing any more. What runs continues. Again: `NoSuchSchedule`."""
        await self._ask("delete")

    async def _ask(
        self,
        *path: str,
        said: Payload | None = None,
        query: Mapping[str, object] | None = None,
        key: str = "",
        posts: bool = True,
    ) -> dict[str, Any]:
        where = schedule_path_of(self.workflow, self.id, *path)
        return await self._client.page(where, {"book": self._book, **(query or {})}, said, key, posts=posts)
