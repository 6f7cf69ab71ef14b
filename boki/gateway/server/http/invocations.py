"""Logged calls over HTTP: their state and result, lists of them, cancelling them and running them again."""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec
from aiohttp.web import BaseRequest, Response

from boki.api.http.exchange import INVOCATION, MAX_WAIT_S, RETRY
from boki.errors import InvalidArgument
from boki.faces import Route
from boki.gateway.backend import Backend
from boki.gateway.config import GatewayConfig
from boki.gateway.core import GatewayCore
from boki.gateway.server.http import answers, arguments
from boki.gateway.server.http.connections import while_connected
from boki.log.ids import MAX_SEQNUM, check_name
from boki.protocol.calls import MAX_CALLS_PAGE, CallFilter, CallStatus, InvocationState
from boki.retry import Retry

_STATES: Final[tuple[CallStatus, ...]] = get_args(CallStatus)
_FILTERS: Final = frozenset({"function", "state", "since_us", "until_us", "before", "limit"})
_DEFAULT_LIMIT: Final = 100
_MAX_RETRY_CHARS: Final = 8_000
_retry_decoder: Final = msgspec.json.Decoder(Retry)


class Invocations:
    """The handlers of `/invocation`."""

    def __init__(self, backend: Backend, core: GatewayCore, config: GatewayConfig) -> None:
        self._backend = backend
        self._core = core
        self._config = config

    def routes(self) -> list[Route]:
        """What is answered here."""
        return [
            Route("GET", "/invocation", self.page),
            Route("GET", "/invocation/{id}", self.state),
            Route("POST", "/invocation/{id}/cancel", self.cancel),
            Route("POST", "/invocation/{id}/retry", self.retry),
        ]

    async def state(self, request: BaseRequest, invocation_id: str) -> Response:
        """`GET /invocation/{id}`: its state, and its result once there is one."""
        values = arguments.query(request, {"wait_s"})
        wait_s = arguments.query_seconds(values, "wait_s", MAX_WAIT_S)
        with self._core.admitted(waits=wait_s > 0), while_connected(request):
            state = await self._backend.ledger.state(invocation_id, wait_s)
        return self._answer(state)

    async def cancel(self, request: BaseRequest, invocation_id: str) -> Response:
        """`POST /invocation/{id}/cancel`: end it; one that has not begun never runs."""
        arguments.query(request, ())
        with self._core.admitted():
            state = await self._backend.ledger.cancel(invocation_id)
        return self._answer(state)

    async def retry(self, request: BaseRequest, invocation_id: str) -> Response:
        """`POST /invocation/{id}/retry`: run one again that has failed or was cancelled, under its id."""
        arguments.query(request, ())
        with self._core.admitted():
            state = await self._backend.ledger.retry(invocation_id)
        return self._answer(state)

    async def page(self, request: BaseRequest) -> Response:
        """`GET /invocation`: a page of them, those that changed last first."""
        values = arguments.query(request, _FILTERS, "state")
        limit = arguments.query_int(values, "limit", _DEFAULT_LIMIT, MAX_CALLS_PAGE)
        if not limit:
            raise InvalidArgument(f"limit must be from 1 to {MAX_CALLS_PAGE}, not 0", field="limit")
        function = values.get("function", "")
        wanted = CallFilter(
            check_name(function, "function") if function else "",
            tuple(_state(text) for text in arguments.query_list(request, "state")),
            arguments.query_int(values, "since_us", 0),
            arguments.query_int(values, "until_us", MAX_SEQNUM),
            arguments.query_int(values, "before", MAX_SEQNUM),
            limit,
        )
        with self._core.admitted():
            page = await self._backend.ledger.page(wanted)
        body: dict[str, Any] = {"calls": [self._body(state) for state in page.calls]}
        if page.before:
            body["before"] = str(page.before)
        return answers.json_answer(body)

    def _answer(self, state: InvocationState) -> Response:
        answer = answers.json_answer(self._body(state))
        answer.headers[INVOCATION] = state.id
        return answer

    def _body(self, state: InvocationState) -> dict[str, Any]:
        failure = state.failure
        if failure is not None and not self._config.shows_tracebacks:
            failure = answers.without_traceback(failure)
        return answers.invocation_body(state, failure)


def asked_retry(request: BaseRequest, *, is_logged: bool) -> Retry | None:
    """The policy of the `Boki-Retry` header, for a call that is logged."""
    text = request.headers.get(RETRY)
    if text is None:
        return None
    if not is_logged:
        raise InvalidArgument(
            f"{RETRY} is for logged calls: send an Idempotency-Key, too, or call /asyncFunction", field=RETRY
        )
    if len(text) > _MAX_RETRY_CHARS:
        raise InvalidArgument(f"{RETRY} may have {_MAX_RETRY_CHARS:,} characters, not {len(text):,}", field=RETRY)
    return arguments.json_header(RETRY, text, _retry_decoder, '{"attempts": 3, "first_s": 1}')


def _state(text: str) -> CallStatus:
    for state in _STATES:
        if text == state:
            return state
    raise InvalidArgument(f"state must be one of {', '.join(_STATES)}, not {text[:60]!r}", field="state")
