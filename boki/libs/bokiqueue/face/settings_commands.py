"""`boki queue create|configure`: what a queue is made with, and what of it can be changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from boki.cli.connection import AsJson
from boki.cli.terminal import count_text, errors, print_json, results
from boki.errors import InvalidArgument
from boki.libs.bokiqueue.face.commands import app, settings_text

if TYPE_CHECKING:
    from boki.libs.bokiqueue import Queue

__all__ = ["app"]

_DELIVERIES: Final = "Deliveries without an ack that make a dead letter; 0: none."
_LENGTH: Final = "Maximum number of messages to be taken; 0: no bound."
_RETAIN: Final = "Keep messages that are done for this many seconds, to replay them."


@app.of_thing("boki queue create shop orders", "boki queue create shop orders --shards 8 --max-deliveries 3")
async def create(
    queue: Queue[Any],
    shards: Annotated[
        int | None, typer.Option(min=1, help="Number of parts, which can never be changed.", show_default="1")
    ] = None,
    max_deliveries: Annotated[int | None, typer.Option(min=0, help=_DELIVERIES, show_default="10")] = None,
    max_length: Annotated[int | None, typer.Option(min=0, help=_LENGTH)] = None,
    retain_s: Annotated[float | None, typer.Option(min=0, help=_RETAIN)] = None,
    as_json: AsJson = False,
) -> None:
    """Create a queue, and print its settings. If there is one its settings stay as they are.

    Exit code 1 if those are not the ones that were asked for.
    """
    options = {"shards": shards, "max_deliveries": max_deliveries, "max_length": max_length, "retain_s": retain_s}
    asked: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    was_there = await queue.read_settings(fresh=True) is not None
    has = _show(queue, await queue.create(**asked), as_json=as_json)
    if not was_there:
        return
    text, wanted = f"queue {queue.name} is there already", {name for name, value in asked.items() if value != has[name]}
    flags = {option: f"--{option.replace('_', '-')}" for option in asked if option in wanted}
    if flags:
        text += ", with " + ", ".join(f"{flag} {has[option]:.15g}" for option, flag in flags.items())
        change = " ".join(f"{flag} {asked[option]:.15g}" for option, flag in flags.items())
        remedy = f"`boki queue configure {queue.logbook.name} {queue.name} {change}` changes that"
        text += ": " + ("the number of shards is fixed: create another queue" if "shards" in wanted else remedy)
    errors().print(text, markup=False)
    if flags:
        raise typer.Exit(1)


@app.of_thing(
    "boki queue configure shop orders --max-deliveries 3", "boki queue configure shop orders --retain-s 86400"
)
async def configure(
    queue: Queue[Any],
    max_deliveries: Annotated[int | None, typer.Option(min=0, help=_DELIVERIES, show_default=False)] = None,
    max_length: Annotated[int | None, typer.Option(min=0, help=_LENGTH, show_default=False)] = None,
    retain_s: Annotated[float | None, typer.Option(min=0, help=_RETAIN, show_default=False)] = None,
    shards: Annotated[int | None, typer.Option(hidden=True)] = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a queue, and print all of them. What is left out stays.

    The number of shards is fixed when a queue is created.
    """
    if shards is not None:
        raise InvalidArgument(
            f"the number of shards of queue {queue.name} is fixed when it is created: create another queue, as in "
            f"`boki queue create {queue.logbook.name} {queue.name}-{shards} --shards {shards}`",
            field="shards",
        )
    settings = await queue.configure(max_deliveries=max_deliveries, max_length=max_length, retain_s=retain_s)
    _show(queue, settings, as_json=as_json)


def _show(queue: Queue[Any], settings: Any, *, as_json: bool) -> dict[str, Any]:
    """Print them; as their options are called."""
    from boki.libs.bokiqueue.messages import settings_shape

    shape = settings_shape(settings)
    if as_json:
        print_json({"queue": queue.name, **msgspec.to_builtins(shape)})
    else:
        results().print(f"{queue.name}: {count_text(shape.shards, 'shard')} · {settings_text(shape)}", markup=False)
    return msgspec.structs.asdict(shape)
