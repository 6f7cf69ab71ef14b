"""`boki queue`: look into queues, push and pop, and see to dead letters."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
import typer

from boki.cli.connection import AsJson, Token, Url, connect, connect_async
from boki.cli.help import Commands, examples
from boki.cli.log import say_if_missing
from boki.cli.terminal import (
    Sure,
    age_text,
    confirm,
    content_of,
    count_text,
    data_text,
    duration_text,
    errors,
    lines_of,
    print_json,
    print_table,
    results,
    time_cell,
)
from boki.errors import InvalidArgument
from boki.libs.bokiqueue.face import SUMMARY
from boki.runtime.values import is_json

if TYPE_CHECKING:
    from boki.libs.bokiqueue import Message, Queue


app = Commands(SUMMARY)

R = TypeVar("R")

PART_BYTES: Final = 3_000_000
"""So much is pushed at once."""
REST_S: Final = 10.0
"""A checkpoint that is being written when a command is done has so long."""

Book = Annotated[str, typer.Argument(help="The LogBook.", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.", show_default=False)]
Group = Annotated[str, typer.Option("--group", "-g", help="The consumer group; without it, the default one.")]
Handles = Annotated[list[str] | None, typer.Argument(help="Dead letters, as `dlq` names them; without any, all.")]


def with_queue(url: str, token: str, book: str, name: str, group: str, work: Callable[[Queue[Any]], Awaitable[R]]) -> R:
    """Do the work with the queue of a running system."""

    async def run() -> R:
        from boki.libs.bokiqueue import Queue
        from boki.libs.bokiqueue.followed import queues_of

        async with connect_async(url, token) as client:
            logbook = client.logbook(book)
            try:
                return await work(Queue(logbook, name, group=group))
            finally:
                await queues_of(logbook).come_to_rest(REST_S)

    return asyncio.run(run())


def names_of(url: str, token: str, book: str) -> list[str]:
    """The queues of a book."""

    async def run() -> list[str]:
        from boki.libs.bokiqueue import queue_names

        async with connect_async(url, token) as client:
            return await queue_names(client.logbook(book))

    return asyncio.run(run())


@app.command("list")
@examples("boki queue list shop")
def list_queues(book: Book, as_json: AsJson = False, url: Url = "", token: Token = "") -> None:
    """List the queues of a book."""
    names = names_of(url, token, book)
    if not names:
        with connect(url, token) as client:
            say_if_missing(client, book, "queues")
    for name in names:
        if as_json:
            print_json({"book": book, "queue": name})
        else:
            results().print(name, markup=False)


@app.command()
@examples(
    'boki queue push shop orders "two teas"',
    'boki queue push shop orders \'{"item": "tea"}\' --key order-17',
    "boki queue push shop orders --lines < orders.txt",
)
def push(
    book: Book,
    name: Name,
    data: Annotated[str, typer.Argument(help="The message; - reads it from stdin.")] = "-",
    lines: Annotated[bool, typer.Option("--lines", help="Each line becomes a message.")] = False,
    json: Annotated[bool, typer.Option("--json-value", help="The message, or each line, is a JSON value.")] = False,
    text: Annotated[bool, typer.Option("--text", help="It is text, also if it looks like JSON.")] = False,
    key: Annotated[str | None, typer.Option(help="The same key within 24 hours pushes once.")] = None,
    group_key: Annotated[str, typer.Option(help="Messages of one key are taken one at a time, in order.")] = "",
    delay_s: Annotated[float, typer.Option(min=0, help="Delay delivery by this many seconds.")] = 0,
    ttl_s: Annotated[float, typer.Option(min=0, help="Drop it if it is not taken within this time.")] = 0,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Push a message, and print its id once it is durable.

    A JSON object or list is pushed as JSON, as `boki invoke` sends it, anything else as text. Lines are pushed in parts
    of 10,000, each part all or none.
    """
    if json and text:
        raise typer.BadParameter("a message is one of them", param_hint="--json-value / --text")
    read = _json_value if json else _text if text else _value
    content = content_of(data, f"boki queue push {book} {name} ''", may_be_empty=lines)
    bodies = lines_of(content) if lines else [content]
    parts = [[read(body) for body in part] for part in _parts(bodies)]

    async def work(queue: Queue[Any]) -> list[str]:
        ids: list[str] = []
        for number, part in enumerate(parts):
            own_key = f"{key}/{number}" if key is not None and number else key
            keys = [group_key] * len(part) if group_key else ()
            ids += await queue.push_many(part, key=own_key, delay_s=delay_s, ttl_s=ttl_s, group_keys=keys)
        return ids

    for message in with_queue(url, token, book, name, "", work) if parts else []:
        if as_json:
            print_json({"queue": name, "id": message})
        else:
            results().print(message)


@app.command()
@examples("boki queue pop shop orders", "boki queue pop shop orders --count 10 --wait-s 5 --json")
def pop(
    book: Book,
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Maximum number of messages.")] = 1,
    wait_s: Annotated[float, typer.Option(min=0, help="Seconds to wait for the first message.")] = 0,
    op: Annotated[str | None, typer.Option(help="The same op within an hour gives the same messages.")] = None,
    group: Group = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Take messages for good, and print them whole. Exit code 1 if there is none.

    One message (without --count) goes into a pipe or file as it is, without a line end of ours.
    """
    found = with_queue(url, token, book, name, group, lambda queue: queue.pop_many(count, wait_s=wait_s, op=op))
    if found and count == 1 and not as_json and not results().is_terminal:
        sys.stdout.buffer.write(found[0].data)
        sys.stdout.buffer.flush()
    else:
        show(found, as_json=as_json, is_whole=True)
    if not found:
        errors().print(f"no message in {name}", style="dim", markup=False)
        raise typer.Exit(1)


@app.command()
@examples("boki queue peek shop orders --count 3")
def peek(
    book: Book,
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Maximum number of messages.")] = 10,
    group: Group = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Print what comes next, without taking it."""
    waiting = with_queue(url, token, book, name, group, lambda queue: queue.peek(count))
    if not waiting and not as_json:
        errors().print(f"nothing to take in {name}", style="dim", markup=False)
    show(waiting, as_json=as_json)


@app.command()
@examples("boki queue stats shop orders", "boki queue stats shop orders --json")
def stats(book: Book, name: Name, as_json: AsJson = False, url: Url = "", token: Token = "") -> None:
    """Print depth, ages and rates of a queue, by group."""
    found = with_queue(url, token, book, name, "", lambda queue: queue.stats())
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    results().print(
        f"{name}: {found.pushed:,} pushed, {found.pushed_per_s:,.1f}/s, {found.depth:,} to be done, "
        f"{count_text(found.shards, 'shard')}",
        markup=False,
    )
    results().print(settings_text(found.max_deliveries, found.max_length, found.retain_s), style="dim", markup=False)
    rows = [
        (
            one.name or "(default)",
            f"{one.depth:,}",
            f"{one.in_flight:,}",
            f"{one.delayed:,}",
            f"{one.dead:,}",
            age_text(one.oldest_age_s),
            f"{one.done:,}",
            f"{one.done_per_s:,.1f}",
            f"{one.expired:,}",
        )
        for one in found.groups
    ]
    columns = ["group", "depth>", "in flight>", "delayed>", "dead>", "oldest>", "done>", "done/s>", "expired>"]
    if rows:
        print_table(columns, rows)
    else:
        errors().print("no consumer group yet: the first pop or lease makes the default one", style="dim")
    if found.passed_by:
        errors().print(
            f"{count_text(found.passed_by, 'invalid record')} under the queue's tags, passed by: something other than "
            "the queue library appends there",
            style="yellow",
            markup=False,
        )
    for one in found.groups:
        if one.unconfirmed:
            results().print(
                f"group {one.name or '(default)'}: {one.unconfirmed:,} popped, and not known to be received yet",
                style="dim",
                markup=False,
            )
        if one.blocked:
            errors().print(
                f"group {one.name or '(default)'} is blocked: its limit of leased, delayed, parked and dead "
                "messages is reached, and nothing more is delivered until some are done, due or purged",
                style="yellow",
                markup=False,
            )


@app.command()
@examples("boki queue dlq shop orders", "boki queue dlq shop orders --group billing")
def dlq(
    book: Book,
    name: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of messages.")] = 100,
    group: Group = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """List dead letters, with the reasons."""
    from boki.libs.bokiqueue.messages import letter_shape

    letters = with_queue(url, token, book, name, group, lambda queue: queue.dead_letters(limit))
    if as_json:
        for one in letters:
            print_shape(letter_shape(one))
        return
    if not letters:
        errors().print(f"no dead letters in {name}", style="dim", markup=False)
        return
    rows = [
        (one.handle, time_cell(one.died_us), str(one.deliveries), one.reason, data_text(one.data, shown_chars()))
        for one in letters
    ]
    print_table(["handle", "since (UTC)", "deliveries>", "reason~", "data…"], rows)


@app.command()
@examples("boki queue redrive shop orders  # all dead letters")
def redrive(
    book: Book, name: Name, handles: Handles = None, group: Group = "", url: Url = "", token: Token = ""
) -> None:
    """Let dead letters be delivered again."""
    count = with_queue(url, token, book, name, group, lambda queue: queue.redrive(*(handles or ())))
    errors().print(f"{count_text(count, 'dead letter')} can be delivered again")


@app.command()
@examples("boki queue purge shop orders --yes")
def purge(
    book: Book,
    name: Name,
    handles: Handles = None,
    sure: Sure = False,
    group: Group = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Drop dead letters, for good."""
    confirm(sure, "this drops dead letters for good", "Drop them, for good?")
    count = with_queue(url, token, book, name, group, lambda queue: queue.purge(*(handles or ())))
    errors().print(f"{count_text(count, 'dead letter')} dropped")


@app.command()
@examples(
    "boki queue replay shop orders --group audit --start earliest",
    "boki queue replay shop orders --start-time-s 1700000000",
)
def replay(
    book: Book,
    name: Name,
    start: Annotated[str, typer.Option(help="A seqnum, `earliest` or `now`.")] = "earliest",
    start_time_s: Annotated[float | None, typer.Option(help="From that time on, in seconds since the epoch.")] = None,
    group: Group = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Let a group begin again from any point that is kept.

    A group that does not exist yet is created.
    """
    at: int | str = int(start) if start.isascii() and start.isdecimal() and len(start) < 20 else start

    async def work(queue: Queue[Any]) -> bool:
        from boki.libs.bokiqueue import NoSuchGroup

        try:
            await queue.replay(start=at, start_time_s=start_time_s)
        except NoSuchGroup:
            await queue.create_group(group, start=at, start_time_s=start_time_s)
            return True
        return False

    is_new = with_queue(url, token, book, name, group, work)
    if is_new and group:
        text = f"group {group} is new: every message is kept until it has done it, or until `boki queue drop-group`"
    else:
        text = f"group {group or '(default)'} begins {'' if is_new else 'again '}from {start}"
    errors().print(text, markup=False)


@app.command("drop-group")
@examples("boki queue drop-group shop orders audit --yes")
def drop_group(
    book: Book,
    name: Name,
    group: Annotated[str, typer.Argument(help="The consumer group; '' is the default one.", show_default=False)],
    sure: Sure = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Delete a consumer group with its dead letters."""
    confirm(sure, "this drops a group, with its dead letters and all that it has still to do", "Drop it, for good?")
    with_queue(url, token, book, name, "", lambda queue: queue.drop_group(group))
    errors().print(f"group {group or '(default)'} is gone", markup=False)


def settings_text(max_deliveries: int, max_length: int, retain_s: float) -> str:
    """What holds for a queue, on one line."""
    held = [
        f"{max_deliveries:,} deliveries, then a dead letter" if max_deliveries else "no dead letters",
        f"maximum length {max_length:,}" if max_length else "no maximum length",
        f"retained for {duration_text(retain_s)}" if retain_s else "nothing retained",
    ]
    return " · ".join(held)


def _text(content: bytes) -> str | bytes:
    """Text, if it is text."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _parts(bodies: list[bytes]) -> Iterator[list[bytes]]:
    """Bodies as they are pushed together."""
    from boki.libs.bokiqueue.records import MAX_BATCH

    start = size = 0
    for index, body in enumerate(bodies):
        own = len(body) + 100
        size += own
        if index > start and (size > PART_BYTES or index - start == MAX_BATCH):
            yield bodies[start:index]
            start, size = index, own
    if bodies:
        yield bodies[start:]


def _value(body: bytes) -> Any:
    """What was typed: a JSON object or list, else text (or bytes, if it is no UTF-8)."""
    is_document = body.lstrip()[:1] in (b"{", b"[") and is_json(body)
    return _json_value(body) if is_document else _text(body)


def _json_value(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{_text(body[:60])!r} is not JSON: {error}") from None
    except RecursionError:
        raise InvalidArgument(f"{_text(body[:60])!r}… is nested too deeply") from None


def show(messages: list[Message[Any]], *, as_json: bool, is_whole: bool = False) -> None:
    """Print messages without receipts: as rows, or as one JSON object each."""
    if as_json:
        from boki.libs.bokiqueue.messages import message_shape

        for one in messages:
            print_shape(message_shape(one))
        return
    rows = [(one.id, time_cell(one.time), data_text(one.data, None if is_whole else shown_chars())) for one in messages]
    if rows and is_whole and results().is_terminal:
        for identity, time, data in rows:
            print(f"{identity}  {time}Z  {data}")
    elif rows:
        print_table(["id", "pushed (UTC)", "data…"], rows)


def shown_chars() -> int | None:
    """For a screen, what is only looked at is cut to more than fits; in a pipe it is whole."""
    return 300 if results().is_terminal else None


def print_shape(shape: dict[str, Any]) -> None:
    """In the same form as over HTTP, and JSON that was pushed as it was."""
    print(msgspec.json.encode(shape).decode(), flush=True)
