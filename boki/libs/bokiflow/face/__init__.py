"""The face of BokiFlow: `/flow` and `/flow-schedule` over HTTP, and the commands `boki flow`.

It is imported whenever the CLI starts, so it imports nothing of the library before a part of it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from boki.faces import CommandGroup, Face, GatewayPart, GatewayPort

if TYPE_CHECKING:
    from typer import Typer


def _commands() -> Typer:
    from boki.libs.bokiflow.face.commands import app

    for module in ("message_commands", "schedule_commands", "check_commands"):
        import_module(f"{__name__}.{module}")  # adds its commands
    return app


def _names(url: str, token: str, _given: Mapping[str, str]) -> Sequence[str]:
    from boki.libs.bokiflow.face import commands

    return commands.names_of(url, token)


def _at_gateway(gateway: GatewayPort) -> GatewayPart:
    from boki.libs.bokiflow.face import http, schedules_http

    return GatewayPart(routes=[*http.ENDPOINTS.routes(gateway), *schedules_http.ENDPOINTS.routes(gateway)])


def _openapi() -> Mapping[str, Any]:
    from boki.libs.bokiflow.face import http, schedules_http

    return {**http.ENDPOINTS.paths(), **schedules_http.ENDPOINTS.paths()}


FACE: Final = Face(
    library="bokiflow",
    tags=("!fe:", "!fj:", "!fi:", "!fu:", "!fs:", "!fl:", "!fg:", "!fq:"),
    commands=CommandGroup(
        name="flow",
        help="Start workflows, look at them, speak to them.",
        order=(
            *("start", "list", "show", "tail", "result", "signal", "update", "query", "resolve"),
            *(
                "reject",
                "cancel",
                "kill",
                "pause",
                "resume",
                "rewind",
                "fork",
                "upgrade",
                "schedule",
                "record",
                "check",
            ),
        ),
        load=_commands,
        completions={"WORKFLOW": _names},
    ),
    at_gateway=_at_gateway,
    openapi=_openapi,
)
