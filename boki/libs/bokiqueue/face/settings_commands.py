"""`boki queue create|configure`: what a queue is made with, and what of it can be changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from boki.cli.connection import AsJson, Token, Url
from boki.cli.help import examples
from boki.cli.terminal import count_text, errors, print_json, results
from boki.errors import InvalidArgument
from boki.libs.bokiqueue.face.commands import Book, Name, app, settings_text, with_queue

if TYPE_CHECKING:
    from boki.libs.bokiqueue import Queue
    from boki.libs.bokiqueue.records import Settings

__all__ = ["app"]

MAX_DELIVERIES: Final = "Deliveries without an ack that make a dead letter; 0: none."
MAX_LENGTH: Final = "Maximum number of messages to be taken; 0: no bound."
RETAIN: Final = "Keep messages that are done for this many seconds, to replay them."


@app.command()
@examples("boki queue create shop orders", "boki queue create shop orders --shards 8 --max-deliveries 3")
def create(
    book: Book,
    name: Name,
    shards: Annotated[
        int | None, typer.Option(min=1, help="Number of parts, which can never be changed.", show_default="1")
    ] = None,
    max_deliveries: Annotated[int | None, typer.Option(min=0, help=MAX_DELIVERIES, show_default="10")] = None,
    max_length: Annotated[int | None, typer.Option(min=0, help=MAX_LENGTH)] = None,
    retain_s: Annotated[float | None, typer.Option(min=0, help=RETAIN)] = None,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Create a queue, and print its settings. If there is one its settings stay as they are.

    Exit code 1 if those are not the ones that were asked for.
    """
    options = {"shards": shards, "max_deliveries": max_deliveries, "max_length": max_length, "retain_s": retain_s}
    asked: dict[str, Any] = {option: value for option, value in options.items() if value is not None}

    async def work(queue: Queue[Any]) -> tuple[bool, Settings]:
        was_there = await queue.read_settings(fresh=True) is not None
        return was_there, await queue.create(**asked)

    was_there, settings = with_queue(url, token, book, name, "", work)
    _show_settings(name, settings, as_json=as_json)
    if was_there:
        _say_what_differs(book, name, asked, settings)


def _say_what_differs(book: str, name: str, asked: Mapping[str, float], settings: Settings) -> None:
    """Of a queue that is there already; ends the command if it is not as it was asked for."""
    has: dict[str, float] = {
        "shards": settings.shards,
        "max_deliveries": settings.max_deliveries,
        "max_length": settings.max_length,
        "retain_s": settings.retain_us / 1e6,
    }
    wanted = {option: value for option, value in asked.items() if value != has[option]}
    text = f"queue {name} is there already"
    if not wanted:
        errors().print(text, markup=False)
        return
    options = {option: f"--{option.replace('_', '-')}" for option in wanted}
    text += ", with " + ", ".join(f"{options[option]} {has[option]:.15g}" for option in wanted)
    if "shards" in wanted:
        remedy = "the number of shards is fixed: create another queue"
    else:
        change = " ".join(f"{options[option]} {value:.15g}" for option, value in wanted.items())
        remedy = f"`boki queue configure {book} {name} {change}` changes that"
    errors().print(f"{text}: {remedy}", markup=False)
    raise typer.Exit(1)


@app.command()
@examples("boki queue configure shop orders --max-deliveries 3", "boki queue configure shop orders --retain-s 86400")
def configure(
    book: Book,
    name: Name,
    max_deliveries: Annotated[int | None, typer.Option(min=0, help=MAX_DELIVERIES, show_default=False)] = None,
    max_length: Annotated[int | None, typer.Option(min=0, help=MAX_LENGTH, show_default=False)] = None,
    retain_s: Annotated[float | None, typer.Option(min=0, help=RETAIN, show_default=False)] = None,
    shards: Annotated[int | None, typer.Option(hidden=True)] = None,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Change settings of a queue, and print all of them. What is left out stays.

    The number of shards is fixed when a queue is created.
    """
    if shards is not None:
        raise InvalidArgument(
            f"the number of shards of queue {name} is fixed when it is created: create another queue, as in "
            f"`boki queue create {book} {name}-{shards} --shards {shards}`",
            field="shards",
        )

    async def work(queue: Queue[Any]) -> Settings:
        return await queue.configure(max_deliveries=max_deliveries, max_length=max_length, retain_s=retain_s)

    _show_settings(name, with_queue(url, token, book, name, "", work), as_json=as_json)


def _show_settings(name: str, settings: Settings, *, as_json: bool) -> None:
    if as_json:
        from boki.libs.bokiqueue.messages import settings_shape

        print_json({"queue": name, **settings_shape(settings)})
        return
    held = settings_text(settings.max_deliveries, settings.max_length, settings.retain_us / 1e6)
    results().print(f"{name}: {count_text(settings.shards, 'shard')} · {held}", markup=False)
