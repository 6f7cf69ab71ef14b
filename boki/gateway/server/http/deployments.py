"""Deploying over HTTP: take a bundle, list versions, go back to one."""

from __future__ import annotations

from aiohttp.web import BaseRequest, Response

from boki.api.http.exchange import BUNDLE_CONTENT_TYPE
from boki.books.functions.bundle import MAX_BUNDLE_BYTES
from boki.errors import InvalidArgument
from boki.faces import Route
from boki.gateway.backend import Backend
from boki.gateway.config import GatewayConfig
from boki.gateway.core import GatewayCore
from boki.gateway.server.http import answers
from boki.gateway.server.http.arguments import query, query_flag
from boki.gateway.server.http.connections import read_body


class DeploymentPages:
    """The handlers of `/functions/versions`."""

    def __init__(self, backend: Backend, core: GatewayCore, config: GatewayConfig) -> None:
        self._backend = backend
        self._core = core
        self._config = config

    def routes(self) -> list[Route]:
        """What is answered here."""
        return [
            Route("GET", "/functions/versions", self.versions),
            Route("POST", "/functions/versions", self.deploy),
            Route("POST", "/functions/versions/{version}/use", self.use),
        ]

    async def versions(self, request: BaseRequest) -> Response:
        """`GET /functions/versions`: the versions that are kept, the newest first."""
        query(request, ())
        with self._core.admitted():
            return answers.json_answer({"versions": await self._backend.deployments.versions()})

    async def deploy(self, request: BaseRequest) -> Response:
        """`POST /functions/versions`: run the functions of the bundle that is the body."""
        deployments = self._backend.deployments
        is_forced = query_flag(query(request, {"force"}), "force")
        if request.headers.get("Content-Type") != BUNDLE_CONTENT_TYPE:
            raise InvalidArgument(
                f"this path takes {BUNDLE_CONTENT_TYPE}, which boki deploy sends", field="Content-Type"
            )
        with self._core.admitted():
            bundle = await read_body(request, MAX_BUNDLE_BYTES, self._config.timeouts, _TOO_LARGE)
            deployment = await deployments.deploy(bundle, is_forced=is_forced)
        return answers.json_answer(deployment)

    async def use(self, request: BaseRequest, version: str) -> Response:
        """`POST /functions/versions/{version}/use`: run that version again."""
        query(request, ())
        with self._core.admitted():
            return answers.json_answer(await self._backend.deployments.use(version))


_TOO_LARGE = "a bundle may have at most {limit:,} bytes: leave data out of the folder"
