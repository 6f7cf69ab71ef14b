"""HTTP between a client and a gateway, as values: what is sent, and what the answer means. Pure; both clients use it.

Names of headers stand here, because both ends must agree on them.
"""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from boki.api.call_state import MISSING
from boki.api.function import Function
from boki.api.http.response import CONTENT_TYPES, received_response, result_of, told_response
from boki.api.payloads.values import NO_PAYLOAD, encode_any
from boki.errors import BokiError, ConnectionLost, ErrorBody, InvalidArgument, Unavailable, WrongType
from boki.log.checks import check_book, check_seconds
from boki.log.ids import check_name
from boki.log.metalog import Positions, format_positions, merge_positions, parse_positions
from boki.log.operations import Answer, Failure, Operation, Reply, Request
from boki.protocol.asking import is_change, is_repeatable
from boki.protocol.calls import OVER, CallStatus, Encoding, Payload
from boki.retry import Retry, check_retry

INVOCATION: Final = "Boki-Invocation"
POSITION: Final = "Boki-Position"
BOOK: Final = "Boki-Book"
TIMEOUT: Final = "Boki-Timeout"
KEY: Final = "Idempotency-Key"
RETRY: Final = "Boki-Retry"
"""The retry policy of a logged call: the fields of `boki.Retry` as a JSON object."""
TRACEPARENT: Final = "traceparent"
OUTCOME: Final = "Boki-Outcome"
"""`returned`: status, headers and body are a function's own; what an error looks like need be none."""
STREAMED: Final = "streamed"
"""The body is what a function yields; cut off, it has failed."""
END_OF_EVENT: Final = b"\n\n"
ERROR_EVENT: Final = b"event: error\ndata: "
"""How the last of streamed events begins if the call failed after its head had left; an error's body follows."""

LOG_CONTENT_TYPE: Final = "application/vnd.boki+msgpack"
"""One log operation, or its answer."""
BUNDLE_CONTENT_TYPE: Final = "application/vnd.boki.bundle"
"""The files of a functions folder (`boki.books.functions.bundle`)."""

ENCODINGS: Final[Mapping[str, Encoding]] = {
    "application/json": "json",
    "text/plain": "text",
    "application/octet-stream": "bytes",
}

MAX_WAIT_S: Final = 60.0
"""The longest that one request may wait for something to happen. Ask again."""
POLL_S: Final = 20.0
"""How long a client lets one request wait, so that no proxy in between minds."""
MIN_TIMEOUT_S: Final = 0.001
MAX_TIMEOUT_S: Final = 24 * 3600.0
_MARGIN_S: Final = 0.5
"""The gateway answers at the deadline; its client waits so much longer for that answer. A caller feels all of it if the
gateway does not run.
"""
_ACCEPTED_S: Final = 45.0
"""How long a client waits until a logged call is accepted: gateways give up after 30 s."""

_SEQNUM: Final = re.compile(r"[0-9]{1,19}")
_KEY: Final = re.compile(r"[ -~]{1,255}")
_TOKEN: Final = re.compile(r"[!-~]*")
_encode: Final = msgspec.msgpack.Encoder().encode
_reply_decoder: Final[msgspec.msgpack.Decoder[Reply]] = msgspec.msgpack.Decoder(Reply)
_error_decoder: Final[msgspec.json.Decoder[ErrorBody]] = msgspec.json.Decoder(ErrorBody)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is sent. `timeout_s`: how long its client waits for the answer."""

    method: Literal["GET", "POST"]
    target: str
    timeout_s: float
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    operation: Operation | None = None
    """The log operation that it carries, if it does."""

    @property
    def is_change(self) -> bool:
        """Whether it matters if it was applied."""
        return self.method != "GET" if self.operation is None else is_change(self.operation)

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be sent again after the connection broke: a read, or a request under a key."""
        if self.operation is not None:
            return is_repeatable(self.operation)
        return self.method == "GET" or KEY in self.headers


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def check_url(url: str) -> str:
    """The URL of a gateway without a slash at its end; `InvalidArgument` if it is none."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        is_url = parts is not None and parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port beyond 65,535, a bracket that is not closed
        parts, is_url = None, False
    if parts is None or not is_url or parts.query or parts.fragment:
        raise InvalidArgument(
            f"the URL of a gateway looks like http://127.0.0.1:8080, not like {url!r:.80}", field="url"
        )
    return url.rstrip("/")


def authorization(token: str) -> dict[str, str]:
    """The header that carries the token, if there is one. `InvalidArgument`, without the token, if none can."""
    if not isinstance(token, str):
        raise WrongType(f"the token must be a str, not {type(token).__name__}", field="token")
    if not _TOKEN.fullmatch(token):
        raise InvalidArgument(
            "the token must be printable ASCII without spaces: it is sent in a header; does it end in a line feed?",
            field="token",
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def check_key(key: str, field: str = KEY) -> str:
    """`key`, if it fits into a header; else `InvalidArgument`. `field`: what its caller has passed it as."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidArgument(f"{field} must be 1 to 255 characters of printable ASCII, not {key!r:.60}", field=field)
    return key


# Log operations


def log_request(operation: Operation, positions: Positions, timeout_s: float) -> HttpRequest:
    """One log operation as a request."""
    timeout_s = min(timeout_s, MAX_TIMEOUT_S)
    body = _encode(Request(0, positions, max(1, int(timeout_s * 1e6)), operation))
    headers = {"Content-Type": LOG_CONTENT_TYPE}
    return HttpRequest("POST", "/logbook", timeout_s + _MARGIN_S, headers, body, operation)


def log_answer(answer: HttpAnswer, positions: Positions) -> Answer:
    """The operation's answer; raises what it failed with. `positions` are raised to what it has seen."""
    if answer.status != 200:
        raise error_of(answer)
    try:
        reply = _reply_decoder.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConnectionLost(f"the answer is not one that this version can read: {error}") from None
    merge_positions(positions, reply.positions)
    if isinstance(reply.answer, Failure):
        raise reply.answer.error()
    return reply.answer


# Routes of libraries


def library_request(target: str, body: bytes, positions: Positions, timeout_s: float) -> HttpRequest:
    """JSON for a route of a library."""
    timeout_s = min(timeout_s, MAX_TIMEOUT_S)
    headers = {"Content-Type": "application/json", TIMEOUT: f"{max(timeout_s, MIN_TIMEOUT_S):.6f}"}
    if positions:
        headers[POSITION] = format_positions(positions)
    return HttpRequest("POST", target, timeout_s + _MARGIN_S, headers, body)


def library_answer(answer: HttpAnswer, positions: Positions) -> bytes:
    """What the route answered; raises the error that it told. `positions` are raised to what it has seen."""
    if answer.status != 200:
        raise error_of(answer)
    if position := answer.headers.get(POSITION.lower()):
        merge_positions(positions, parse_positions(position))
    return answer.body


# Calls


@dataclass(frozen=True, slots=True)
class Asked:
    """A function call as its caller asked for it: the request, and how its result is to be read."""

    request: HttpRequest
    decode: Callable[[Payload], Any]


def call_request(
    path: Literal["/function/", "/asyncFunction/"],
    function: Callable[..., Any] | str,
    payload: Any,
    positions: Positions,
    *,
    book: str | None,
    key: str | None,
    timeout_s: float | None = None,
    delay_s: float = 0.0,
    result_type: Any = None,
    retry: Retry | None = None,
) -> Asked:
    """A call of a function, by object or by name. Payload and result are those of the object's annotations; by name,
    the result is whatever came, or a `result_type`.
    """
    name, data, decode = _codec(function, payload, result_type)
    headers = {"Content-Type": CONTENT_TYPES[data.encoding]} if data is not NO_PAYLOAD else {}
    if positions:
        headers[POSITION] = format_positions(positions)
    if book is not None:
        headers[BOOK] = check_book(book)
    if key is not None:
        headers[KEY] = check_key(key, "key")
    if check_retry(retry) is not None:
        if key is None and path == "/function/":
            raise InvalidArgument("retry is for logged calls: pass a key, too, or use invoke_later", field="retry")
        headers[RETRY] = json.dumps(msgspec.to_builtins(retry))  # in ASCII, as headers are
    if timeout_s is not None:
        timeout_s = check_seconds(timeout_s, "timeout_s", positive=True)
        if not MIN_TIMEOUT_S <= timeout_s <= MAX_TIMEOUT_S:
            raise InvalidArgument(
                f"timeout_s must be from {MIN_TIMEOUT_S:g} to {MAX_TIMEOUT_S:,.0f} seconds, not {timeout_s:g}",
                field="timeout_s",
            )
        headers[TIMEOUT] = f"{timeout_s:.6f}"
    delay = f"?delay_s={delay_s:.6f}" if check_seconds(delay_s, "delay_s", positive=False) else ""
    longest_s = _ACCEPTED_S if path == "/asyncFunction/" else MAX_TIMEOUT_S
    wait_s = min(longest_s if timeout_s is None else timeout_s, longest_s) + _MARGIN_S
    return Asked(HttpRequest("POST", f"{path}{quote(name, safe='')}{delay}", wait_s, headers, data.data), decode)


def _codec(
    function: Callable[..., Any] | str, payload: Any, result_type: Any
) -> tuple[str, Payload, Callable[[Payload], Any]]:
    if isinstance(function, str):
        name = check_name(function, "function")
        data = NO_PAYLOAD if payload is MISSING else encode_any(payload, f"payload of {name}")
        return name, data, lambda result: as_type(result, name, result_type)
    known = Function.of(function)
    if payload is not MISSING:
        data = known.encode_payload(payload)
    elif known.payload_codec is None or known.has_default:
        data = NO_PAYLOAD
    else:
        raise InvalidArgument(f"{known.info.name} needs a payload: pass it after the function", field="payload")
    return known.info.name, data, known.decode_result


def as_type(result: Payload, name: str, result_type: Any) -> Any:
    """A result as a value of that type; None: as it came. `InvalidArgument` if it is none."""
    value = result_of(result, f"result of {name}")
    if result_type is None:
        return value
    try:
        return msgspec.convert(value, result_type)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"the result of {name} is no {result_type}: {error}", field="result") from None


def call_answer(answer: HttpAnswer, positions: Positions) -> Payload:
    """The call's result; raises what it ended with. `positions` are raised to what it has seen."""
    if position := answer.headers.get(POSITION.lower()):
        merge_positions(positions, parse_positions(position))
    outcome = answer.headers.get(OUTCOME.lower())
    if outcome == STREAMED and (error := stream_error(answer)) is not None:
        raise error
    if outcome == "returned" or (outcome == STREAMED and answer.status != 200):
        return received_response(answer.status, answer.headers, answer.body)
    if answer.status != 200:
        raise error_of(answer)
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    return Payload(ENCODINGS.get(kind, "bytes"), answer.body)


def json_answer(answer: HttpAnswer, status: int = 200) -> dict[str, Any]:
    """The JSON object of an answer with that status; raises the error of any other."""
    if answer.status != status:
        raise error_of(answer)
    try:
        return msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConnectionLost(f"the answer is no JSON object: {error}") from None


def invocation_request(invocation_id: str, wait_s: float) -> HttpRequest:
    """Ask for the state of a logged call."""
    if not isinstance(invocation_id, str):
        raise InvalidArgument(f"an invocation id is a str, not {type(invocation_id).__name__}", field="id")
    wait = f"?wait_s={wait_s:.6f}" if wait_s > 0 else ""
    return HttpRequest("GET", f"/invocation/{quote(invocation_id, safe='')}{wait}", wait_s + 30.0)


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a logged call. Times are the log's, in microseconds since the epoch; 0: not yet."""

    id: str
    function: str
    book: str
    state: CallStatus
    """See `boki.protocol.calls.InvocationState`."""
    attempts: int
    """How often its body was started, those runs included that were cut off."""
    accepted_us: int = 0
    due_us: int = 0
    started_us: int = 0
    last_started_us: int = 0
    next_us: int = 0
    """When the next run is due, if `state` is "retrying", or "suspended" until a time."""
    finished_us: int = 0
    errors: Mapping[str, int] = {}
    """How many runs ended with which error."""
    last_error: BokiError | None = None
    """What the last run that failed ended with."""
    wakes: Sequence[Mapping[str, Any]] = ()
    """The records that it waits for if `state` is "suspended": their `book`, `tag` and least `min_seqnum`."""
    note: str = ""
    """Why it waits, if `state` is "suspended"."""
    result: Any = None
    """What the function returned, once `state` is "done"; not in lists."""
    error: BokiError | None = None
    """What it ended with, if `state` is "failed" or "cancelled"."""
    name: str = ""
    """What people call it, as the id of a workflow."""

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.state in OVER


class Invocations(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list of logged calls, those whose state changed last first."""

    calls: list[Invocation]
    before: int = 0
    """What to ask the next page with; 0: there is none."""


def invocation_answer(answer: HttpAnswer, result_type: Any = None) -> Invocation:
    """The state of a logged call."""
    return _invocation(json_answer(answer), result_type)


def invocations_request(
    function: str, states: Iterable[CallStatus], since_us: int, until_us: int, before: int, limit: int
) -> HttpRequest:
    """Ask for a page of logged calls. 0 and empty: no such condition."""
    if isinstance(states, str):
        raise InvalidArgument(f"states must be a list, not one str: write states=[{states!r}]", field="states")
    fields = {"function": function, "since_us": since_us, "until_us": until_us, "before": before, "limit": limit}
    query = urlencode(
        [(name, value) for name, value in fields.items() if value or name == "limit"]
        + [("state", one) for one in states]
    )
    return HttpRequest("GET", f"/invocation?{query}", 30.0)


def invocations_answer(answer: HttpAnswer) -> Invocations:
    """A page of logged calls."""
    body = json_answer(answer)
    return Invocations(calls=[_invocation(each, None) for each in body["calls"]], before=int(body.get("before", 0)))


def change_request(invocation_id: str, change: Literal["cancel", "retry"]) -> HttpRequest:
    """Cancel a logged call, or run it again."""
    return HttpRequest("POST", f"/invocation/{quote(invocation_id, safe='')}/{change}", 60.0)


def _invocation(body: dict[str, Any], result_type: Any) -> Invocation:
    encoded = body.pop("result_base64", None)
    if encoded is not None:
        body["result"] = msgspec.convert(encoded, bytes)
    response = body.pop("response", None)
    if response is not None:
        body["result"] = told_response(response)
    elif result_type is not None and "result" in body:
        body["result"] = msgspec.convert(body["result"], result_type)
    for name in ("error", "last_error"):
        if name in body:
            body[name] = _told(msgspec.convert(body[name], ErrorBody))
    return Invocation(**{name: body[name] for name in Invocation.__struct_fields__ if name in body})


def error_of(answer: HttpAnswer) -> BokiError:
    """The error that an answer tells."""
    told = told_error(answer.body)
    if told is not None:
        return told
    what = f"status {answer.status} and {answer.body[:80]!r}, which is no answer of a Boki gateway"
    if answer.status >= 500:
        return ConnectionLost(f"{what}; is a proxy in between?")
    return BokiError(f"{what}; is the URL right?")


def told_error(data: bytes) -> BokiError | None:
    """The error that a body or an `error` event tells; None: it is something else, as an event of a function's own."""
    try:
        return _told(_error_decoder.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def stream_error(answer: HttpAnswer) -> BokiError | None:
    """What a call ended with whose events have come whole; None: it ended well."""
    if not are_events(answer):
        return None
    last = answer.body.removesuffix(END_OF_EVENT).rpartition(END_OF_EVENT)[2]
    return told_error(last.removeprefix(ERROR_EVENT)) if last.startswith(ERROR_EVENT) else None


def are_events(answer: HttpAnswer) -> bool:
    """Whether the body is server-sent events."""
    return answer.headers.get("content-type", "").startswith("text/event-stream")


def details_as_json(details: Mapping[str, Any]) -> dict[str, Any]:
    """An error's details for JSON, where seqnums are strings.

    >>> details_as_json({"tag": "t", "actual_seqnum": 12, "limit": 5})
    {'tag': 't', 'actual_seqnum': '12', 'limit': 5}
    """
    return {
        name: str(value) if name.endswith("seqnum") and isinstance(value, int) else value
        for name, value in details.items()
    }


def _told(body: ErrorBody) -> BokiError:
    """The error that came as JSON; here its seqnums are numbers again."""
    details = {
        name: int(value) if name.endswith("seqnum") and isinstance(value, str) and _SEQNUM.fullmatch(value) else value
        for name, value in body.details.items()
    }
    return BokiError.from_body(msgspec.structs.replace(body, details=details))


def refused(url: str, error: Exception) -> str:
    """The message when there is no connection, in the system's words: libraries have their own for the same."""
    number = getattr(error, "errno", None) or 0
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)  # aiohttp wraps them
    if isinstance(cause, ssl.SSLError):  # whose numbers are its own
        reason = getattr(cause, "reason", None)
        why = getattr(cause, "verify_message", None) or reason or str(cause)
        remedy = "write http://" if reason == "WRONG_VERSION_NUMBER" else "check its certificate"
        return f"no TLS with {url} ({why}): {remedy}"
    why = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or str(error)
    return f"nothing answers at {url} ({why}): is the system running?"


def closed() -> Unavailable:
    """The error when a client is used after its end."""
    return Unavailable("this client is closed: make another one", retryable=False)


def of_another_loop() -> Unavailable:
    """The error when a client is used in a second event loop, as of a second `asyncio.run`."""
    return Unavailable(
        "this client belongs to the event loop that used it first: make one in each asyncio.run, or use BlockingClient",
        retryable=False,
    )


def broken(url: str, why: object, headers: Mapping[str, str] | None = None) -> ConnectionLost:
    """The error when the connection ends before the answer. `headers`: what has come of it, by names in lower case."""
    if headers is None or headers.get(OUTCOME.lower()) != STREAMED:
        return ConnectionLost(
            f"the connection to {url} broke before the answer came ({why}): it may have been carried out"
        )
    call = headers.get(INVOCATION.lower(), "")[:8]
    return ConnectionLost(
        f"the stream of call {call} was cut off: its function raised, which the console of its system shows, or the "
        "connection broke",
        retryable=False,
        call=call,
    )


def late(url: str, timeout_s: float) -> str:
    """The message when the answer does not come."""
    return f"no answer from {url} within {round(timeout_s, 3):g} s: it may have been carried out"
