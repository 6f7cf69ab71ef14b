"""How outcomes and errors look as HTTP answers: one form of body, one table of status codes."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

import msgspec
from aiohttp.web import Response

from boki.api.http.exchange import OUTCOME, POSITION, details_as_json
from boki.api.http.response import CONTENT_TYPES, parts_of
from boki.errors import BokiError
from boki.log.metalog import Positions, format_positions
from boki.log.operations import Failure
from boki.protocol.calls import InvocationState, Payload

_DEFAULT_RETRY_AFTER_S: Final = 1


def json_answer(value: Any, positions: Positions | None = None) -> Response:
    """A 200 with a JSON document."""
    headers = {"Content-Type": "application/json"}
    if positions:
        headers[POSITION] = format_positions(positions)
    return Response(body=msgspec.json.encode(value), headers=headers)


def error_body(error: BokiError) -> dict[str, Any]:
    """An error as JSON: every field is there, whatever its value."""
    return {
        "code": error.code,
        "message": error.message,
        "outcome": error.outcome,
        "retryable": error.retryable,
        "details": details_as_json(error.details),
    }


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


def invocation_body(state: InvocationState, failure: Failure | None) -> dict[str, Any]:
    """A logged call as JSON, with its failure as the caller may see it.

    The result is a JSON value or a string; bytes stand in `result_base64`.
    """
    body: dict[str, Any] = {
        "id": state.id,
        "function": state.function,
        "book": state.book,
        "state": state.state,
        "attempts": state.attempts,
    }
    for name in ("name", "accepted_us", "due_us", "started_us", "last_started_us", "next_us", "finished_us", "errors"):
        if told := getattr(state, name):
            body[name] = told
    if state.last_error is not None:
        body["last_error"] = error_body(state.last_error.error())
    if state.suspension is not None:
        body["wakes"] = [{"book": on.book, "tag": on.tag, "min_seqnum": on.min_seqnum} for on in state.suspension.wakes]
        body["note"] = state.suspension.note
    if state.result is not None:
        body |= _result(state.result)
    if failure is not None:
        body["error"] = error_body(failure.error())
    return body


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
