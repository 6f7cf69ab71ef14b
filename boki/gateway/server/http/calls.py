"""Functions over HTTP: call one and wait, put a call into the log, ask its outcome.

The route of a plain call is the busiest of all, so it is written to do little: the budget is taken before the body is
read, a body that came with the head is taken without waiting, and one future is all that waits for the outcome.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
from aiohttp.web import BaseRequest, Response, StreamResponse

from boki.api.http.exchange import BOOK, INVOCATION, KEY, POSITION, TRACEPARENT
from boki.api.payloads.json_faults import why_not_json
from boki.api.streaming import no_stream
from boki.errors import BokiError, InvalidArgument, Unavailable
from boki.faces import Route
from boki.gateway.backend import Backend
from boki.gateway.config import GatewayConfig
from boki.gateway.core import CallGivenUp, GatewayCore
from boki.gateway.server.http import answers, arguments
from boki.gateway.server.http.bodies import payload_encoding
from boki.gateway.server.http.connections import read_body, while_connected
from boki.gateway.server.http.function_lookup import FunctionLookup
from boki.gateway.server.http.invocations import asked_retry
from boki.gateway.server.http.request_heads import request_head
from boki.gateway.server.http.routing import is_head, method_of, not_there
from boki.gateway.server.http.streams import WINDOW_BYTES, Incoming, StreamedAnswer
from boki.host.clock import beat_delay_s
from boki.log.checks import check_book
from boki.log.metalog import format_positions
from boki.log.operations import Failure
from boki.protocol.calls import Call, FunctionInfo, Outcome, Payload, RequestHead
from boki.protocol.effects import REST_US
from boki.protocol.routes import Found
from boki.retry import MAX_DELAY_S

_TICK_S: Final = 0.25
_IDLE_TICK_S: Final = REST_US / 1_000_000


class FunctionCalls:
    """The handlers of `/function` and `/asyncFunction`."""

    def __init__(self, backend: Backend, core: GatewayCore, config: GatewayConfig, clock: Callable[[], int]) -> None:
        self._backend = backend
        self._core = core
        self._config = config
        self._clock = clock
        self.lookup = FunctionLookup(backend, core, clock)
        """What functions are found by."""
        self._waiting: dict[str, asyncio.Future[Outcome]] = {}
        self._held: dict[str, Call] = {}  # no engine takes them now
        self._incoming: dict[str, Incoming] = {}  # of calls that stream
        self._ticker: asyncio.TimerHandle | None = None
        self._rests = False

    def start(self) -> None:
        """Begin to look at deadlines."""
        self.stop()
        loop = asyncio.get_running_loop()
        self._rests = self._core.is_idle
        period_s = _IDLE_TICK_S if self._rests else _TICK_S
        self._ticker = loop.call_later(beat_delay_s(loop.time(), period_s), self._tick)

    def stop(self) -> None:
        """Stop to look at deadlines."""
        if self._ticker is not None:
            self._ticker.cancel()

    def routes(self) -> list[Route]:
        """What is answered here."""
        return [
            Route("POST", "/function/{name}", self.invoke, is_call=True),
            Route("POST", "/asyncFunction/{name}", self.invoke_later),
        ]

    def route_of(self, method: str, path: str) -> tuple[Route, list[str]]:
        """The handler of a function's own route, and what it is called with. `NotFound`, or what the path takes."""
        found = self.lookup.by_route(method, path)
        if isinstance(found, Found):
            handler = partial(self.invoke_by_route, found)
            return Route(method, found.route.text, handler, is_call=True), [found.function.name]
        if not found and not self._backend.knows_functions:
            return Route(method, "none", self._route_later), [path]
        broken = [module for module in self._backend.modules if module.error]
        raise not_there(method, path, found, broken)

    async def _route_later(self, request: BaseRequest, path: str) -> StreamResponse:
        """Once the functions are known: a gateway that has just started has yet to be told of their routes."""
        await self.lookup.wait_for_route(request, path)
        route, values = self.route_of(method_of(request), path)
        return await route.handler(request, *values)

    def give_up(self, lost: Iterable[CallGivenUp]) -> None:
        """These calls are not waited for any more: tell their callers what is known."""
        for call in lost:
            self._resolve(call.token, call.outcome)

    def dispatch_again(self, held: Iterable[str]) -> None:
        """An engine has changed: it may run other functions now, and it takes these calls, which were held."""
        self.lookup.look_again()
        for token in held:
            call = self._held.pop(token)
            try:
                self._dispatch(self._late(call))
            except BokiError as error:
                self._end(call, Outcome(None, Failure.of(error)))

    async def invoke(self, request: BaseRequest, name: str) -> StreamResponse:
        """`POST /function/{name}`: run it, answer its result."""
        info = await self.lookup.wait_for(request, name)
        key = arguments.key(request.headers)
        if key is not None:
            if info.streams:
                raise no_stream(name)
            return await self._invoke_once(request, info, key)
        asked_retry(request, is_logged=False)
        return await self._invoke(request, info, request_head(request))

    async def invoke_by_route(self, found: Found, request: BaseRequest, _name: str) -> StreamResponse:
        """A request by a route of the function's own: run it, answer its result."""
        if KEY in request.headers:
            name = found.function.name
            raise InvalidArgument(
                f"{found.route.text} does not log its calls: send the header {KEY} to POST /function/{name}", field=KEY
            )
        return await self._invoke(request, found.function, request_head(request, found.route, found.values))

    async def _invoke(self, request: BaseRequest, info: FunctionInfo, head: RequestHead) -> StreamResponse:
        call = self._call(request, info)
        if info.streams:
            return await self._stream(request, info, call, head)
        self._core.start(call.id, 0, self._clock() + call.timeout_us)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        try:
            self._waiting[call.id] = future
            call = await self._with_payload(request, info, call, head)
            if not future.done():  # it is if the body took longer than the call may
                self._dispatch(call)
            outcome = await future
        finally:
            # Nothing to do if the call has ended; if it was refused, or the client left, its place is free now.
            self._core.finish(call.id)
            self._waiting.pop(call.id, None)
            self._held.pop(call.id, None)
        return self._answer(call, outcome)

    async def _stream(self, request: BaseRequest, info: FunctionInfo, call: Call, head: RequestHead) -> StreamResponse:
        """Run a call whose result is streamed."""
        headers = {INVOCATION: call.id, TRACEPARENT: call.traceparent}
        answer = StreamedAnswer(request, headers, self._config.timeouts)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        incoming = Incoming(future)
        with self._core.streaming(WINDOW_BYTES):
            self._core.start(call.id, 0, self._clock() + call.timeout_us)
            try:
                self._waiting[call.id], self._incoming[call.id] = future, incoming
                call = await self._with_payload(request, info, call, head)
                if not future.done():
                    self._dispatch(call)
                with while_connected(request):
                    while (chunk := await incoming.next()) is not None:
                        response = await answer.write(chunk)
                        if is_head(request):
                            return response
                failure = future.result().failure
                if answer.response is None:
                    return self._answer(call, future.result())
                if failure is not None:
                    shown = failure if self._config.shows_tracebacks else answers.without_traceback(failure)
                    await answer.fail(shown)
                return answer.response
            finally:
                incoming.stop()
                self._core.finish(call.id)
                for known in (self._waiting, self._incoming, self._held):
                    known.pop(call.id, None)

    async def run(self, call: Call) -> Outcome:
        """Run a call of the gateway itself, within its budget; raises the `BokiError` that refuses it."""
        self._core.start(call.id, len(call.payload.data), self._clock() + call.timeout_us)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        try:
            self._waiting[call.id] = future
            self._dispatch(call)
            return await future
        finally:
            self._core.finish(call.id)
            self._waiting.pop(call.id, None)
            self._held.pop(call.id, None)

    async def invoke_later(self, request: BaseRequest, name: str) -> Response:
        """`POST /asyncFunction/{name}`: answer the invocation's id once the call is in the log."""
        info = await self.lookup.wait_for(request, name)
        key = arguments.key(request.headers)
        if info.streams:
            raise no_stream(name)
        values = arguments.query(request, {"delay_s"})
        delay_s = arguments.query_seconds(values, "delay_s", MAX_DELAY_S)
        call = self._call(request, info)
        with self._core.admitted():
            call = await self._with_payload(request, info, call)
            check_readable(call.payload, info)
            logged = info.to_be_logged(call, asked_retry(request, is_logged=True))
            invocation_id = await self._backend.ledger.accept(logged, key=key, delay_s=delay_s)
        answer = answers.json_answer({"id": invocation_id})
        answer.set_status(202)
        answer.headers["Location"] = f"/invocation/{invocation_id}"
        answer.headers[INVOCATION] = invocation_id
        return answer

    async def _invoke_once(self, request: BaseRequest, info: FunctionInfo, key: str) -> Response:
        call = self._call(request, info)
        with self._core.admitted():
            call = await self._with_payload(request, info, call)
            check_readable(call.payload, info)
            logged = info.to_be_logged(call, asked_retry(request, is_logged=True))
            first_id, outcome = await self._backend.ledger.call_once(logged, key)
        return self._answer(call, outcome, first_id)

    def _call(self, request: BaseRequest, info: FunctionInfo) -> Call:
        """The call that the head of the request asks for, still without its payload."""
        headers = request.headers
        positions = arguments.positions(headers)
        if positions:
            self._backend.check_positions(positions)
        book = headers.get(BOOK)
        own_us = int(info.timeout_s * 1e6)
        asked_us = arguments.timeout_us(headers)
        invocation_id = os.urandom(16).hex()
        return Call(
            invocation_id,
            info.name,
            _NO_PAYLOAD,
            info.book or info.name if book is None else check_book(book),
            own_us if asked_us is None else min(asked_us, own_us),
            0,
            positions,
            arguments.trace_for(headers, invocation_id),
        )

    async def _with_payload(
        self, request: BaseRequest, info: FunctionInfo, call: Call, head: RequestHead | None = None
    ) -> Call:
        body = await read_body(request, self._config.limits.request_bytes, self._config.timeouts, _PAYLOAD)
        encoding = payload_encoding(request.headers.get("Content-Type", ""), info.payload_encoding)
        payload = Payload(encoding, body)
        return Call(
            call.id,
            call.function,
            payload,
            call.book,
            call.timeout_us,
            0,
            call.positions,
            call.traceparent,
            request=head,
        )

    def _dispatch(self, call: Call, refusal: Failure | None = None) -> None:
        if self._rests:
            self.start()
        engine = self._core.dispatch(call.id, call.function, self._clock(), refusal)
        if engine is None:
            self._held[call.id] = call
        else:
            incoming = self._incoming.get(call.id)
            take = None if incoming is None else incoming.take
            control = self._backend.start_call(engine, call, partial(self._ended, call), take)
            if incoming is not None:
                incoming.control = control

    def _ended(self, call: Call, outcome: Outcome) -> None:
        """An engine has answered. One that cannot run the call at all may leave it to another."""
        failure = outcome.failure
        if failure is not None and failure.code == Unavailable.code and failure.outcome == "not_applied":
            with suppress(BokiError, KeyError):  # no other engine has room, or the caller has gone
                self._dispatch(self._late(call), failure)
                return
        self._end(call, outcome)

    def _late(self, call: Call) -> Call:
        """The call, with the time that it has left."""
        return msgspec.structs.replace(call, timeout_us=self._core.left_us(call.id, self._clock()))

    def _end(self, call: Call, outcome: Outcome) -> None:
        if self._core.finish(call.id):
            self._resolve(call.id, outcome)

    def _resolve(self, token: str, outcome: Outcome) -> None:
        self._held.pop(token, None)
        future = self._waiting.pop(token, None)
        if future is not None and not future.done():
            future.set_result(outcome)

    def _tick(self) -> None:
        now_us = self._clock()
        for token, incoming in self._incoming.items():
            if incoming.is_being_read:
                self._core.spare(token, now_us)
        self.give_up(self._core.tick(now_us))
        self.lookup.look_again()
        self.start()

    def _answer(self, call: Call, outcome: Outcome, first_id: str = "") -> Response:
        headers = {INVOCATION: first_id or call.id, TRACEPARENT: call.traceparent}
        if outcome.positions:
            headers[POSITION] = format_positions(outcome.positions)
        result = outcome.result
        if outcome.failure is not None:
            failure = outcome.failure
            if not self._config.shows_tracebacks:
                failure = answers.without_traceback(failure)
            answer = answers.refusal(failure.error())
            answer.headers.update(headers)
            return answer
        assert result is not None, "an outcome is a result or a failure"
        return answers.result_answer(result, headers)


_any_json: Final = msgspec.json.Decoder()
_NO_PAYLOAD: Final = Payload("bytes", b"")
_PAYLOAD: Final = "a payload may have at most {limit:,} bytes: append it to a LogBook in parts and pass their seqnums"


def check_readable(payload: Payload, info: FunctionInfo) -> None:
    """Refuse what the function cannot read, before the call is in the log; types are checked when it runs."""
    takes_any = info.payload_schema == {}
    encoding = info.payload_encoding if payload.encoding == "bytes" and not takes_any else payload.encoding
    if info.payload_encoding == "bytes" or not payload.data:
        return
    try:
        if encoding == "json":
            _any_json.decode(payload.data)
        elif encoding == "text":
            payload.data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = "JSON" if encoding == "json" else "UTF-8 text"
        why = (why_not_json(payload.data) if encoding == "json" else "") or error
        raise InvalidArgument(f"the payload is not {what}: {why}", field="payload") from None
    except RecursionError:
        raise InvalidArgument("the payload is nested too deeply", field="payload") from None
