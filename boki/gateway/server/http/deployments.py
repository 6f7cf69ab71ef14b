"""Deploying over HTTP: take a bundle, list versions, go back to one."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from boki.api.http.exchange import BUNDLE_CONTENT_TYPE
from boki.books.functions.bundle import MAX_BUNDLE_BYTES
from boki.errors import InvalidArgument
from boki.gateway.backend import Backend
from boki.gateway.server.http.endpoints import Asked, Endpoints
from boki.protocol.deployments import Deployment, VersionInfo

_TOO_LARGE: Final = "a bundle may have at most {limit:,} bytes: leave data out of the folder"

ENDPOINTS: Final = Endpoints(
    "System", {"version": "Its number, or previous for the one that ran before"}, uses_log=False
)


class DeploymentPages:
    """The handlers of `/functions/versions`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @ENDPOINTS(
        *("GET", "/functions/versions", "versions"),
        "The deployed versions of the functions, the newest first",
        answer={"versions": list[VersionInfo]},
    )
    async def versions(self, asked: Asked) -> object:  # noqa: ARG002 - an endpoint takes it
        """List the versions that are kept."""
        return {"versions": await self._backend.deployments.versions()}

    @ENDPOINTS(
        *("POST", "/functions/versions", "deploy"),
        "Run the functions of a bundle, which boki deploy makes of a folder, from now on",
        reads="own",
        body_types=(BUNDLE_CONTENT_TYPE,),
        answer=Deployment,
    )
    async def deploy(
        self,
        asked: Asked,
        force: Annotated[bool, Meta(description="Also if some of its modules cannot be loaded")] = False,
    ) -> object:
        """Run the functions of the bundle that is the body."""
        deployments = self._backend.deployments
        if asked.request.headers.get("Content-Type") != BUNDLE_CONTENT_TYPE:
            raise InvalidArgument(
                f"this path takes {BUNDLE_CONTENT_TYPE}, which boki deploy sends", field="Content-Type"
            )
        bundle = await asked.gateway.body(asked.request, MAX_BUNDLE_BYTES, _TOO_LARGE)
        return await deployments.deploy(bundle, is_forced=force)

    @ENDPOINTS("POST", "/functions/versions/{version}/use", "useVersion", "Run a version again", answer=Deployment)
    async def use(self, asked: Asked) -> object:
        """Run that version again."""
        return await self._backend.deployments.use(asked.parts[0])
