"""`/flow` over HTTP: start workflows, list and ask for them, speak to them.

A workflow is addressed by the name of its function and its own id. It runs as a logged call whose LogBook has its
journal and its inbox, so a gateway needs nothing but the ledger of logged calls and that LogBook.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from boki import InvalidArgument, NoSuchInvocation, TerminalError
from boki.api.http.exchange import MAX_WAIT_S
from boki.extending import decode_any, encode_any, invocation_id_of
from boki.faces import GatewayPort
from boki.gateway.server.http import arguments
from boki.gateway.server.http.bodies import message_value, payload_encoding
from boki.gateway.server.http.endpoints import Asked, Endpoints
from boki.libs.bokiflow.attributes import check_attributes, parse_attribute
from boki.libs.bokiflow.beginning import QueryRequest
from boki.libs.bokiflow.face.calls import GatewayCalls
from boki.libs.bokiflow.face.looking import look
from boki.libs.bokiflow.face.queues import Queues
from boki.libs.bokiflow.face.registered import book_of, is_workflow, workflow_info
from boki.libs.bokiflow.face.shapes import Count, SpanBody, WorkflowBody, state_shape
from boki.libs.bokiflow.gates.marks import gate_id_of, marks_of
from boki.libs.bokiflow.handles import MAX_ID_CHARS, Handle, WorkflowStatus, state_of
from boki.libs.bokiflow.options import IfEnded, IfRunning
from boki.libs.bokiflow.refusals import no_such_workflow
from boki.libs.bokiflow.workflows import LIBRARY, kill_first
from boki.libs.fold.arguments import check_key
from boki.log.ids import MAX_SEQNUM
from boki.log.metalog import merge_positions
from boki.protocol.calls import (
    ATTENDS,
    MAX_CALLS_PAGE,
    PINNED,
    Attribute,
    Call,
    CallFilter,
    CallStatus,
    ChosenId,
    InvocationState,
    Payload,
    version_of,
)

_MAX_DELAY_S: Final = 366 * 24 * 3_600.0
_MAX_LOOKED_AT: Final = 5_000
"""Maximum number of logged calls that one page of a list looks at."""
_MAX_SPANS: Final = 5_000
_QUERY_US: Final = 30_000_000
_HISTORY_BYTES: Final = 4 * 1024 * 1024
"""What a history may take of the gateway's budget."""

Book = Annotated[str, Meta(description="Its LogBook; without it, the one that its decorator names, or its own name")]
Reason = Annotated[str, Meta(description="Why, for people")]
Unkept = Annotated[str, Meta(description="Is accepted, and kept nowhere")]
Step = Annotated[
    Count | None,
    Meta(description="The first step that is done again; without it the last one that failed, else all are kept"),
]
Wait = Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="How long to wait, in seconds, at most")]
Attributes = Annotated[list[str] | None, Meta(description="An attribute, as name=value; may be repeated")]

ENDPOINTS: Final = Endpoints(
    "Workflows",
    {
        "workflow": "The workflow's name",
        "id": "The id that it was started under",
        "message": "The name of the signal, update or promise",
    },
    function="workflow",
)
_ONE: Final = "/flow/{workflow}/{id}"


@ENDPOINTS(
    *("GET", "/flow", "listWorkflows"),
    "Workflows, those whose state changed last first. A page may be short, also empty, and not be the last",
    answer={"workflows": list[WorkflowBody], "before": str | msgspec.UnsetType},
)
async def _page(
    asked: Asked,
    workflow: Annotated[str, Meta(description="Only those of that name")] = "",
    state: Annotated[list[WorkflowStatus] | None, Meta(description="Only those in this state; may be repeated")] = None,
    id: Annotated[str, Meta(description="Only those whose ids begin so")] = "",  # noqa: A002
    attribute: Annotated[
        list[str] | None, Meta(description="Only those with this attribute, as name=value; may be repeated")
    ] = None,
    version: Annotated[Count, Meta(description="Only those that are pinned to this version of the functions")] = 0,
    since_us: Annotated[Count, Meta(description="Only those that changed at that time or later")] = 0,
    until_us: Annotated[Count, Meta(description="Only those that changed before that time")] = MAX_SEQNUM,
    before: Annotated[str, Meta(description="Where the page begins: `before` of the page in front of it")] = "",
    limit: Annotated[int, Meta(ge=1, le=MAX_CALLS_PAGE, description="Maximum number")] = 100,
) -> object:
    gateway = asked.gateway
    if workflow:
        workflow_info(gateway, workflow)
    statuses = state or []
    states = tuple({one for status in statuses for one in _call_states(status)})
    attributes = _attributes(attribute)
    if version:
        attributes[PINNED] = version
    below = arguments.whole_number(before, "before") if before else MAX_SEQNUM
    found: list[InvocationState] = []
    looked_at = 0
    while below and len(found) < limit and looked_at < _MAX_LOOKED_AT:
        wanted = CallFilter(workflow, states, since_us, until_us, below, limit - len(found), id, attributes)
        page = await gateway.ledger.page(wanted)
        found += [call for call in page.calls if _is_wanted(gateway, call, statuses)]
        looked_at += wanted.limit
        below = page.before
    queues = Queues(asked.session)
    shown = [state_shape(call, await queues.place_of(call)) for call in found]
    return {"workflows": shown} | ({"before": str(below)} if below else {})


def _is_wanted(gateway: GatewayPort, call: InvocationState, statuses: Sequence[WorkflowStatus]) -> bool:
    if not is_workflow(gateway, call.function) or ATTENDS in call.attributes:
        return False
    return not statuses or state_of(call.name or call.id, call).status in statuses


def _call_states(status: WorkflowStatus) -> tuple[CallStatus, ...]:
    """In which states the logged call of a workflow in that state may be."""
    if status == "cancelled":  # by a request, which its body has seen; or it was killed
        return ("failed", "cancelled")
    return ("suspended",) if status == "paused" else (status,)


def _attributes(given: list[str] | None) -> dict[str, Attribute]:
    """The attributes of a query: `attribute=name=value`, again for each of them."""
    return check_attributes(dict(map(parse_attribute, given or ())))


@ENDPOINTS(
    *("POST", "/flow/{workflow}", "startWorkflow"),
    "Start a workflow with the body as its payload. There is one workflow of an id at a time",
    reads="raw",
    answer={"id": str, "workflow": str, "invocation": str, "book": str},
    has_key=True,
    max_bytes=None,
)
async def _start(
    asked: Asked,
    id: Annotated[str | None, Meta(description="Its id; without it, one is made")] = None,  # noqa: A002
    if_running: Annotated[IfRunning, Meta(description="What a start does if one of that id runs")] = "use",
    if_ended: Annotated[IfEnded, Meta(description="What it does if one has ended")] = "use",
    attribute: Attributes = None,
    delay_s: Annotated[float, Meta(ge=0, le=_MAX_DELAY_S, description="It begins only so much later")] = 0,
    limit_key: Annotated[
        str | None, Meta(description="What its limit counts it by, instead of the payload's field")
    ] = None,
    priority: Annotated[str, Meta(description="Of those that wait, the highest goes first")] = "0",
    book: Book = "",
) -> object:
    workflow = asked.parts[0]
    info = workflow_info(asked.gateway, workflow)
    book = book_of(book, info)
    flow_id = check_key(os.urandom(16).hex() if id is None else id, "id", MAX_ID_CHARS)
    kills = if_running == "kill"
    if kills and asked.key:
        raise InvalidArgument("a start that kills takes no key: repeated, it would kill what it has started")
    chosen = ChosenId(
        asked.key or os.urandom(16).hex(),
        "fail" if if_running == "kill" else if_running,
        if_ended,
        flow_id,
        attributes=_attributes(attribute) | marks_of(None, limit_key, _priority(priority)),
        watcher=gate_id_of(workflow, book) if (info.settings_of(LIBRARY) or {}).get("limit") else "",
    )
    payload = Payload(
        payload_encoding(asked.request.headers.get("Content-Type", ""), info.payload_encoding), asked.body
    )
    if asked.body:
        decode_any(payload, f"payload of {info.name}")  # a body that is no JSON is refused before it is logged
    if kills:
        if_ended = await kill_first(_handle_of(asked, workflow, flow_id, book), if_ended)
        chosen = msgspec.structs.replace(chosen, if_ended=if_ended)
    run_id, positions = invocation_id_of(workflow, book, flow_id), arguments.positions(asked.request.headers)
    call = Call(run_id, workflow, payload, book, int(info.timeout_s * 1e6), 0, positions, chosen=chosen)
    await asked.gateway.ledger.accept(info.to_be_logged(call), delay_s=delay_s)
    return {"id": flow_id, "workflow": workflow, "invocation": call.id, "book": book}


def _priority(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"priority must be a whole number, not {text[:60]!r}", field="priority") from None


# Looking


@ENDPOINTS(
    *("GET", _ONE, "workflowState", "The state of a workflow, with its result once it has ended"), answer=WorkflowBody
)
async def _state(asked: Asked, wait_s: Wait = 0, book: Book = "") -> object:
    call = await _call(asked, book, wait_s)
    return state_shape(call, await Queues(asked.session).place_of(call))


@ENDPOINTS(
    *("GET", f"{_ONE}/history", "workflowHistory", "What a workflow did, as spans of time"),
    answer={
        "workflow": WorkflowBody,
        "began_us": Count,
        "continuations": Count,
        "span_count": Count,
        "spans": list[SpanBody],
    },
    answer_bytes=lambda _: _HISTORY_BYTES,
)
async def _history(
    asked: Asked,
    limit: Annotated[int, Meta(ge=0, le=_MAX_SPANS, description="Only the last ones: their maximum number")] = 200,
    book: Book = "",
) -> object:
    call = await _call(asked, book)
    seen = await look(asked.session.logbook(call.book), call.id)
    shown = seen.spans[-limit:] if limit else []
    return {
        "workflow": state_shape(call, await Queues(asked.session).place_of(call)),
        "began_us": seen.began_us,
        "continuations": seen.continuations,
        "span_count": len(seen.spans),
        "spans": [SpanBody(**msgspec.structs.asdict(span)) for span in shown],
    }


# Saying something


@ENDPOINTS(
    *("POST", f"{_ONE}/signal/{{message}}", "signalWorkflow"),
    "Send a message. It is kept until the workflow takes it, also if that is yet to be started",
    reads="raw",
    has_key=True,
    max_bytes=None,
)
async def _signal(asked: Asked, book: Book = "") -> None:
    await _handle(asked, book).signal(asked.parts[2], _value(asked), key=asked.key)


@ENDPOINTS(
    *("POST", f"{_ONE}/update/{{message}}", "updateWorkflow"),
    "Send a message and wait for its answer; under the same key it is sent once, and answered again",
    reads="raw",
    answer={"answer": Any},
    has_key=True,
    max_bytes=None,
    waits=True,
)
async def _update(asked: Asked, wait_s: Wait = MAX_WAIT_S, book: Book = "") -> object:
    return {"answer": await _handle(asked, book).update(asked.parts[2], _value(asked), id=asked.key, wait_s=wait_s)}


@ENDPOINTS(
    *("POST", f"{_ONE}/query/{{message}}", "queryWorkflow"),
    "What its handler of that query says now. Nothing happens, and it may have ended",
    reads="raw",
    answer={"answer": Any},
    max_bytes=None,
    waits=True,
)
async def _query(asked: Asked, book: Book = "") -> object:
    """By a replay in a worker."""
    workflow, flow_id, name = asked.parts
    headers = asked.request.headers
    info, state = workflow_info(asked.gateway, workflow), await _call(asked, book)
    wanted = QueryRequest(state.id, flow_id, name, encode_any(_value(asked), "payload of a query"))
    call = Call(
        os.urandom(16).hex(),
        workflow,
        Payload("bytes", msgspec.msgpack.encode(wanted)),
        state.book,
        min(arguments.timeout_us(headers) or _QUERY_US, int(info.timeout_s * 1e6)),
        0,
        arguments.positions(headers),
        chosen=ChosenId("", attributes={ATTENDS: "query", PINNED: version_of(state.attributes)}),
    )
    outcome = await asked.gateway.run(call)
    if outcome.failure is not None:
        raise outcome.failure.error()
    merge_positions(asked.session.caller.positions, outcome.positions)
    return {"answer": None if outcome.result is None else decode_any(outcome.result, f"answer of query {name}")}


@ENDPOINTS(
    *("POST", f"{_ONE}/promise/{{message}}", "resolvePromise"),
    "Give a promise of the workflow its value. The first one counts",
    reads="raw",
    max_bytes=None,
)
async def _resolve(asked: Asked, book: Book = "") -> None:
    await _handle(asked, book).resolve(asked.parts[2], _value(asked))


@ENDPOINTS(
    *("POST", f"{_ONE}/promise/{{message}}/reject", "rejectPromise"),
    "Have a promise of the workflow raise a TerminalError. Its first value or error counts",
)
async def _reject(asked: Asked, reason: Reason = "", book: Book = "") -> None:
    await _handle(asked, book).reject(asked.parts[2], TerminalError(reason or f"{asked.parts[2]} was rejected"))


@ENDPOINTS("POST", f"{_ONE}/cancel", "cancelWorkflow", "Ask it to end: it undoes what it has done")
async def _cancel(asked: Asked, reason: Reason = "", book: Book = "") -> None:
    await _handle(asked, book).cancel(reason)


@ENDPOINTS("POST", f"{_ONE}/kill", "killWorkflow", "End it as it is: nothing is undone")
async def _kill(asked: Asked, reason: Unkept = "", book: Book = "") -> None:  # noqa: ARG001 - clients send it
    await _handle(asked, book).kill()


@ENDPOINTS("POST", f"{_ONE}/pause", "pauseWorkflow", "Begin nothing more until it is resumed")
async def _pause(asked: Asked, reason: Reason = "", book: Book = "") -> None:
    await _handle(asked, book).pause(reason)


@ENDPOINTS("POST", f"{_ONE}/resume", "resumeWorkflow", "Continue it")
async def _resume(asked: Asked, reason: Unkept = "", book: Book = "") -> None:  # noqa: ARG001 - clients send it
    await _handle(asked, book).resume()


# Going back, and to another version


@ENDPOINTS(
    *("POST", f"{_ONE}/rewind", "rewindWorkflow"),
    "Continue in front of a step: it and what came after it is forgotten. It must have ended, or be paused",
    answer={"step": Count},
    answer_bytes=lambda _: _HISTORY_BYTES,
)
async def _rewind(asked: Asked, step: Step = None, book: Book = "") -> object:
    return {"step": await _handle(asked, book).rewind(step)}


@ENDPOINTS(
    *("POST", f"{_ONE}/fork", "forkWorkflow"),
    "Begin a workflow of another id with the history of this one in front of a step",
    answer={"id": str, "workflow": str, "invocation": str},
    answer_bytes=lambda _: _HISTORY_BYTES,
)
async def _fork(
    asked: Asked,
    step: Step = None,
    id: Annotated[str | None, Meta(description="The id of the new one; without it, one is made")] = None,  # noqa: A002
    book: Book = "",
) -> object:
    forked = await _handle(asked, book).fork(step, id=id)
    return {"id": forked.id, "workflow": asked.parts[0], "invocation": forked.invocation_id}


@ENDPOINTS(
    *("POST", f"{_ONE}/upgrade", "upgradeWorkflow"),
    "Continue with another deployed version of the functions, if what is recorded does not diverge under that",
    answer={"id": str, "workflow": str, "before": Count, "version": Count, "is_moved": bool},
    waits=True,
)
async def _upgrade(
    asked: Asked,
    version: Annotated[Count, Meta(description="Which one; without it, the one that runs")] = 0,
    dry_run: Annotated[Literal["false", "true"], Meta(description="Only tell whether it can")] = "false",
    book: Book = "",
) -> object:
    found = await _handle(asked, book).upgrade(version or None, dry_run=dry_run == "true")
    return {name: getattr(found, name) for name in ("id", "workflow", "before", "version", "is_moved")}


# In between


def _value(asked: Asked) -> Any:
    return message_value(asked.request.headers.get("Content-Type", ""), asked.body) if asked.body else None


def _handle(asked: Asked, book: str) -> Handle[Any]:
    """The workflow of that id, whether it was started or not."""
    workflow, flow_id, *_ = asked.parts
    book = book_of(book, workflow_info(asked.gateway, workflow))
    return _handle_of(asked, workflow, check_key(flow_id, "id", MAX_ID_CHARS), book)


def _handle_of(asked: Asked, workflow: str, flow_id: str, book: str) -> Handle[Any]:
    call_id = invocation_id_of(workflow, book, flow_id)
    decode = partial(decode_any, what=f"result of {workflow}")
    return Handle(workflow, flow_id, call_id, GatewayCalls(asked.gateway), asked.session.logbook(book), decode)


async def _call(asked: Asked, book: str, wait_s: float = 0.0) -> InvocationState:
    """The logged call of a workflow that was started. `NoSuchWorkflow`"""
    workflow, flow_id, *_ = asked.parts
    book = book_of(book, workflow_info(asked.gateway, workflow))
    try:
        return await asked.gateway.ledger.state(invocation_id_of(workflow, book, flow_id), wait_s)
    except NoSuchInvocation:
        raise no_such_workflow(workflow, flow_id, book) from None
