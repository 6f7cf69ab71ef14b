"""`/flow-schedule` over HTTP: create schedules, look at them, steer them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp.web import BaseRequest, Response

from boki import InvalidArgument
from boki.api.logbook import LogSession
from boki.faces import GatewayPort, Route
from boki.gateway.server.http import answers, arguments
from boki.gateway.server.http.arguments import json_body, query, query_int
from boki.libs.bokiflow.attributes import check_attributes
from boki.libs.bokiflow.face.registered import book_of, is_workflow, workflow_info
from boki.libs.bokiflow.schedules.handle import IfExists, Schedule, ScheduleState
from boki.libs.bokiflow.schedules.spec import Overlap, spec_of
from boki.log.ids import MAX_SEQNUM
from boki.protocol.calls import ATTENDS, Attribute, Call, CallFilter, CallStatus, ChosenId, Payload

_MAX_BODY_BYTES: Final = 256 * 1024
_UNENDED: Final[tuple[CallStatus, ...]] = ("accepted", "running", "retrying", "suspended")
_PAGE: Final = 100


class Create(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a creation."""

    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    cron: str = ""
    every_s: float = 0
    offset_s: float = 0
    zone: str = "UTC"
    overlap: Overlap = "skip"
    catch_up_s: float = 3_600
    jitter_s: float = 0
    attributes: dict[str, Attribute] = {}
    is_paused: bool = False
    if_exists: IfExists = "fail"


class Backfill(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a backfill."""

    start: datetime
    end: datetime
    overlap: Overlap | None = None


_CREATE: Final = msgspec.json.Decoder(Create)
_BACKFILL: Final = msgspec.json.Decoder(Backfill)
Telling = Callable[[Schedule, Mapping[str, str]], Awaitable[Any]]


class Schedules:
    """The handlers of `/flow-schedule`."""

    def __init__(self, gateway: GatewayPort, now_us: Callable[[], int]) -> None:
        self._gateway = gateway
        self._now_us = now_us

    def routes(self) -> list[Route]:
        """What is answered here."""
        one = "/flow-schedule/{workflow}/{id}"
        told = {"pause": _pause, "resume": _resume, "trigger": _trigger, "delete": _delete}
        return [
            Route("GET", "/flow-schedule", self.page),
            Route("POST", one, self.create),
            Route("GET", one, self.state),
            Route("POST", f"{one}/backfill", self.backfill),
            *(Route("POST", f"{one}/{verb}", partial(self.tell, act)) for verb, act in told.items()),
        ]

    async def page(self, request: BaseRequest) -> Response:
        """A page of the schedules that there are, by workflow and beginning of the id."""
        values = query(request, {"workflow", "id", "before", "limit"})
        wanted = values.get("workflow", "")
        if wanted:
            workflow_info(self._gateway, wanted)
        limit = query_int(values, "limit", _PAGE, _PAGE) or _PAGE
        before = query_int(values, "before", MAX_SEQNUM)
        session = self._gateway.session(request)
        found: list[ScheduleState] = []
        with self._gateway.admitted():
            attends: dict[str, Attribute] = {ATTENDS: "schedule"}
            asked = CallFilter(
                wanted, _UNENDED, before=before, limit=limit, named=values.get("id", ""), attributes=attends
            )
            page = await self._gateway.ledger.page(asked)
            for call in page.calls:
                if is_workflow(self._gateway, call.function):
                    logbook = session.logbook(call.book)
                    found.append(await Schedule(call.function, call.name, self._gateway.ledger, logbook).state())
        body: dict[str, Any] = {"schedules": [schedule_shape(one) for one in found]}
        return answers.json_answer(body | ({"before": str(page.before)} if page.before else {}))

    async def create(self, request: BaseRequest, workflow: str, schedule_id: str) -> Response:
        """Create a schedule, or change it."""
        info = workflow_info(self._gateway, workflow)
        schedule, session = self._schedule(request, query(request, {"book"}), workflow, schedule_id)
        with self._gateway.admitted():
            said = json_body(await self._gateway.body(request, _MAX_BODY_BYTES), _CREATE)
            spec = spec_of(
                cron=said.cron,
                every_s=said.every_s,
                offset_s=said.offset_s,
                zone=said.zone,
                overlap=said.overlap,
                catch_up_s=said.catch_up_s,
                jitter_s=said.jitter_s,
                now_us=self._now_us(),
            )
            attributes = {**check_attributes(said.attributes), ATTENDS: "schedule"}
            data = b"" if isinstance(said.payload, msgspec.UnsetType) else bytes(said.payload)
            encoding = info.payload_encoding
            if encoding != "json" and data:
                text = msgspec.json.decode(data)
                if not isinstance(text, str):
                    raise InvalidArgument(f"{workflow} takes {encoding}: payload must be a string", field="payload")
                data = text.encode()
            call = Call(
                schedule.invocation_id,
                workflow,
                Payload(encoding, data),
                book_of(request.query, info),
                int(info.timeout_s * 1e6),
                0,
                arguments.positions(request.headers),
            )

            async def start() -> None:
                chosen = ChosenId(f"{self._now_us()}", "use", "again", schedule.id, attributes=attributes)
                await self._gateway.ledger.accept(info.to_be_logged(msgspec.structs.replace(call, chosen=chosen)))

            await schedule.create(spec, start, if_exists=said.if_exists, is_paused=said.is_paused)
        return answers.json_answer({"id": schedule.id, "workflow": workflow}, session.caller.positions)

    async def state(self, request: BaseRequest, workflow: str, schedule_id: str) -> Response:
        """What is known of a schedule."""
        schedule, session = self._schedule(request, query(request, {"book"}), workflow, schedule_id)
        with self._gateway.admitted():
            found = await schedule.state()
        return answers.json_answer(schedule_shape(found), session.caller.positions)

    async def tell(self, act: Telling, request: BaseRequest, workflow: str, schedule_id: str) -> Response:
        """Pause, resume, trigger or delete it."""
        values = query(request, {"book", "reason", "overlap"})
        schedule, session = self._schedule(request, values, workflow, schedule_id)
        told = dict(values) | ({"key": key} if (key := arguments.key(request.headers)) else {})
        with self._gateway.admitted():
            said = await act(schedule, told)
        return answers.json_answer(said or {}, session.caller.positions)

    async def backfill(self, request: BaseRequest, workflow: str, schedule_id: str) -> Response:
        """Start the workflows of ticks of a time; how many ticks that is."""
        schedule, session = self._schedule(request, query(request, {"book"}), workflow, schedule_id)
        with self._gateway.admitted():
            said = json_body(await self._gateway.body(request, _MAX_BODY_BYTES), _BACKFILL)
            count = await schedule.backfill(said.start, said.end, overlap=said.overlap)
        return answers.json_answer({"ticks": count}, session.caller.positions)

    def _schedule(
        self, request: BaseRequest, values: Mapping[str, str], workflow: str, schedule_id: str
    ) -> tuple[Schedule, LogSession]:
        book = book_of(values, workflow_info(self._gateway, workflow))
        session = self._gateway.session(request)
        return Schedule(workflow, schedule_id, self._gateway.ledger, session.logbook(book)), session


async def _pause(schedule: Schedule, values: Mapping[str, str]) -> None:
    await schedule.pause(values.get("reason", ""))


async def _resume(schedule: Schedule, _values: Mapping[str, str]) -> None:
    await schedule.resume()


async def _trigger(schedule: Schedule, values: Mapping[str, str]) -> dict[str, Any]:
    overlap: Any = values.get("overlap")
    return {"id": await schedule.trigger(key=values.get("key"), overlap=overlap)}


async def _delete(schedule: Schedule, _values: Mapping[str, str]) -> None:
    await schedule.delete()


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
