"""What the OpenAPI document says of schedules."""

from __future__ import annotations

from typing import Final

from boki.gateway.server.http.openapi_parts import (
    KEY,
    NOTHING,
    POSITION,
    TEXT,
    TIMEOUT,
    Json,
    array_of,
    json_of,
    object_of,
    operation_of,
    path_parameter,
    query_parameter,
)
from boki.libs.bokiflow.schedules.spec import OVERLAPS

_WORKFLOW: Final = path_parameter("workflow", "The workflow's name")
_ID: Final = path_parameter("id", "The schedule's id")
_BOOK: Final = query_parameter("book", "The workflow's LogBook; without it, the one of its decorator, or its own name")
_COUNT: Final[Json] = {"type": "integer", "minimum": 0}
_SECONDS: Final[Json] = {"type": "number", "minimum": 0}
_OVERLAP: Final[Json] = {"enum": list(OVERLAPS)}
_SPEC: Final[Json] = {
    "cron": TEXT | {"description": "Minute, hour, day, month, weekday"},
    "every_s": _SECONDS | {"description": "An interval, in place of a cron line"},
    "offset_s": _SECONDS,
    "zone": TEXT,
    "overlap": _OVERLAP,
    "catch_up_s": _SECONDS | {"description": "Ticks missed longer ago are left out"},
    "jitter_s": _SECONDS,
}
_STATE: Final = object_of(
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


def _of(name: str, summary: str, answer: Json, *more: Json, body: Json | None = None) -> Json:
    shown = [_WORKFLOW, _ID, *more, _BOOK, POSITION, TIMEOUT]
    return operation_of(name, summary, shown, json_of(answer), body=body, tag="Workflows")


_ONE: Final = "/flow-schedule/{workflow}/{id}"

SCHEDULE_PATHS: Final[dict[str, Json]] = {
    "/flow-schedule": {
        "get": operation_of(
            "listSchedules",
            "The schedules that there are",
            [
                query_parameter("workflow", "Only those of that workflow"),
                query_parameter("id", "Only those whose ids begin so"),
                query_parameter("before", "Where the page begins: `before` of the page in front of it"),
                query_parameter("limit", "Maximum number", {"type": "integer", "minimum": 1, "maximum": 100}),
            ],
            json_of(object_of({"schedules": array_of(_STATE)}, {"before": TEXT})),
            tag="Workflows",
        )
    },
    _ONE: {
        "get": _of("scheduleState", "What is known of a schedule", _STATE),
        "post": _of(
            "createSchedule",
            "Start the workflow at each tick of a cron line or an interval",
            object_of({"id": TEXT, "workflow": TEXT}),
            body=json_of(
                object_of(
                    {},
                    {
                        "payload": {},
                        **_SPEC,
                        "attributes": {"type": "object"},
                        "is_paused": {"type": "boolean"},
                        "if_exists": {"enum": ["fail", "replace"]},
                    },
                )
            ),
        ),
    },
    f"{_ONE}/pause": {
        "post": _of("pauseSchedule", "Let ticks pass by", NOTHING, query_parameter("reason", "Why, for people"))
    },
    f"{_ONE}/resume": {"post": _of("resumeSchedule", "Let ticks count again, from now on", NOTHING)},
    f"{_ONE}/trigger": {
        "post": _of(
            "triggerSchedule",
            "Start the workflow now",
            object_of({"id": TEXT}),
            query_parameter("overlap", "In place of the schedule's policy", _OVERLAP),
            KEY,
        )
    },
    f"{_ONE}/backfill": {
        "post": _of(
            "backfillSchedule",
            "Start the workflows of the ticks of a time",
            object_of({"ticks": _COUNT}),
            body=json_of(
                object_of(
                    {"start": TEXT | {"format": "date-time"}, "end": TEXT | {"format": "date-time"}},
                    {"overlap": _OVERLAP},
                )
            ),
        )
    },
    f"{_ONE}/delete": {"post": _of("deleteSchedule", "Start nothing any more; what runs goes on", NOTHING)},
}
