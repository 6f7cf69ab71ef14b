"""What a client of workflows sends to a gateway, and what the answers mean. Pure; both clients use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import msgspec

from boki import InvalidArgument
from boki.extending import Attribute, Failure, Function, Payload, decode_any, encode_any, told_response
from boki.libs.bokiflow.attributes import check_attributes
from boki.libs.bokiflow.handles import MAX_ID_CHARS, WorkflowState
from boki.libs.bokiflow.options import ScheduleOptions
from boki.libs.bokiflow.schedules.handle import ScheduleState
from boki.libs.bokiflow.schedules.spec import Spec
from boki.libs.bokiflow.schedules.state import Recent
from boki.libs.bokiflow.workflows import Workflow
from boki.libs.fold.arguments import check_key


def id_or_new(id: str | None, most_chars: int = MAX_ID_CHARS) -> str:  # noqa: A002 - as everywhere
    """The id, or a new one if it is None. `InvalidArgument` if it is empty, or too long."""
    return uuid4().hex if id is None else check_key(id, "id", most_chars)


def name_of(workflow: Workflow[Any, Any] | str) -> str:
    """The name of a workflow that is named, or given as the function that it is."""
    return workflow if isinstance(workflow, str) else Function.of(workflow).info.name


def payload_of(workflow: Workflow[Any, Any] | str, payload: tuple[Any, ...]) -> Payload | None:
    """What a workflow is started with; None: nothing. `InvalidArgument` if it does not take that."""
    if len(payload) > 1:
        raise InvalidArgument(f"{name_of(workflow)} takes at most one payload, not {len(payload)}", field="payload")
    if isinstance(workflow, str):
        return encode_any(payload[0], f"payload of {workflow}") if payload else None
    known = Function.of(workflow)
    if payload:
        return known.encode_payload(payload[0])
    if known.payload_codec is not None and not known.has_default:
        raise InvalidArgument(f"{known.info.name} needs a payload: pass it after the workflow", field="payload")
    return None


def creation_of(workflow: Workflow[Any, Any] | str, payload: tuple[Any, ...], options: ScheduleOptions) -> Payload:
    """What a gateway is sent to create a schedule. `InvalidArgument` for bytes that are no text: JSON has no place."""
    given = {name: value for name, value in options.items() if value is not None}
    said = msgspec.json.decode(encode_any(given, f"schedule of {name_of(workflow)}").data, type=dict[str, msgspec.Raw])
    found = payload_of(workflow, payload)
    if found is not None:
        said["payload"] = msgspec.Raw(found.data if found.encoding == "json" else _as_json_text(found.data, workflow))
    return Payload("json", msgspec.json.encode(said))


def _as_json_text(data: bytes, workflow: Workflow[Any, Any] | str) -> bytes:
    try:
        return msgspec.json.encode(data.decode())
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"the payload of a schedule of {name_of(workflow)} is sent as JSON, and these bytes are no UTF-8: create "
            "the schedule in a function, or start the workflow with a text",
            field="payload",
        ) from None


def pairs_of(attributes: Mapping[str, Attribute] | None) -> list[str]:
    """Attributes as a query has them: `name=value`, texts in quotes, in which nothing is escaped."""
    return [
        f"{name}='{value}'" if isinstance(value, str) else f"{name}={msgspec.json.encode(value).decode()}"
        for name, value in check_attributes(attributes).items()
    ]


def path_of(*parts: str) -> str:
    """The path of a page below `/flow`."""
    return "/flow" + "".join(f"/{quote(part, safe='')}" for part in parts)


def schedule_path_of(*parts: str) -> str:
    """The path of a page below `/flow-schedule`."""
    return "/flow-schedule" + "".join(f"/{quote(part, safe='')}" for part in parts)


def schedule_of_body(body: Mapping[str, Any]) -> ScheduleState:
    """A schedule, as a gateway describes it: what is empty or 0 is left out there."""
    spec = body["spec"]
    spans = {f"{name}_us": round(spec.get(f"{name}_s", 0) * 1e6) for name in ("every", "offset", "catch_up", "jitter")}
    return ScheduleState(
        id=body["id"],
        workflow=body["workflow"],
        invocation_id=body["invocation"],
        book=body["book"],
        status=body["status"],
        note=body.get("note", ""),
        when=body["when"],
        spec=Spec(cron=spec.get("cron", ""), zone=spec["zone"], overlap=spec["overlap"], **spans),
        next_us=tuple(body.get("next_us", ())),
        running=tuple(body.get("running", ())),
        queued=tuple(body.get("queued", ())),
        counts=body.get("counts", {}),
        recent=tuple(Recent(**one) for one in body.get("recent", ())),
    )


def state_of_body(body: Mapping[str, Any]) -> WorkflowState:
    """A workflow, as a gateway describes it."""
    return WorkflowState(
        id=body["id"],
        workflow=body["workflow"],
        invocation_id=body["invocation"],
        book=body["book"],
        status=body["state"],
        accepted_us=body.get("accepted_us", 0),
        finished_us=body.get("finished_us", 0),
        wakes_us=body.get("next_us", 0),
        note=body.get("note", ""),
        failure=failure_of_body(body),
        attributes=body.get("attributes", {}),
        version=body.get("version", 0),
    )


def failure_of_body(body: Mapping[str, Any]) -> Failure | None:
    """What a workflow ended with, if that was no result."""
    error = body.get("error")
    if error is None:
        return None
    return Failure(error["code"], error["message"], error["outcome"], error["retryable"], error["details"])


def result_of_body(workflow: Workflow[Any, Any] | str, body: Mapping[str, Any]) -> Any:
    """What a workflow returned, as the type that it is annotated with, if its code is here."""
    if "response" in body:
        return told_response(body["response"])
    if "result_base64" in body:
        result = Payload("bytes", msgspec.convert(body["result_base64"], bytes))
    else:
        value = body.get("result")
        is_text = not isinstance(workflow, str) and Function.of(workflow).info.result_encoding == "text"
        is_text = is_text and isinstance(value, str)
        result = Payload("text", str(value).encode()) if is_text else Payload("json", msgspec.json.encode(value))
    if isinstance(workflow, str):
        return decode_any(result, f"result of {workflow}")
    return workflow.decode_result(result)
