"""The face of BokiStore: `/store` over HTTP, and the commands `boki store`.

It is imported whenever the CLI starts, so it imports nothing of the store before a part of it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from boki.faces import CommandGroup, Face, GatewayPart, GatewayPort

if TYPE_CHECKING:
    from typer import Typer


def _commands() -> Typer:
    from boki.libs.bokistore.face.commands import app

    import_module(f"{__name__}.past_commands")  # adds its commands
    return app


def _at_gateway(gateway: GatewayPort) -> GatewayPart:
    from boki.libs.bokistore.face.http import ENDPOINTS

    return GatewayPart(routes=ENDPOINTS.routes(gateway))


def _openapi() -> Mapping[str, Any]:
    from boki.libs.bokistore.face.http import ENDPOINTS

    return ENDPOINTS.paths()


FACE: Final = Face(
    library="bokistore",
    tags=("!o",),
    commands=CommandGroup(
        name="store",
        help="Read, change and fork objects, and look into their past.",
        order=("list", "get", "set", "patch", "increment", "delete", "scan", "history", "watch", "fork", "configure"),
        load=_commands,
    ),
    at_gateway=_at_gateway,
    openapi=_openapi,
)
