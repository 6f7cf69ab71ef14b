"""`boki queue`: push, take and settle messages, look into queues, and see to settings, groups and dead letters.

A receipt names a lease: it is good in any later command, on any machine, until the lease ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer

from boki.api.payloads.values import is_json
from boki.cli.connection import AsJson, Token, Url, connect, connect_async
from boki.cli.help import examples
from boki.cli.log import say_if_missing
from boki.cli.terminal import (
    Sure,
    age_text,
    confirm,
    content_of,
    count_text,
    data_text,
    duration_text,
    lines_of,
    print_json,
    print_table,
    results,
    say,
    time_cell,
)
from boki.cli.things import Book, ThingCommands
from boki.errors import InvalidArgument
from boki.libs.bokiqueue import DeadLetter, GroupStats, LeaseLost, Message, NoSuchGroup, Queue, queue_names
from boki.libs.bokiqueue.messages import letter_shape, message_shape, settings_shape
from boki.libs.bokiqueue.records import MAX_BATCH, runs

T = TypeVar("T")

PART_BYTES: Final = 3_000_000  # are pushed at once
_DELIVERIES: Final = "Deliveries without an ack that make a dead letter; 0: none."
_LENGTH: Final = "Maximum number of messages to be taken; 0: no bound."
_RETAIN: Final = "Keep messages that are done for this many seconds, to replay them."

Count = Annotated[int, typer.Option("--count", "-n", min=1, help="Maximum number of messages.")]
WaitS = Annotated[float, typer.Option(min=0, help="Seconds to wait for the first message.")]
Receipts = Annotated[list[str], typer.Argument(help="Receipts, as `lease` prints them; - reads lines from stdin.")]
Handles = Annotated[list[str] | None, typer.Argument(help="Dead letters, as `dlq` names them; without any, all.")]


app = ThingCommands(
    "",  # its help is in the face
    name=Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.", show_default=False)],
    opened=Queue,
    shared={
        "group": (Annotated[str, typer.Option("--group", "-g", help="The consumer group; else the default one.")], "")
    },
)


def names_of(url: str, token: str, book: str) -> list[str]:
    """The queues of a book."""

    async def run() -> list[str]:
        async with connect_async(url, token) as client:
            return await queue_names(client.logbook(book))

    return asyncio.run(run())


@app.command("list")
@examples("boki queue list shop")
def list_queues(book: Book, as_json: AsJson = False, url: Url = "", token: Token = "") -> None:
    """List the queues of a book."""
    if not (names := names_of(url, token, book)):
        with connect(url, token) as client:
            say_if_missing(client, book, "queues")
    for name in names:
        if as_json:
            print_json({"book": book, "queue": name})
        else:
            results().print(name, markup=False)


@app.of_thing(
    'boki queue push shop orders "two teas"',
    'boki queue push shop orders \'{"item": "tea"}\' --key order-17',
    "boki queue push shop orders --lines < orders.txt",
)
async def push(
    queue: Queue[Any],
    data: Annotated[str, typer.Argument(help="The message; - reads it from stdin.")] = "-",
    lines: Annotated[bool, typer.Option("--lines", help="Each line becomes a message.")] = False,
    json: Annotated[bool, typer.Option("--json-value", help="The message, or each line, is a JSON value.")] = False,
    text: Annotated[bool, typer.Option("--text", help="It is text, also if it looks like JSON.")] = False,
    key: Annotated[str | None, typer.Option(help="The same key within 24 hours pushes once.")] = None,
    group_key: Annotated[str, typer.Option(help="Messages of one key are taken one at a time, in order.")] = "",
    delay_s: Annotated[float, typer.Option(min=0, help="Delay delivery by this many seconds.")] = 0,
    ttl_s: Annotated[float, typer.Option(min=0, help="Drop it if it is not taken within this time.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Push a message, and print its id once it is durable.

    A JSON object or list is pushed as JSON, as `boki invoke` sends it, anything else as text. Lines are pushed in parts
    of 10,000, each part all or none.
    """
    if json and text:
        raise typer.BadParameter("a message is one of them", param_hint="--json-value / --text")
    read = _json_value if json else _text if text else _value
    content = content_of(data, f"boki queue push {queue.logbook.name} {queue.name} ''", may_be_empty=lines)
    bodies = lines_of(content) if lines else [content]
    parts = [[read(one) for one in part] for part in runs(bodies, lambda one: len(one) + 100, PART_BYTES, MAX_BATCH)]
    for number, part in enumerate(parts):
        own_key = f"{key}/{number}" if key is not None and number else key
        keys = [group_key] * len(part) if group_key else ()
        for one in await queue.push_many(part, key=own_key, delay_s=delay_s, ttl_s=ttl_s, group_keys=keys):
            if as_json:
                print_json({"queue": queue.name, "id": one})
            else:
                results().print(one)


@app.of_thing(
    "boki queue pop shop orders", "boki queue pop shop orders --count 10 --wait-s 5 --json", shared=("group",)
)
async def pop(
    queue: Queue[Any],
    count: Count = 1,
    wait_s: WaitS = 0,
    op: Annotated[str | None, typer.Option(help="The same op within an hour gives the same messages.")] = None,
    as_json: AsJson = False,
) -> None:
    """Take messages permanently, and print them whole. Exit code 1 if there is none.

    One message (without --count) goes into a pipe or file as it is, without a line end of ours.
    """
    found = await queue.pop_many(count, wait_s=wait_s, op=op)
    if found and count == 1 and not as_json and not results().is_terminal:
        sys.stdout.buffer.write(found[0].data)
        sys.stdout.buffer.flush()
    elif results().is_terminal and not as_json:
        for one in found:
            print(f"{one.id}  {time_cell(one.time)}Z  {data_text(one.data, None)}")
    else:
        _show(found, message_shape, {**_PUSHED, "data…": lambda one: data_text(one.data, None)}, as_json=as_json)
    _exit_if_none(queue, found)


@app.of_thing(
    "boki queue lease shop orders", "boki queue lease shop orders --count 10 --lease-s 300 --json", shared=("group",)
)
async def lease(
    queue: Queue[Any],
    count: Count = 1,
    lease_s: Annotated[float, typer.Option(min=0.001, help="Length of the lease.")] = 60,
    wait_s: WaitS = 0,
    op: Annotated[str | None, typer.Option(help="The same op gives the same leases while they last.")] = None,
    as_json: AsJson = False,
) -> None:
    """Take messages under a lease, and print them with receipts. Exit code 1 if there is none.

    `boki queue ack` with a receipt says that a message is done, `boki queue nack` that it failed. A message that is
    not acked in time can be taken again, and becomes a dead letter when that was too often.
    """
    found = await queue.lease_many(count, lease_s, wait_s=wait_s, op=op)
    _exit_if_none(queue, found)
    columns: _Columns[Message[Any]] = {
        "receipt": lambda one: one.receipt,
        "deliveries>": lambda one: one.deliveries,
        "leased until (UTC)": lambda one: time_cell(one.until),
        **_DATA,
    }
    _show(found, message_shape, columns, as_json=as_json)


def _exit_if_none(queue: Queue[Any], found: list[Message[Any]]) -> None:
    if not found:
        say(f"no message in {queue.name}", "dim")
        raise typer.Exit(1)


@app.of_thing("boki queue ack shop orders 0-17-8796093022208", shared=("group",))
async def ack(queue: Queue[Any], receipts: Receipts, as_json: AsJson = False) -> None:
    """Say that leased messages are done. If a lease is over, all others are acked."""
    await _settle(queue, receipts, "ack", queue.ack, as_json=as_json)


@app.of_thing("boki queue nack shop orders 0-17-8796093022208 --reason 'no flour'", shared=("group",))
async def nack(
    queue: Queue[Any],
    receipts: Receipts,
    delay_s: Annotated[float, typer.Option(min=0, help="Delay the next delivery by this many seconds.")] = 0,
    reason: Annotated[str, typer.Option(help="What a dead letter says.")] = "",
    as_json: AsJson = False,
) -> None:
    """Say that leased messages failed. They come back, or become dead letters."""

    async def settle(*some: str) -> None:
        await queue.nack(*some, delay_s=delay_s, reason=reason)

    await _settle(queue, receipts, "nack", settle, as_json=as_json)


async def _settle(
    queue: Queue[Any],
    receipts: list[str],
    verb: str,
    settle: Callable[..., Coroutine[Any, Any, None]],
    *,
    as_json: bool,
) -> None:
    """Settle what the receipts name; with JSON, one object for each says whether it was leased."""
    wanted = sys.stdin.read().split() if receipts == ["-"] else list(dict.fromkeys(receipts))
    if not wanted:
        raise InvalidArgument("stdin holds no receipt: `boki queue lease` prints them")
    lost: LeaseLost | None = None
    try:
        await settle(*wanted)
    except LeaseLost as error:
        lost = error
    gone = set(lost.details.get("receipts", wanted)) if lost is not None else set()
    if as_json:
        for one in wanted:
            print_json({"queue": queue.name, "receipt": one, "verb": verb, "done": one not in gone})
    elif len(gone) < len(wanted):
        say(f"{verb}: {len(wanted) - len(gone):,} of {count_text(len(wanted), 'message')}")
    if lost is not None:
        raise lost


@app.of_thing("boki queue peek shop orders --count 3", shared=("group",))
async def peek(queue: Queue[Any], count: Count = 10, as_json: AsJson = False) -> None:
    """Print what comes next, without taking it."""
    waiting = await queue.peek(count)
    if not waiting and not as_json:
        say(f"nothing to take in {queue.name}", "dim")
    _show(waiting, message_shape, {**_PUSHED, **_DATA}, as_json=as_json)


@app.of_thing("boki queue stats shop orders", "boki queue stats shop orders --json")
async def stats(queue: Queue[Any], as_json: AsJson = False) -> None:
    """Print depth, ages and counts of a queue, by group."""
    found = await queue.stats()
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    shards = count_text(found.shards, "shard")
    pushed = f"{found.pushed:,} pushed, {found.pushed_per_s:,.1f}/s"
    results().print(f"{found.name}: {pushed}, {found.depth:,} to be done, {shards}", markup=False)
    results().print(settings_text(found), style="dim", markup=False)
    _show(found.groups, msgspec.to_builtins, _FIGURES, as_json=False)
    if not found.groups:
        say("no consumer group yet: the first pop or lease makes the default one", "dim")
    if found.passed_by:
        text = "under the queue's tags, passed by: something other than the queue library appends there"
        say(f"{count_text(found.passed_by, 'invalid record')} {text}", "yellow")
    for one in found.groups:
        group = f"group {one.name or '(default)'}"
        if one.unconfirmed:
            text = f"{group}: {one.unconfirmed:,} popped, and not known to be received yet"
            results().print(text, style="dim", markup=False)
        if one.blocked:
            text = "its limit of leased, delayed, parked and dead messages is reached, and nothing more is delivered"
            say(f"{group} is blocked: {text} until some are done, due or purged", "yellow")


@app.of_thing("boki queue dlq shop orders", "boki queue dlq shop orders --group billing", shared=("group",))
async def dlq(
    queue: Queue[Any],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of messages.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List dead letters, with the reasons."""
    letters = await queue.dead_letters(limit)
    if not letters and not as_json:
        say(f"no dead letters in {queue.name}", "dim")
    columns: _Columns[DeadLetter] = {
        "handle": lambda one: one.handle,
        "since (UTC)": lambda one: time_cell(one.died_us),
        "deliveries>": lambda one: one.deliveries,
        "reason~": lambda one: one.reason,
        **_DATA,
    }
    _show(letters, letter_shape, columns, as_json=as_json)


@app.of_thing("boki queue redrive shop orders  # all dead letters", shared=("group",))
async def redrive(queue: Queue[Any], handles: Handles = None) -> None:
    """Let dead letters be delivered again."""
    count = await queue.redrive(*(handles or ()))
    say(f"{count_text(count, 'dead letter')} can be delivered again")


@app.of_thing("boki queue purge shop orders --yes", shared=("group",))
async def purge(queue: Queue[Any], handles: Handles = None, sure: Sure = False) -> None:
    """Drop dead letters, permanently."""
    confirm(sure, "this drops dead letters for good", "Drop them, for good?")
    count = await queue.purge(*(handles or ()))
    say(f"{count_text(count, 'dead letter')} dropped")


@app.of_thing(
    "boki queue replay shop orders --group audit --start earliest",
    "boki queue replay shop orders --start-time-s 1700000000",
    shared=("group",),
)
async def replay(
    queue: Queue[Any],
    start: Annotated[str, typer.Option(help="A seqnum, `earliest` or `now`.")] = "earliest",
    start_time_s: Annotated[float | None, typer.Option(help="From that time on, in seconds since the epoch.")] = None,
) -> None:
    """Let a group begin again from any point that is kept.

    A group that does not exist yet is created.
    """
    text = f"group {queue.group or '(default)'} begins again from {start}"
    try:
        await queue.replay(start=start, start_time_s=start_time_s)
    except NoSuchGroup:
        await queue.create_group(queue.group, start=start, start_time_s=start_time_s)
        text = f"group {queue.group or '(default)'} begins from {start}"
        if queue.group:
            text = f"group {queue.group} is new: every message is kept until it has done it, or until "
            text += "`boki queue drop-group`"
    say(text)


@app.of_thing("boki queue drop-group shop orders audit --yes")
async def drop_group(
    queue: Queue[Any],
    group: Annotated[str, typer.Argument(help="The consumer group; '' is the default one.", show_default=False)],
    sure: Sure = False,
) -> None:
    """Delete a consumer group with its dead letters."""
    confirm(sure, "this drops a group, with its dead letters and all that it has still to do", "Drop it, for good?")
    await queue.drop_group(group)
    say(f"group {group or '(default)'} is gone")


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
    has = _show_settings(queue, await queue.create(**asked), as_json=as_json)
    if not was_there:
        return
    text = f"queue {queue.name} is there already"
    flags = {name: f"--{name.replace('_', '-')}" for name, value in asked.items() if value != has[name]}
    if flags:
        text += ", with " + ", ".join(f"{flag} {has[option]:.15g}" for option, flag in flags.items())
        change = " ".join(f"{flag} {asked[option]:.15g}" for option, flag in flags.items())
        remedy = f"`boki queue configure {queue.logbook.name} {queue.name} {change}` changes that"
        text += ": " + ("the number of shards is fixed: create another queue" if "shards" in flags else remedy)
    say(text)
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
    _show_settings(queue, settings, as_json=as_json)


def _show_settings(queue: Queue[Any], settings: Any, *, as_json: bool) -> dict[str, Any]:
    """Print them; as their options are called."""
    shape = settings_shape(settings)
    if as_json:
        print_json({"queue": queue.name, **msgspec.to_builtins(shape)})
    else:
        results().print(f"{queue.name}: {count_text(shape.shards, 'shard')} · {settings_text(shape)}", markup=False)
    return msgspec.structs.asdict(shape)


def settings_text(held: Any) -> str:
    """What holds for a queue, on one line."""
    dead = f"{held.max_deliveries:,} deliveries, then a dead letter" if held.max_deliveries else "no dead letters"
    length = f"maximum length {held.max_length:,}" if held.max_length else "no maximum length"
    return f"{dead} · {length} · " + (
        f"retained for {duration_text(held.retain_s)}" if held.retain_s else "nothing retained"
    )


def _text(content: bytes) -> str | bytes:
    """Text, if it is text."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


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


def _cut(data: bytes) -> str:
    """For a screen, what is only looked at is cut to more than fits; in a pipe it is whole."""
    return data_text(data, 300 if results().is_terminal else None)


_Columns = dict[str, Callable[[T], object]]
_DATA: Final[_Columns[Any]] = {"data…": lambda one: _cut(one.data)}
_PUSHED: Final[_Columns[Message[Any]]] = {"id": lambda one: one.id, "pushed (UTC)": lambda one: time_cell(one.time)}
_FIGURES: Final[_Columns[GroupStats]] = {
    "group": lambda one: one.name or "(default)",
    "depth>": lambda one: f"{one.depth:,}",
    "in flight>": lambda one: f"{one.in_flight:,}",
    "delayed>": lambda one: f"{one.delayed:,}",
    "dead>": lambda one: f"{one.dead:,}",
    "oldest>": lambda one: age_text(one.oldest_age_s),
    "done>": lambda one: f"{one.done:,}",
    "done/s>": lambda one: f"{one.done_per_s:,.1f}",
    "expired>": lambda one: f"{one.expired:,}",
}


def _show(found: Sequence[T], shape: Callable[[T], object], columns: _Columns[T], *, as_json: bool) -> None:
    """Print them as a table, or as JSON in the same form as over HTTP, with the JSON that was pushed as it was."""
    if as_json:
        for one in found:
            print(msgspec.json.encode(shape(one)).decode(), flush=True)
    elif found:
        print_table([*columns], [[cell(one) for cell in columns.values()] for one in found])
