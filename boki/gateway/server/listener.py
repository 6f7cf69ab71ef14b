"""The gateway's shell: one HTTP listener in front of a `Backend`.

Every request takes the same way: find the route, check the token, run the handler, turn whatever it raises into an
answer, count. aiohttp's low-level server carries it: its application layer (router, middlewares, signals) costs a
quarter of what an empty call takes, and none of it is needed.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable

from aiohttp.web import BaseRequest, Response, StreamResponse
from prometheus_client import CollectorRegistry

from boki.errors import BokiError, NotFound, Unauthorized, Unavailable
from boki.faces import Route
from boki.gateway.backend import Backend
from boki.gateway.config import GatewayConfig
from boki.gateway.core import GatewayCore, Share, Standing
from boki.gateway.server.http import books, deployments, invocations, openapi, subscriptions
from boki.gateway.server.http.answers import Refusal, Repeatable, refusal
from boki.gateway.server.http.backend_metrics import BackendMetrics
from boki.gateway.server.http.binary import BinaryEndpoint
from boki.gateway.server.http.browsers import Browsers, dress
from boki.gateway.server.http.calls import FunctionCalls
from boki.gateway.server.http.connections import Connections, connection_of, send
from boki.gateway.server.http.deployments import DeploymentPages
from boki.gateway.server.http.invocations import Invocations
from boki.gateway.server.http.libraries import Libraries
from boki.gateway.server.http.library_port import LibraryPort
from boki.gateway.server.http.log_access import LogDoor
from boki.gateway.server.http.metrics import GatewayMetrics
from boki.gateway.server.http.routing import Routes, method_of
from boki.gateway.server.http.subscriptions import Subscriptions
from boki.gateway.server.http.system import SystemPages
from boki.host.clock import now_us
from boki.host.process import file_limit, reserved_files
from boki.log.ids import NodeId

_log = logging.getLogger("boki.gateway")

_MIN_CONNECTIONS = 32
_FLUSH_S = 1.0
"""How long answers that are being sent may still take when it stops."""


class Gateway:
    """One listener. `start` it, `drain` it, `stop` it."""

    def __init__(
        self,
        backend: Backend,
        config: GatewayConfig,
        *,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], int] = now_us,
        on_refused: Callable[[str, BokiError], None] | None = None,
    ) -> None:
        """`on_refused` is told of each request that is refused here: what was asked for, and the error."""
        self.config = config
        self.core = GatewayCore(config.budget)
        self._backend = backend
        self._clock = clock
        self._on_refused = on_refused
        self._token = config.token.encode()
        self._browsers = Browsers(config.cors, trusts_all=bool(config.token) or config.insecure)
        registry = registry or CollectorRegistry()
        self._metrics = GatewayMetrics(self.core, registry)
        self._calls = FunctionCalls(backend, self.core, config, clock)
        self._door = LogDoor(backend, self.core, config)
        port = LibraryPort(self._door, self._calls, backend)
        self._libraries = Libraries(port, registry)
        self._routes = Routes(
            [
                *self._calls.routes(),
                *invocations.ENDPOINTS.routes(port, Invocations(backend, config)),
                *books.ENDPOINTS.routes(port),
                *subscriptions.ENDPOINTS.routes(port, Subscriptions(self._door)),
                *self._libraries.routes(),
                *BinaryEndpoint(self._door).routes(),
                *deployments.ENDPOINTS.routes(port, DeploymentPages(backend)),
                *SystemPages(backend, self.core, self._metrics, BackendMetrics(registry)).routes(),
                openapi.route(backend),
            ]
        )
        self._answered = asyncio.Event()
        self._under_way: set[asyncio.Task[object]] = set()
        self._is_cut_off = False
        self._server: asyncio.Server | None = None
        self._port = 0
        self._connections: Connections | None = None
        backend.watch(self)

    async def start(self) -> None:
        """Listen. `OSError` if the address cannot be had."""
        loop = asyncio.get_running_loop()
        reserved = reserved_files()
        max_count = min(self.config.max_connections, max(file_limit() - reserved, _MIN_CONNECTIONS))
        self._connections = Connections(self._handle, timeouts=self.config.timeouts, max_count=max_count)
        self.core.make_room = self._connections.arrivals.make_room
        # What waits in the backlog is accepted in one go, before any of it can be refused.
        self._server = await loop.create_server(
            self._connections,
            self.config.host,
            self.config.port,
            backlog=min(1024, reserved // 2),
            reuse_address=True,
            reuse_port=self.config.reuse_port or None,
        )
        self._port = self._server.sockets[0].getsockname()[1]
        self._calls.start()
        self._libraries.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None, "started"
        return self._port

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self.port}"

    def engine_changed(self, engine: NodeId, standing: Standing) -> None:
        """See `boki.gateway.backend.EngineWatcher`."""
        self._calls.dispatch_again(self.core.note_engine(engine, standing))

    def engine_lost(self, engine: NodeId) -> None:
        """See `boki.gateway.backend.EngineWatcher`."""
        self._calls.give_up(self.core.lose_engine(engine))

    def drain(self) -> None:
        """Say that it is not ready, refuse what is new, end subscriptions and long polls; calls continue."""
        self.core.drain()
        self._libraries.stop()
        self._door.close()

    async def stop(self, drain_s: float = 10.0) -> None:
        """Drain, wait for what is in flight at most `drain_s`, answer the rest, then close every connection.

        Until then it listens: probes learn that it lives and is not ready, and callers that they may come again. One
        that shares its port leaves new connections to the others.
        """
        self.drain()
        if self._server is None or self._connections is None:
            return
        if self.config.reuse_port:
            self._server.close()
        try:
            async with asyncio.timeout(drain_s):
                await self._libraries.finish()
                while not self.core.is_idle:
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            calls, requests = self.core.call_count, self.core.request_count
            if calls or requests:
                text = "stopping with %d calls and %d requests in flight: their outcome is unknown"
                _log.warning(text, calls, requests)
        if self._connections.connections and drain_s:
            await asyncio.sleep(self.config.redirect_s)
        self._server.close()
        self._cut_off()
        self._calls.stop()
        self._connections.pre_shutdown()
        await self._connections.shutdown(_FLUSH_S)
        await self._server.wait_closed()

    def _cut_off(self) -> None:
        """Cancel all requests in flight: each handler answers that the outcome is unknown."""
        self._is_cut_off = True
        for task in list(self._under_way):
            task.cancel()

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        started_us = self._clock()
        raw_path = request.raw_path
        path = raw_path.partition("?")[0] if raw_path[:1] == "/" else request.rel_url.raw_path
        template = "none"
        function = ""
        task = asyncio.current_task()
        assert task is not None, "aiohttp runs handlers in tasks"
        self._under_way.add(task)
        share = Share(self.core)
        connection = connection_of(request)
        connection.begin(share)
        try:
            self._browsers.note(request)
            preflight = self._browsers.preflight(request)
            if preflight is not None:
                dress(request, preflight)
                return preflight
            route, values = self._find(request, path)
            template = route.template
            if route.is_call:
                function = values[0]
            answer = await route.handler(request, *values)
            if isinstance(answer, Response):
                is_repeatable = isinstance(answer, Repeatable) or (route.method == "GET" and not route.is_call)
                answer = await send(request, answer, self.config.timeouts, is_repeatable=is_repeatable)
        except BokiError as error:
            answer = refusal(error)
            if self._on_refused is not None:
                self._on_refused(f"{request.method} {path}", error)
        except asyncio.CancelledError:
            if not self._is_cut_off or request.writer.output_size > 0:  # a client that left, or half an answer
                raise
            task.uncancel()
            answer = refusal(Unavailable("this gateway has stopped before the end was known", outcome="unknown"))
            answer.force_close()
        finally:
            self._under_way.discard(task)
            share.release()
            if self.core.is_draining:
                self._answered.set()
        if connection.is_guest or self.core.is_draining:
            answer.force_close()
        if not answer.prepared:
            dress(request, answer)
        code = answer.code if isinstance(answer, Refusal) else "ok"
        known = function in self._backend.functions
        meter = self._metrics.function(function) if known else self._metrics.route(template)
        meter.count(code, (self._clock() - started_us) / 1e6)
        return answer

    def _find(self, request: BaseRequest, path: str) -> tuple[Route, list[str]]:
        """The route of a request that is let in. Who is not does not learn which paths there are."""
        method = method_of(request)
        try:
            found = self._routes.find(method, path)
        except NotFound:
            self._authorize(request)
            found = self._calls.route_of(method, path)
        except BokiError:
            self._authorize(request)
            raise
        else:
            if found[0].is_open:
                return found
            self._authorize(request)
        connection_of(request).let_in()
        return found

    def _authorize(self, request: BaseRequest) -> None:
        headers = request.headers
        if self._token:
            scheme, _, token = headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not token.strip():
                raise Unauthorized("this gateway needs a token: send the header Authorization: Bearer TOKEN")
            if not hmac.compare_digest(token.strip().encode("utf-8", "replace"), self._token):
                raise Unauthorized("the token is not the one of this gateway")
        elif not self._browsers.lets_in(headers):
            raise Unauthorized(
                "without a token this gateway serves this machine's own clients only, under its own name: no web page "
                "of another origin, no other name; start it with --token, or list the origin in cors.origins"
            )
