"""`/flow` over HTTP: start workflows, list and ask for them, speak to them.

A workflow is addressed by the name of its function and its own id. It runs as a logged call whose LogBook has its
journal and its inbox, so a gateway needs nothing but the ledger of logged calls and that LogBook.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, get_args

import msgspec
from aiohttp.web import BaseRequest, Response

from boki import InvalidArgument, NoSuchInvocation
from boki.api.http.exchange import MAX_WAIT_S
from boki.api.logbook import LogSession
from boki.extending import decode_any, encode_any, invocation_id_of
from boki.faces import GatewayPort, Route
from boki.gateway.server.http import answers, arguments
from boki.gateway.server.http.arguments import query, query_int, query_seconds
from boki.gateway.server.http.bodies import message_value, payload_encoding
from boki.libs.bokiflow.attributes import check_attributes, parse_attribute
from boki.libs.bokiflow.face.calls import GatewayCalls
from boki.libs.bokiflow.face.looking import look
from boki.libs.bokiflow.face.registered import book_of, is_workflow, workflow_info
from boki.libs.bokiflow.face.shapes import span_shape, state_shape
from boki.libs.bokiflow.gates.marks import gate_id_of, marks_of
from boki.libs.bokiflow.handles import MAX_ID_CHARS, Handle, WorkflowStatus, state_of
from boki.libs.bokiflow.refusals import no_such_workflow
from boki.libs.bokiflow.run import QueryRequest
from boki.libs.bokiflow.workflows import LIBRARY
from boki.libs.fold.arguments import check_key
from boki.log.ids import MAX_SEQNUM
from boki.protocol.calls import (
    ATTENDS,
    MAX_CALLS_PAGE,
    Attribute,
    Call,
    CallFilter,
    CallStatus,
    ChosenId,
    FunctionInfo,
    InvocationState,
    Payload,
)

STATES: Final[tuple[WorkflowStatus, ...]] = get_args(WorkflowStatus)
IF_RUNNING: Final = ("use", "fail")
IF_ENDED: Final = ("use", "fail", "again", "again_if_failed")
_MAX_DELAY_S: Final = 366 * 24 * 3_600.0
_MAX_LOOKED_AT: Final = 5_000
"""Maximum number of logged calls that one page of a list looks at."""
_DEFAULT_LIMIT: Final = 100
_MAX_SPANS: Final = 5_000
_QUERY_US: Final = 30_000_000
_REPEATED: Final = ("state", "attribute")
_HISTORY_BYTES: Final = 4 * 1024 * 1024
"""What a history may take of the gateway's budget."""

Saying = Callable[[Handle[Any], str, Any], Awaitable[Any]]


class Workflows:
    """The handlers of `/flow`."""

    def __init__(self, gateway: GatewayPort) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        """What is answered here."""
        one = "/flow/{workflow}/{id}"
        told = {"cancel": _cancel, "kill": _kill, "pause": _pause, "resume": _resume}
        named = {"signal": _signal, "promise": _resolve}
        back = {"rewind": self.rewind, "fork": self.fork}
        return [
            Route("GET", "/flow", self.page),
            Route("POST", "/flow/{workflow}", self.start),
            Route("GET", one, self.state),
            Route("GET", f"{one}/history", self.history),
            Route("POST", f"{one}/update/{{message}}", self.update),
            Route("POST", f"{one}/query/{{message}}", self.query),
            *(Route("POST", f"{one}/{verb}/{{message}}", partial(self.say, act)) for verb, act in named.items()),
            *(Route("POST", f"{one}/{verb}", partial(self.tell, act)) for verb, act in told.items()),
            *(Route("POST", f"{one}/{verb}", act) for verb, act in back.items()),
        ]

    # Starting

    async def start(self, request: BaseRequest, workflow: str) -> Response:
        """Start a workflow with the body as its payload; its id, once that is durable."""
        values = query(request, _START, "attribute")
        info = workflow_info(self._gateway, workflow)
        book = book_of(values, info)
        flow_id = check_key(values.get("id") or os.urandom(16).hex(), "id", MAX_ID_CHARS)
        chosen = ChosenId(
            arguments.key(request.headers) or os.urandom(16).hex(),
            _one_of(values, "if_running", IF_RUNNING),
            _one_of(values, "if_ended", IF_ENDED),
            flow_id,
            attributes=_attributes(request) | marks_of(None, values.get("limit_key"), _priority(values)),
            watcher=_watcher(info, book),
        )
        delay_s = query_seconds(values, "delay_s", _MAX_DELAY_S)
        with self._gateway.admitted():
            payload = await self._payload(request, info)
            call = Call(
                invocation_id_of(workflow, book, flow_id),
                workflow,
                payload,
                book,
                int(info.timeout_s * 1e6),
                0,
                arguments.positions(request.headers),
                chosen=chosen,
            )
            await self._gateway.ledger.accept(info.to_be_logged(call), delay_s=delay_s)
        return answers.json_answer({"id": flow_id, "workflow": workflow, "invocation": call.id, "book": book})

    async def _payload(self, request: BaseRequest, info: FunctionInfo) -> Payload:
        body = await self._gateway.body(request)
        encoding = payload_encoding(request.headers.get("Content-Type", ""), info.payload_encoding)
        payload = Payload(encoding, body)
        if body:
            decode_any(payload, f"payload of {info.name}")  # a body that is no JSON is refused before it is logged
        return payload

    # Looking

    async def page(self, request: BaseRequest) -> Response:
        """Workflows whose state changed last first: by workflow, state, beginning of the id, and time."""
        values = query(
            request, {"workflow", "state", "id", "since_us", "until_us", "before", "limit", "attribute"}, *_REPEATED
        )
        limit = query_int(values, "limit", _DEFAULT_LIMIT, MAX_CALLS_PAGE)
        if not limit:
            raise InvalidArgument(f"limit must be from 1 to {MAX_CALLS_PAGE}, not 0", field="limit")
        wanted = values.get("workflow", "")
        if wanted:
            workflow_info(self._gateway, wanted)
        statuses = [_status(text) for text in arguments.query_list(request, "state")]
        states = tuple({state for status in statuses for state in _call_states(status)})
        named, attributes = values.get("id", ""), _attributes(request)
        since_us, until_us = query_int(values, "since_us", 0), query_int(values, "until_us", MAX_SEQNUM)
        before = query_int(values, "before", MAX_SEQNUM)
        found: list[InvocationState] = []
        looked_at = 0
        with self._gateway.admitted():
            while before and len(found) < limit and looked_at < _MAX_LOOKED_AT:
                asked = CallFilter(wanted, states, since_us, until_us, before, limit - len(found), named, attributes)
                page = await self._gateway.ledger.page(asked)
                found += [call for call in page.calls if self._is_wanted(call, statuses)]
                looked_at += asked.limit
                before = page.before
        body: dict[str, Any] = {"workflows": [state_shape(call) for call in found]}
        if before:
            body["before"] = str(before)
        return answers.json_answer(body)

    def _is_wanted(self, call: InvocationState, statuses: Sequence[WorkflowStatus]) -> bool:
        if not is_workflow(self._gateway, call.function) or ATTENDS in call.attributes:
            return False
        found = state_of(call.name or call.id, call)
        return not statuses or found.status in statuses

    async def state(self, request: BaseRequest, workflow: str, flow_id: str) -> Response:
        """The state of a workflow, after waiting at most `wait_s` for its end; with its result."""
        values = query(request, {"wait_s", "book"})
        wait_s = query_seconds(values, "wait_s", MAX_WAIT_S)
        with self._gateway.admitted(waits=wait_s > 0), self._gateway.connected(request):
            call = await self._call(values, workflow, flow_id, wait_s)
        return answers.json_answer(state_shape(call))

    async def history(self, request: BaseRequest, workflow: str, flow_id: str) -> Response:
        """What the workflow did: its last `limit` spans, and its state."""
        values = query(request, {"limit", "book"})
        limit = query_int(values, "limit", 200, _MAX_SPANS)
        session = self._gateway.session(request)
        with self._gateway.admitted(_HISTORY_BYTES), self._gateway.connected(request):
            call = await self._call(values, workflow, flow_id)
            seen = await look(session.logbook(call.book), call.id)
        shown = seen.spans[-limit:] if limit else []
        body = {
            "workflow": state_shape(call),
            "began_us": seen.began_us,
            "continuations": seen.continuations,
            "span_count": len(seen.spans),
            "spans": [span_shape(span) for span in shown],
        }
        return answers.json_answer(body, session.caller.positions)

    # Saying something

    async def say(self, act: Saying, request: BaseRequest, workflow: str, flow_id: str, name: str) -> Response:
        """A signal, or the value of a promise: the body."""
        handle, session = self._handle(request, query(request, {"book"}), workflow, flow_id)
        with self._gateway.admitted():
            value = await self._value(request)
            await act(handle, name, (value, arguments.key(request.headers)))
        return answers.json_answer({}, session.caller.positions)

    async def tell(self, act: Saying, request: BaseRequest, workflow: str, flow_id: str) -> Response:
        """Cancel, kill, pause or resume it."""
        values = query(request, {"book", "reason"})
        handle, session = self._handle(request, values, workflow, flow_id)
        with self._gateway.admitted():
            await act(handle, "", values.get("reason", ""))
        return answers.json_answer({}, session.caller.positions)

    async def update(self, request: BaseRequest, workflow: str, flow_id: str, name: str) -> Response:
        """An update with the body: its answer. Under the same idempotency key it is sent once, and answered again."""
        values = query(request, {"book", "wait_s"})
        wait_s = query_seconds(values, "wait_s", MAX_WAIT_S) or MAX_WAIT_S
        handle, session = self._handle(request, values, workflow, flow_id, wait_s)
        with self._gateway.admitted(waits=True), self._gateway.connected(request):
            value = await self._value(request)
            answer = await handle.update(name, value, id=arguments.key(request.headers))
        return answers.json_answer({"answer": answer}, session.caller.positions)

    async def query(self, request: BaseRequest, workflow: str, flow_id: str, name: str) -> Response:
        """What the workflow's handler of that query says now, by a replay in a worker. Nothing happens."""
        values = query(request, {"book"})
        info = workflow_info(self._gateway, workflow)
        with self._gateway.admitted(waits=True), self._gateway.connected(request):
            state = await self._call(values, workflow, flow_id)
            asked = QueryRequest(state.id, flow_id, name, encode_any(await self._value(request), "payload of a query"))
            call = Call(
                os.urandom(16).hex(),
                workflow,
                Payload("bytes", msgspec.msgpack.encode(asked)),
                state.book,
                min(arguments.timeout_us(request.headers) or _QUERY_US, int(info.timeout_s * 1e6)),
                0,
                arguments.positions(request.headers),
                chosen=ChosenId("", attributes={ATTENDS: "query"}),
            )
            outcome = await self._gateway.run(call)
        if outcome.failure is not None:
            raise outcome.failure.error()
        answer = None if outcome.result is None else decode_any(outcome.result, f"answer of query {name}")
        return answers.json_answer({"answer": answer}, outcome.positions)

    # Going back

    async def rewind(self, request: BaseRequest, workflow: str, flow_id: str) -> Response:
        """Have it continue in front of a step."""
        values = query(request, {"book", "step"})
        handle, session = self._handle(request, values, workflow, flow_id)
        with self._gateway.admitted(_HISTORY_BYTES):
            step = await handle.rewind(_step(values))
        return answers.json_answer({"step": step}, session.caller.positions)

    async def fork(self, request: BaseRequest, workflow: str, flow_id: str) -> Response:
        """Begin another one with its history in front of a step."""
        values = query(request, {"book", "step", "id"})
        handle, session = self._handle(request, values, workflow, flow_id)
        with self._gateway.admitted(_HISTORY_BYTES):
            forked = await handle.fork(_step(values), id=values.get("id") or None)
        said = {"id": forked.id, "workflow": workflow, "invocation": forked.invocation_id}
        return answers.json_answer(said, session.caller.positions)

    async def _value(self, request: BaseRequest) -> Any:
        body = await self._gateway.body(request)
        return message_value(request.headers.get("Content-Type", ""), body) if body else None

    # In between

    def _handle(
        self, request: BaseRequest, values: Mapping[str, str], workflow: str, flow_id: str, wait_s: float = 0.0
    ) -> tuple[Handle[Any], LogSession]:
        """The workflow of that id, whether it was started or not."""
        book = book_of(values, workflow_info(self._gateway, workflow))
        check_key(flow_id, "id", MAX_ID_CHARS)
        session = self._gateway.session(request, wait_s)
        call_id = invocation_id_of(workflow, book, flow_id)
        decode = partial(decode_any, what=f"result of {workflow}")
        calls = GatewayCalls(self._gateway)
        return Handle(workflow, flow_id, call_id, calls, session.logbook(book), decode), session

    async def _call(
        self, values: Mapping[str, str], workflow: str, flow_id: str, wait_s: float = 0.0
    ) -> InvocationState:
        """The logged call of a workflow that was started. `NoSuchWorkflow`"""
        book = book_of(values, workflow_info(self._gateway, workflow))
        try:
            return await self._gateway.ledger.state(invocation_id_of(workflow, book, flow_id), wait_s)
        except NoSuchInvocation:
            raise no_such_workflow(workflow, flow_id) from None


def _step(values: Mapping[str, str]) -> int | None:
    """The number of a step; None: none is named."""
    return query_int(values, "step", 0) if values.get("step") else None


_START: Final = frozenset(
    ("id", "book", "if_running", "if_ended", "delay_s", "attribute", "limit_key", "priority"),
)


def _priority(values: Mapping[str, str]) -> int:
    try:
        return int(values.get("priority", "0"))
    except ValueError:
        raise InvalidArgument(
            f"priority must be a whole number, not {values['priority'][:60]!r}", field="priority"
        ) from None


def _watcher(info: FunctionInfo, book: str) -> str:
    """The call that waits for the ends of such workflows, if they have a limit."""
    return gate_id_of(info.name, book) if (info.settings_of(LIBRARY) or {}).get("limit") else ""


def _one_of(values: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> Any:
    text = values.get(name, allowed[0])
    if text not in allowed:
        raise InvalidArgument(f"{name} must be one of {', '.join(allowed)}, not {text[:60]!r}", field=name)
    return text


def _call_states(status: WorkflowStatus) -> tuple[CallStatus, ...]:
    """In which states the logged call of a workflow in that state may be."""
    if status == "cancelled":  # by a request, which its body has seen; or it was killed
        return ("failed", "cancelled")
    return ("suspended",) if status == "paused" else (status,)


def _attributes(request: BaseRequest) -> dict[str, Attribute]:
    """The attributes of a query: `attribute=name=value`, again for each of them."""
    return check_attributes(dict(map(parse_attribute, arguments.query_list(request, "attribute"))))


def _status(text: str) -> WorkflowStatus:
    for state in STATES:
        if text == state:
            return state
    raise InvalidArgument(f"state must be one of {', '.join(STATES)}, not {text[:60]!r}", field="state")


async def _signal(handle: Handle[Any], name: str, said: tuple[Any, str | None]) -> None:
    await handle.signal(name, said[0], key=said[1])


async def _resolve(handle: Handle[Any], name: str, said: tuple[Any, str | None]) -> None:
    await handle.resolve(name, said[0])


async def _cancel(handle: Handle[Any], _name: str, reason: str) -> None:
    await handle.cancel(reason)


async def _kill(handle: Handle[Any], _name: str, _reason: str) -> None:
    await handle.kill()


async def _pause(handle: Handle[Any], _name: str, reason: str) -> None:
    await handle.pause(reason)


async def _resume(handle: Handle[Any], _name: str, _reason: str) -> None:
    await handle.resume()
