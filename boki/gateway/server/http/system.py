"""What operators and tools ask: is it alive, is it ready, what does it count, what can it do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from aiohttp.web import BaseRequest, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from boki.errors import Unavailable
from boki.faces import Route
from boki.gateway.backend import Backend
from boki.gateway.core import GatewayCore
from boki.gateway.server.http import answers
from boki.gateway.server.http.backend_metrics import BackendMetrics
from boki.gateway.server.http.metrics import GatewayMetrics
from boki.gateway.server.http.openapi_parts import JSON_OBJECT, TEXT, Json, page_of


class SystemPages:
    """The handlers of the pages that are about the system itself."""

    def __init__(
        self, backend: Backend, core: GatewayCore, metrics: GatewayMetrics, backend_metrics: BackendMetrics
    ) -> None:
        self._backend = backend
        self._core = core
        self._metrics = metrics
        self._backend_metrics = backend_metrics

    def routes(self) -> list[Route]:
        """What is answered here. Probes of a load balancer need no token."""
        return [Route("GET", page.path, partial(page.handler, self), is_open=page.is_open) for page in _PAGES]

    async def healthz(self, _request: BaseRequest) -> Response:
        """The process answers."""
        return answers.json_answer({"status": "alive"})

    async def readyz(self, _request: BaseRequest) -> Response:
        """Calls would be carried out: 200, or 503 while it starts or drains."""
        if self._core.is_draining:
            return _not_ready("draining")
        if not self._backend.ready:
            return _not_ready("starting")
        return answers.json_answer({"status": "ready"})

    async def metrics(self, _request: BaseRequest) -> Response:
        """Everything that is counted, for Prometheus."""
        self._backend_metrics.status = await self._backend.status()
        return Response(body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def status(self, _request: BaseRequest) -> Response:
        """What an operator wants to know."""
        body: dict[str, Any] = {
            **await self._backend.status(),
            "ready": self._backend.ready and not self._core.is_draining,
            "functions": sorted(self._backend.functions),
            "modules": [
                {"module": module.module, "path": module.path, "error": module.error or None}
                for module in self._backend.modules
            ],
            "gateway": {
                "draining": self._core.is_draining,
                "calls": self._core.call_count,
                "requests": self._core.request_count,
                "polls": self._core.poll_count,
                "answers": self._core.answer_count,
                "streams": self._core.stream_count,
                "bytes_in_flight": self._core.bytes_in_flight,
                "engines": self._core.engines(),
            },
        }
        return answers.json_answer(body)

    async def functions(self, _request: BaseRequest) -> Response:
        """The registered functions and the modules, the broken ones too."""
        functions = sorted(self._backend.functions.values(), key=lambda info: info.name)
        return answers.json_answer({"functions": functions, "modules": self._backend.modules})


def _not_ready(why: str) -> Response:
    return answers.refusal(Unavailable(f"not ready: {why}", status=why))


class _Page(NamedTuple):
    path: str
    handler: Callable[[SystemPages, BaseRequest], Awaitable[Response]]
    """Its name is the operation's."""
    summary: str
    content: Json = JSON_OBJECT
    is_open: bool = False


_PAGES: Final = (
    _Page("/healthz", SystemPages.healthz, "The process answers", is_open=True),
    _Page("/readyz", SystemPages.readyz, "Calls would be carried out; 503 if not", is_open=True),
    _Page(
        "/metrics", SystemPages.metrics, "Everything that is counted, for Prometheus", {"text/plain": {"schema": TEXT}}
    ),
    _Page("/status", SystemPages.status, "What an operator wants to know"),
    _Page("/functions", SystemPages.functions, "The registered functions and the modules, the broken ones too"),
)
PATHS: Final = {
    page.path: page_of(page.handler.__name__, page.summary, page.content, is_open=page.is_open) for page in _PAGES
}
"""What the OpenAPI document says of them."""
