"""How outcomes and errors look as HTTP answers: one form of body, one table of status codes."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, Final

import msgspec
from aiohttp.web import Response
from msgspec import UNSET, Meta, UnsetType

from boki.api.http.exchange import OUTCOME, POSITION, details_as_json
from boki.api.http.response import CONTENT_TYPES, parts_of
from boki.errors import BokiError, Outcome
from boki.gateway.server.http.openapi_parts import Time
from boki.log.metalog import Positions, format_positions
from boki.log.operations import Failure
from boki.protocol.calls import CallStatus, InvocationState, Payload

_DEFAULT_RETRY_AFTER_S: Final = 1


def json_answer(value: Any, positions: Positions | None = None) -> Response:
    """A 200 with a JSON document."""
    headers = {"Content-Type": "application/json"}
    if positions:
        headers[POSITION] = format_positions(positions)
    return Response(body=msgspec.json.encode(value), headers=headers)


class ErrorAnswer(msgspec.Struct, frozen=True):
    """An error as JSON: every field is there, whatever its value."""

    code: Annotated[str, Meta(description="A stable name for programs")]
    message: str
    outcome: Annotated[
        Outcome,
        Meta(description="It did not happen and never will; it may have happened; the function ran and raised"),
    ]
    retryable: Annotated[bool, Meta(description="Whether the very same request may succeed later")]
    details: Annotated[dict[str, Any], Meta(description="Facts behind the message, such as the field that is wrong")]


def error_body(error: BokiError) -> ErrorAnswer:
    """An error as JSON."""
    return ErrorAnswer(error.code, error.message, error.outcome, error.retryable, details_as_json(error.details))


class Repeatable(Response):
    """An answer that changes nothing if it is dropped: its caller may ask again."""


class Refusal(Response):
    """An answer that tells an error, with the error's code for the metrics."""

    code = BokiError.code


def refusal(error: BokiError) -> Refusal:
    """The answer that tells an error."""
    headers = {"Content-Type": "application/json"}
    allow = error.details.get("allow")  # of the router: the path is right and the method is not
    status = 405 if allow else error.http_status
    if status in {429, 503}:
        headers["Retry-After"] = str(ceil(error.details.get("retry_after_s", _DEFAULT_RETRY_AFTER_S)))
    elif status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    elif allow:
        headers["Allow"] = ", ".join(allow)
    body = msgspec.json.encode(error_body(error), enc_hook=str)
    answer = Refusal(status=status, body=body, headers=headers)
    answer.code = error.code
    return answer


def without_traceback(failure: Failure) -> Failure:
    """The failure as a stranger may see it: type and message, but not where in the code."""
    if "traceback" not in failure.details:
        return failure
    details = {name: value for name, value in failure.details.items() if name != "traceback"}
    return msgspec.structs.replace(failure, details=details)


class CallBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a logged call and a workflow have in common as JSON. What is not known, or has not been, is left out."""

    id: str
    book: str
    attempts: Annotated[
        int,
        Meta(description="Runs so far, those that were cut off included; a workflow runs again after long waits"),
    ]
    accepted_us: Time = 0
    due_us: Time = 0
    started_us: Annotated[Time, Meta(description="When the first run began")] = 0
    last_started_us: Annotated[Time, Meta(description="When the last run began")] = 0
    next_us: Annotated[
        Time, Meta(description="When the next run is due: after one that failed, or a wait until a time")
    ] = 0
    finished_us: Time = 0
    note: Annotated[str, Meta(description="Why a suspended call waits, or a workflow is paused")] | UnsetType = UNSET
    result: Annotated[Any, Meta(description="The result, if it is JSON or text; not in lists")] | UnsetType = UNSET
    result_base64: (
        Annotated[
            bytes, Meta(description="The result, if it is bytes", extra_json_schema={"contentEncoding": "base64"})
        ]
        | UnsetType
    ) = UNSET
    response: (
        Annotated[dict[str, Any], Meta(description="Status, headers and result of a function's Response")] | UnsetType
    ) = UNSET
    error: ErrorAnswer | UnsetType = UNSET


class WakeBody(msgspec.Struct, frozen=True):
    """A tag that a suspended call waits for."""

    book: str
    tag: str
    min_seqnum: int


class InvocationBody(CallBody, frozen=True, kw_only=True, omit_defaults=True):
    """A logged call."""

    function: str
    state: CallStatus
    name: Annotated[str, Meta(description="What people call it, as the id of a workflow")] = ""
    errors: Annotated[dict[str, int], Meta(description="How many runs ended with which error")] = {}
    last_error: ErrorAnswer | UnsetType = UNSET
    wakes: (
        Annotated[
            list[WakeBody],
            Meta(description="Records that a suspended call waits for: of any of these tags, at or above min_seqnum"),
        ]
        | UnsetType
    ) = UNSET


def call_fields(state: InvocationState, failure: Failure | None) -> dict[str, Any]:
    """The fields of a `CallBody`, with the call's failure as its caller may see it."""
    fields = {name: getattr(state, name) for name in _SAME_FIELDS}
    if state.suspension is not None:
        fields["note"] = state.suspension.note
    if state.result is not None:
        fields |= _result(state.result)
    if failure is not None:
        fields["error"] = error_body(failure.error())
    return fields


_SAME_FIELDS: Final = tuple({*CallBody.__struct_fields__} & {*InvocationState.__struct_fields__} - {"result"})


def invocation_body(state: InvocationState, failure: Failure | None) -> InvocationBody:
    """A logged call as JSON, with its failure as its caller may see it."""
    wakes = () if state.suspension is None else state.suspension.wakes
    return InvocationBody(
        **call_fields(state, failure),
        function=state.function,
        state=state.state,
        name=state.name,
        errors=state.errors,
        last_error=UNSET if state.last_error is None else error_body(state.last_error.error()),
        wakes=UNSET if state.suspension is None else [WakeBody(on.book, on.tag, on.min_seqnum) for on in wakes],
    )


def result_answer(result: Payload, headers: dict[str, str]) -> Response:
    """A function's result, with these headers of ours."""
    if result.encoding != "response":
        return Response(body=result.data, headers={**headers, "Content-Type": CONTENT_TYPES[result.encoding]})
    status, own, body = parts_of(result)
    answer = Response(status=status, body=body.data or None, headers=own)
    answer.headers.update(headers)
    answer.headers[OUTCOME] = "returned"
    return answer


def _result(result: Payload) -> dict[str, Any]:
    match result.encoding:
        case "response":
            status, headers, body = parts_of(result)
            return {"response": {"status": status, "headers": headers} | _result(body)}
        case "json":
            return {"result": msgspec.Raw(result.data)}
        case "text":
            return {"result": result.data.decode("utf-8", "replace")}
        case "bytes":
            return {"result_base64": result.data}
