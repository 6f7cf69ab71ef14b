"""`/flow-schedule` over HTTP: create schedules, look at them, steer them."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from boki import InvalidArgument
from boki.gateway.server.http import arguments
from boki.gateway.server.http.endpoints import Asked, Endpoints
from boki.libs.bokiflow.attributes import check_attributes
from boki.libs.bokiflow.face.registered import book_of, is_workflow, workflow_info
from boki.libs.bokiflow.face.shapes import Count, ScheduleShape, Seconds
from boki.libs.bokiflow.refusals import NoSuchSchedule
from boki.libs.bokiflow.schedules.handle import IfExists, Schedule, ScheduleState
from boki.libs.bokiflow.schedules.spec import Overlap, spec_of
from boki.log.ids import MAX_SEQNUM
from boki.protocol.calls import ATTENDS, Attribute, Call, CallFilter, CallStatus, ChosenId, FunctionInfo, Payload

_MAX_BODY_BYTES: Final = 256 * 1024
_UNENDED: Final[tuple[CallStatus, ...]] = ("accepted", "running", "retrying", "suspended")

Book = Annotated[str, Meta(description="The workflow's LogBook; without it, the one of its decorator, or its own name")]


class Create(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a creation."""

    payload: Annotated[msgspec.Raw, Meta(extra_json_schema={})] | msgspec.UnsetType = msgspec.UNSET
    cron: Annotated[str, Meta(description="Minute, hour, day, month, weekday")] = ""
    every_s: Annotated[Seconds, Meta(description="An interval, in place of a cron line")] = 0
    offset_s: Seconds = 0
    zone: str = "UTC"
    overlap: Overlap = "skip"
    catch_up_s: Annotated[Seconds, Meta(description="Ticks missed longer ago are left out; at least 10 s count")] = (
        3_600
    )
    jitter_s: Seconds = 0
    attributes: dict[str, Attribute] = {}
    is_paused: bool = False
    if_exists: IfExists = "fail"


class Backfill(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a backfill."""

    start: datetime
    end: datetime
    overlap: Overlap | None = None


ENDPOINTS: Final = Endpoints(
    "Workflows", {"workflow": "The workflow's name", "id": "The schedule's id"}, function="workflow"
)
_ONE: Final = "/flow-schedule/{workflow}/{id}"


@ENDPOINTS(
    *("GET", "/flow-schedule", "listSchedules", "The schedules that there are"),
    answer={"schedules": list[ScheduleShape], "before": str | msgspec.UnsetType},
)
async def _page(
    asked: Asked,
    workflow: Annotated[str, Meta(description="Only those of that workflow")] = "",
    id: Annotated[str, Meta(description="Only those whose ids begin so")] = "",  # noqa: A002
    before: Annotated[str, Meta(description="Where the page begins: `before` of the page in front of it")] = "",
    limit: Annotated[int, Meta(ge=1, le=100, description="Maximum number")] = 100,
) -> object:
    if workflow:
        workflow_info(asked.gateway, workflow)
    below = arguments.whole_number(before, "before") if before else MAX_SEQNUM
    attends: dict[str, Attribute] = {ATTENDS: "schedule"}
    page = await asked.gateway.ledger.page(
        CallFilter(workflow, _UNENDED, before=below, limit=limit, named=id, attributes=attends)
    )
    found: list[ScheduleState] = []
    for call in page.calls:
        if not is_workflow(asked.gateway, call.function):
            continue
        one = Schedule(call.function, call.name, asked.gateway.ledger, asked.session.logbook(call.book))
        with suppress(NoSuchSchedule):  # it is being deleted, or the process that deleted it was lost
            found.append(await one.state())
    return {"schedules": [schedule_shape(one) for one in found]} | ({"before": str(page.before)} if page.before else {})


@ENDPOINTS(
    *("POST", _ONE, "createSchedule", "Start the workflow at each tick of a cron line or an interval"),
    reads="json",
    value=Create,
    answer={"id": str, "workflow": str},
    max_bytes=_MAX_BODY_BYTES,
)
async def _create(asked: Asked, book: Book = "") -> object:
    said: Create = asked.value
    workflow, now_us = asked.parts[0], time.time_ns() // 1_000
    schedule, info = _schedule(asked, book), workflow_info(asked.gateway, workflow)
    spec = spec_of(
        cron=said.cron,
        every_s=said.every_s,
        offset_s=said.offset_s,
        zone=said.zone,
        overlap=said.overlap,
        catch_up_s=said.catch_up_s,
        jitter_s=said.jitter_s,
        now_us=now_us,
    )
    checked = check_attributes(said.attributes)
    chosen = ChosenId(
        *(str(now_us), "use", "again", schedule.id),
        attributes={**checked, ATTENDS: "schedule"},
    )
    call = Call(
        schedule.invocation_id,
        workflow,
        _payload(said, info),
        book_of(book, info),
        int(info.timeout_s * 1e6),
        0,
        arguments.positions(asked.request.headers),
        chosen=chosen,
    )
    start = partial(asked.gateway.ledger.accept, info.to_be_logged(call))
    await schedule.create(spec, start, checked, if_exists=said.if_exists, is_paused=said.is_paused)
    return {"id": schedule.id, "workflow": workflow}


def _payload(said: Create, info: FunctionInfo) -> Payload:
    data, encoding = b"" if isinstance(said.payload, msgspec.UnsetType) else bytes(said.payload), info.payload_encoding
    if encoding != "json" and data:
        text = msgspec.json.decode(data)
        if not isinstance(text, str):
            raise InvalidArgument(f"{info.name} takes {encoding}: payload must be a string", field="payload")
        data = text.encode()
    return Payload(encoding, data)


@ENDPOINTS("GET", _ONE, "scheduleState", "What is known of a schedule", answer=ScheduleShape)
async def _state(asked: Asked, book: Book = "") -> object:
    return schedule_shape(await _schedule(asked, book).state())


@ENDPOINTS("POST", f"{_ONE}/pause", "pauseSchedule", "Let ticks pass by")
async def _pause(
    asked: Asked, reason: Annotated[str, Meta(description="Why, for people")] = "", book: Book = ""
) -> None:
    await _schedule(asked, book).pause(reason)


@ENDPOINTS("POST", f"{_ONE}/resume", "resumeSchedule", "Let ticks count again, from now on")
async def _resume(asked: Asked, book: Book = "") -> None:
    await _schedule(asked, book).resume()


@ENDPOINTS(*("POST", f"{_ONE}/trigger", "triggerSchedule", "Start the workflow now"), answer={"id": str}, has_key=True)
async def _trigger(
    asked: Asked,
    overlap: Annotated[Overlap | None, Meta(description="In place of the schedule's policy")] = None,
    book: Book = "",
) -> object:
    return {"id": await _schedule(asked, book).trigger(key=asked.key, overlap=overlap)}


@ENDPOINTS(
    *("POST", f"{_ONE}/backfill", "backfillSchedule", "Start the workflows of the ticks of a time"),
    reads="json",
    value=Backfill,
    answer={"ticks": Count},
    max_bytes=_MAX_BODY_BYTES,
)
async def _backfill(asked: Asked, book: Book = "") -> object:
    said: Backfill = asked.value
    return {"ticks": await _schedule(asked, book).backfill(said.start, said.end, overlap=said.overlap)}


@ENDPOINTS("POST", f"{_ONE}/delete", "deleteSchedule", "Start nothing any more; what runs continues")
async def _delete(asked: Asked, book: Book = "") -> None:
    await _schedule(asked, book).delete()


def _schedule(asked: Asked, book: str) -> Schedule:
    workflow, schedule_id = asked.parts
    book = book_of(book, workflow_info(asked.gateway, workflow))
    return Schedule(workflow, schedule_id, asked.gateway.ledger, asked.session.logbook(book))


def schedule_shape(found: ScheduleState) -> dict[str, Any]:
    """A schedule as a JSON object."""
    shape: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(found))
    spec = msgspec.structs.asdict(found.spec)
    for name in ("every", "offset", "catch_up", "jitter"):
        spec[f"{name}_s"] = spec.pop(f"{name}_us") / 1e6
    shape["spec"] = {name: value for name, value in spec.items() if value not in ("", 0)}
    shape["recent"] = [msgspec.structs.asdict(one) for one in found.recent]
    shape["invocation"] = shape.pop("invocation_id")
    return {name: value for name, value in shape.items() if value not in ("", [], ())}


def utc(text: str, field: str) -> datetime:
    """A time as it is typed: ISO 8601, by UTC unless it says otherwise."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{field} must be a time such as 2026-11-23 or 2026-11-23T09:00:00+01:00, not {text!r:.40}", field=field
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
