"""Logged calls over HTTP: their state and result, lists of them, cancelling them and running them again."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from aiohttp.web import BaseRequest
from msgspec import Meta, UnsetType

from boki.api.http.exchange import INVOCATION, MAX_WAIT_S, RETRY
from boki.errors import InvalidArgument
from boki.gateway.backend import Backend
from boki.gateway.config import GatewayConfig
from boki.gateway.server.http import arguments
from boki.gateway.server.http.answers import InvocationBody, invocation_body, without_traceback
from boki.gateway.server.http.endpoints import Asked, Endpoints
from boki.gateway.server.http.openapi_parts import SEQNUM, Seqnum, Time, instead
from boki.log.ids import MAX_SEQNUM, check_name
from boki.protocol.calls import MAX_CALLS_PAGE, CallFilter, CallStatus, InvocationState
from boki.retry import Retry

_ONE: Final = "/invocation/{id}"
_MAX_RETRY_CHARS: Final = 8_000
_retry_decoder: Final = msgspec.json.Decoder(Retry)

_Micros = Annotated[Time, Meta(ge=0)]
ENDPOINTS: Final = Endpoints("Invocations", {"id": "The invocation's id"}, uses_log=False)


class Invocations:
    """The handlers of `/invocation`."""

    def __init__(self, backend: Backend, config: GatewayConfig) -> None:
        self._backend = backend
        self._config = config

    @ENDPOINTS(
        *("GET", "/invocation", "listInvocations"),
        "Logged calls, those whose state changed last first. A page may be short, also empty, and not be the last",
        answer={
            "calls": list[InvocationBody],
            "before": Annotated[Seqnum, Meta(description="Where the next page begins; missing: this is the last")]
            | UnsetType,
        },
    )
    async def page(
        self,
        asked: Asked,  # noqa: ARG002 - an endpoint takes it
        function: Annotated[str, Meta(description="Only calls of this function")] = "",
        state: Annotated[list[CallStatus] | None, Meta(description="Only calls in this state; may be repeated")] = None,
        since_us: Annotated[_Micros, Meta(description="Only calls that changed at this time or later")] = 0,
        until_us: Annotated[_Micros, Meta(description="Only calls that changed before this time")] = MAX_SEQNUM,
        before: Annotated[
            int,
            Meta(
                description="Where the page begins: `before` of the page in front of it",
                extra_json_schema=instead(SEQNUM),
            ),
        ] = MAX_SEQNUM,
        limit: Annotated[int, Meta(ge=1, le=MAX_CALLS_PAGE, description="Maximum number of calls")] = 100,
    ) -> object:
        """Answer a page of a list."""
        name = check_name(function, "function") if function else ""
        wanted = CallFilter(name, tuple(state or ()), since_us, until_us, before, limit)
        page = await self._backend.ledger.page(wanted)
        calls = [self._body(call) for call in page.calls]
        return {"calls": calls, "before": str(page.before)} if page.before else {"calls": calls}

    @ENDPOINTS("GET", _ONE, "invocation", "The state of a logged call, and its result", answer=InvocationBody)
    async def state(
        self,
        asked: Asked,
        wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="Seconds to wait if it has not ended")] = 0.0,
    ) -> object:
        """Answer the state, and the result once there is one."""
        return self._answer(asked, await self._backend.ledger.state(asked.parts[0], wait_s))

    @ENDPOINTS(
        *("POST", f"{_ONE}/cancel", "cancel"),
        "End a logged call; one that has not begun never runs",
        answer=InvocationBody,
    )
    async def cancel(self, asked: Asked) -> object:
        """End it."""
        return self._answer(asked, await self._backend.ledger.cancel(asked.parts[0]))

    @ENDPOINTS(
        *("POST", f"{_ONE}/retry", "retry"),
        "Run a logged call again that has failed or was cancelled",
        answer=InvocationBody,
    )
    async def retry(self, asked: Asked) -> object:
        """Run it again, under its id."""
        return self._answer(asked, await self._backend.ledger.retry(asked.parts[0]))

    def _answer(self, asked: Asked, state: InvocationState) -> InvocationBody:
        asked.headers[INVOCATION] = state.id
        return self._body(state)

    def _body(self, state: InvocationState) -> InvocationBody:
        failure = state.failure
        if failure is not None and not self._config.shows_tracebacks:
            failure = without_traceback(failure)
        return invocation_body(state, failure)


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
