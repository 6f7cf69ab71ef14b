"""Workflows and what they did as JSON objects, for HTTP and for `--json`."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from boki.gateway.server.http.answers import CallBody, call_fields, without_traceback
from boki.gateway.server.http.openapi_parts import TEXT, Json, array_of, object_of
from boki.libs.bokiflow.face.queues import Place
from boki.libs.bokiflow.handles import WorkflowStatus, state_of
from boki.libs.bokiflow.schedules.spec import OVERLAPS
from boki.libs.bokiflow.timeline import Kind, SpanState, Wait
from boki.protocol.calls import Attribute, InvocationState

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
_COUNT: Final[Json] = {"type": "integer", "minimum": 0}
_SECONDS: Final[Json] = {"type": "number", "minimum": 0}
_OVERLAP: Final[Json] = {"enum": list(OVERLAPS)}
_SPEC: Final[Json] = {
    "cron": TEXT | {"description": "Minute, hour, day, month, weekday"},
    "every_s": _SECONDS | {"description": "An interval, in place of a cron line"},
    "offset_s": _SECONDS,
    "zone": TEXT,
    "overlap": _OVERLAP,
    "catch_up_s": _SECONDS | {"description": "Ticks missed longer ago are left out; at least 10 s count"},
    "jitter_s": _SECONDS,
}
_SCHEDULE: Final = object_of(
    {
        "id": TEXT,
        "workflow": TEXT,
        "book": TEXT,
        "invocation": TEXT | {"description": "The id of the logged call that attends to it"},
        "status": {"enum": ["active", "paused", "failed"]},
        "when": TEXT,
        "spec": object_of({}, _SPEC),
    },
    {
        "note": TEXT | {"description": "Why it is paused, or failed"},
        "next_us": array_of(_COUNT),
        "running": array_of(TEXT) | {"description": "Ids of its workflows that have not ended"},
        "queued": array_of(TEXT),
        "counts": {"type": "object", "additionalProperties": _COUNT},
        "recent": array_of(object_of({"key": TEXT, "tick_us": _COUNT, "verdict": TEXT, "at_us": _COUNT})),
    },
    "A schedule",
)
ScheduleShape = Annotated[Any, Meta(extra_json_schema=_SCHEDULE)]


class WorkflowBody(CallBody, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow."""

    workflow: str
    invocation: Annotated[str, Meta(description="The id of its logged call")]
    state: WorkflowStatus
    attributes: Annotated[dict[str, Attribute], Meta(description="What lists find it by")] = {}
    queue: Place | UnsetType = UNSET
    version: Annotated[Count, Meta(description="The deployed version of the functions that it is pinned to")] = 0


def state_shape(call: InvocationState, queue: Place | None = None) -> WorkflowBody:
    """A workflow as its logged call describes it; `queue`: where it waits."""
    known = state_of(call.name or call.id, call)
    fields = call_fields(call, None if call.failure is None else without_traceback(call.failure))
    return WorkflowBody(
        **(fields | {"id": known.id}),
        workflow=known.workflow,
        invocation=call.id,
        state=known.status,
        attributes=dict(known.attributes),
        queue=UNSET if queue is None else queue,
        version=known.version,
    )


class SpanBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that a workflow did or was told."""

    kind: Kind
    name: str
    state: SpanState
    from_us: Count
    until_us: Count
    n: Annotated[int, Meta(description="The number of the command, in the order of their starts")] = -1
    next_us: Annotated[Count, Meta(description="When the next attempt is due")] = 0
    attempts: Count = 0
    error: str = ""
    value: Annotated[str, Meta(description="What it ended with, cut")] = ""
    waits: Annotated[tuple[Wait, ...], Meta(description="Waits for a next attempt, with the error before each")] = ()
