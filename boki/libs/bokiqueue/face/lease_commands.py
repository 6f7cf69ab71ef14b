"""`boki queue lease|ack|nack`: take messages until they are settled, one command after the other.

A receipt names a lease: it is good in any later command, on any machine, until the lease ends.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boki.cli.connection import AsJson, Token, Url
from boki.cli.help import examples
from boki.cli.terminal import count_text, data_text, errors, print_json, print_table, time_cell
from boki.errors import InvalidArgument
from boki.libs.bokiqueue.face.commands import Book, Group, Name, app, print_shape, shown_chars, with_queue

if TYPE_CHECKING:
    from boki.libs.bokiqueue import Queue

__all__ = ["app"]

Receipts = Annotated[list[str], typer.Argument(help="Receipts, as `lease` prints them; - reads lines from stdin.")]


@app.command()
@examples("boki queue lease shop orders", "boki queue lease shop orders --count 10 --lease-s 300 --json")
def lease(
    book: Book,
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Maximum number of messages.")] = 1,
    lease_s: Annotated[float, typer.Option(min=0.001, help="Length of the lease.")] = 60,
    wait_s: Annotated[float, typer.Option(min=0, help="Seconds to wait for the first message.")] = 0,
    op: Annotated[str | None, typer.Option(help="The same op gives the same leases while they last.")] = None,
    group: Group = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Take messages under a lease, and print them with receipts. Exit code 1 if there is none.

    `boki queue ack` with a receipt says that a message is done, `boki queue nack` that it failed. A message that is
    not acked in time can be taken again, and becomes a dead letter when that was too often.
    """
    found = with_queue(
        url, token, book, name, group, lambda queue: queue.lease_many(count, lease_s, wait_s=wait_s, op=op)
    )
    if not found:
        errors().print(f"no message in {name}", style="dim", markup=False)
        raise typer.Exit(1)
    if as_json:
        from boki.libs.bokiqueue.messages import message_shape

        for one in found:
            print_shape(message_shape(one))
        return
    rows = [
        (one.receipt, str(one.deliveries), time_cell(one.until), data_text(one.data, shown_chars())) for one in found
    ]
    print_table(["receipt", "deliveries>", "leased until (UTC)", "data…"], rows)


@app.command()
@examples("boki queue ack shop orders 0-17-8796093022208")
def ack(
    book: Book,
    name: Name,
    receipts: Receipts,
    group: Group = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Say that leased messages are done. If a lease is over, all others are acked."""
    _settle(url, token, book, name, group, receipts, "ack", lambda queue, some: queue.ack(*some), as_json=as_json)


@app.command()
@examples("boki queue nack shop orders 0-17-8796093022208 --reason 'no flour'")
def nack(
    book: Book,
    name: Name,
    receipts: Receipts,
    delay_s: Annotated[float, typer.Option(min=0, help="Delay the next delivery by this many seconds.")] = 0,
    reason: Annotated[str, typer.Option(help="What a dead letter says.")] = "",
    group: Group = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Say that leased messages failed. They come back, or become dead letters."""
    _settle(
        *(url, token, book, name, group, receipts, "nack"),
        lambda queue, some: queue.nack(*some, delay_s=delay_s, reason=reason),
        as_json=as_json,
    )


def _settle(
    url: str,
    token: str,
    book: str,
    name: str,
    group: str,
    receipts: list[str],
    verb: str,
    settle: Callable[[Queue[Any], list[str]], Awaitable[None]],
    *,
    as_json: bool,
) -> None:
    """Settle what the receipts name; with JSON, one object for each says whether it was leased."""
    from boki.libs.bokiqueue import LeaseLost

    wanted = sys.stdin.read().split() if receipts == ["-"] else list(dict.fromkeys(receipts))
    if not wanted:
        raise InvalidArgument("stdin holds no receipt: `boki queue lease` prints them")
    lost: LeaseLost | None = None
    try:
        with_queue(url, token, book, name, group, lambda queue: settle(queue, wanted))
    except LeaseLost as error:
        lost = error
    gone = set(lost.details.get("receipts", wanted)) if lost is not None else set()
    if as_json:
        for one in wanted:
            print_json({"queue": name, "receipt": one, "verb": verb, "done": one not in gone})
    elif len(gone) < len(wanted):
        errors().print(f"{verb}: {len(wanted) - len(gone):,} of {count_text(len(wanted), 'message')}", markup=False)
    if lost is not None:
        raise lost
