"""The face of BokiQueue: `/queue` over HTTP, the commands `boki queue`, and the functions that consume.

It is imported whenever the CLI starts, so it imports nothing of the queue before a part of it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from boki.faces import CommandGroup, Face, GatewayPart, GatewayPort

if TYPE_CHECKING:
    from typer import Typer


def _commands() -> Typer:
    from boki.libs.bokiqueue.face.commands import app

    return app


def _names(url: str, token: str, given: Mapping[str, str]) -> Sequence[str]:
    from boki.libs.bokiqueue.face import commands

    return commands.names_of(url, token, given.get("book", ""))


def _at_gateway(gateway: GatewayPort) -> GatewayPart:
    from boki.libs.bokiqueue.face.consumers import Consumers
    from boki.libs.bokiqueue.face.http import ENDPOINTS

    consumers = Consumers(gateway)
    return GatewayPart(routes=ENDPOINTS.routes(gateway), driver=consumers, metrics=consumers)


def _openapi() -> Mapping[str, Any]:
    from boki.libs.bokiqueue.face.http import ENDPOINTS

    return ENDPOINTS.paths()


def _check_settings(settings: Mapping[str, Any]) -> None:
    from boki.libs.bokiqueue.consuming import consumption_of

    consumption_of(settings)


FACE: Final = Face(
    library="bokiqueue",
    tags=("!q",),
    commands=CommandGroup(
        name="queue",
        help="Push to, pop from and look into message queues.",
        order=(
            *("list", "create", "configure", "push", "pop", "lease", "ack", "nack", "peek", "stats"),
            *("dlq", "redrive", "purge", "replay", "drop-group"),
        ),
        load=_commands,
        completions={"QUEUE": _names},
    ),
    at_gateway=_at_gateway,
    openapi=_openapi,
    check_settings=_check_settings,
)
