"""What a library shows of itself, besides what functions import of it.

A face is made when the CLI starts, so making it imports nothing of the library: each of its parts is a function that
imports what it needs when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from boki.faces.gateway import GatewayPart, GatewayPort

if TYPE_CHECKING:
    from typer import Typer

Completion = Callable[[str, str, Mapping[str, str]], Sequence[str]]
"""Names that a running system knows, for shell completion. Takes its URL, the token and the parameters given so far."""


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """The commands `boki NAME ...` of a library."""

    name: str
    help: str
    """One sentence, for the list of commands."""
    load: Callable[[], Typer]
    """The commands, added to a `boki.cli.help.Commands`. Called when one of them, or their help, is asked for."""
    order: tuple[str, ...] = ()
    """Names of commands in the order in which help shows them; those that are not in it come last."""
    completions: Mapping[str, Completion] = field(default_factory=dict)
    """How arguments are completed, by the metavar of the argument."""


@dataclass(frozen=True, slots=True)
class Face:
    """The face of one library."""

    library: str
    """Its name, under which functions keep their settings for it (`FunctionInfo.uses`)."""
    tags: tuple[str, ...] = ()
    """How the tags begin under which it appends. `boki log append` refuses them, because its folds would read that."""
    commands: CommandGroup | None = None
    at_gateway: Callable[[GatewayPort], GatewayPart] | None = None
    """Called once for each gateway, before it listens."""
    openapi: Callable[[], Mapping[str, Any]] | None = None
    """The OpenAPI path items of its routes."""
    check_settings: Callable[[Mapping[str, Any]], None] | None = None
    """Raises a `BokiError` for settings of a function that no decorator of the library can have made.

    Engines call it with what a worker process says, which a user's code has loaded.
    """
