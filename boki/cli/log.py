"""`boki log`: look into LogBooks, append to them, trim them.

With `--json`, seqnums are strings, as over HTTP: they have 63 bits, and most JSON readers keep only 53.
"""

from __future__ import annotations

import base64
import difflib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boki.cli.connection import AsJson, Token, Url, connect
from boki.cli.help import Commands, examples
from boki.cli.table import cut
from boki.cli.terminal import (
    Sure,
    bytes_text,
    confirm,
    content_of,
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
from boki.faces.installed import installed
from boki.log.ids import MAX_SEQNUM
from boki.log.record import Record

if TYPE_CHECKING:
    from boki.client import BlockingClient

app = Commands("Read, follow, append to, trim and delete LogBooks.")

Book = Annotated[str, typer.Argument(help="The LogBook.", show_default=False)]
Tag = Annotated[str | None, typer.Option("--tag", help="Only records with this tag.")]

PAGE_RECORDS = 1_000
_OF_SPARK = "!spark:"
"""How the tags of Spark sinks begin."""
MAX_SCREEN = 300
"""Number of characters of data that are prepared for a line of a screen."""
MAX_NAMES = 10_000
"""Number of books that are searched for a name close to a wrong one."""


@app.command()
@examples("boki log books", "boki log books --prefix order")
def books(
    prefix: Annotated[str, typer.Option(help="Only names that start with this.")] = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """List the LogBooks that have records."""
    found = []
    with connect(url, token) as client:
        after = ""
        while page := client.books(prefix, after=after, limit=PAGE_RECORDS):
            found += page
            after = page[-1].name
    if as_json:
        for book in found:
            print_json(
                {
                    "name": book.name,
                    "record_count": book.record_count,
                    "first_seqnum": str(book.first_seqnum),
                    "last_seqnum": str(book.last_seqnum),
                    "last_time_us": book.last_time_us,
                    "size_bytes": book.size_bytes,
                }
            )
        return
    columns = ["book", "records>", "size>", "last append (UTC)"]
    rows = [
        (book.name, f"{book.record_count:,}", bytes_text(book.size_bytes), time_cell(book.last_time_us))
        for book in found
    ]
    print_table(columns, rows)


@app.command()
@examples(
    'boki log append guests \'{"name": "Ada"}\' --tag guest:Ada',
    "boki log append guests --lines --key import-1 < guests.txt",
)
def append(
    book: Book,
    data: Annotated[str, typer.Argument(help="The record's data; - reads it from stdin.")] = "-",
    tags: Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be repeated.")] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same key appends once.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of the data becomes a record.")] = False,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Append a record, and print its seqnum once it is durable."""
    for tag in tags or ():
        _check_tag(tag)
    content = content_of(data, f"boki log append {book} ''", may_be_empty=lines)
    with connect(url, token) as client:
        logbook = client.logbook(book)
        if lines:
            records = [(line, tuple(tags or ())) for line in lines_of(content)]
            seqnums = logbook.append_many(records, key=key) if records else []
        else:
            seqnums = [logbook.append(content, tags or (), key=key)]
    for seqnum in seqnums:
        if as_json:
            print_json({"book": book, "seqnum": str(seqnum)})
        else:
            results().print(seqnum)


@app.command()
@examples(
    "boki log read guests", "boki log read guests --tag guest:Ada --limit 10", "boki log read guests --json | jq .text"
)
def read(
    book: Book,
    tag: Tag = None,
    start: Annotated[int, typer.Option(help="The first seqnum.")] = 0,
    stop: Annotated[int | None, typer.Option(help="The seqnum to stop before.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of records.")] = 100,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Print records from the start on."""
    with connect(url, token) as client:
        logbook = client.logbook(book)
        shown = 0
        records: list[Record] = []
        while shown < limit:
            page = logbook.read(tag, start=start, stop=stop, limit=min(PAGE_RECORDS, limit - shown))
            if not page.records:
                break
            shown += len(page.records)
            start = page.next_start
            if as_json:
                _print_records(page.records, as_json=True)
            else:
                records += page.records
        if not shown:
            say_if_missing(client, book)
        has_more = shown >= limit and bool(logbook.read(tag, start=start, stop=stop, limit=1).records)
    if records:
        print_table(["seqnum>", "time (UTC)", "tags~", "data…"], map(_cells, records))
    if has_more:
        errors().print(f"there are more: --start {start}, or a larger --limit", style="dim")


@app.command()
@examples("boki log tail guests", "boki log tail guests --last 5 --no-follow")
def tail(
    book: Book,
    tag: Tag = None,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Number of records to begin with.")] = 10,
    follow: Annotated[bool, typer.Option(help="Print new records as they come, until Ctrl-C.")] = True,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Print the last records, and those to come."""
    with connect(url, token) as client:
        logbook = client.logbook(book)
        records: list[Record] = []
        newest = logbook.check_tail(tag, fresh=True)
        at = newest
        if newest is None:
            say_if_missing(client, book)
        while at is not None and len(records) < last:
            records.append(at)
            at = logbook.read_prev(tag, max_seqnum=at.seqnum - 1) if at.seqnum else None
        _print_records(records[::-1], as_json=as_json)
        if follow:
            start = newest.next_seqnum if newest else 0
            for page in logbook.subscribe(tag, start=start, on_trimmed="skip").batches():
                _print_records(page.records, as_json=as_json)


@app.command()
@examples("boki log trim guests 8796093022208", "boki log trim guests end --yes")
def trim(
    book: Book,
    before: Annotated[str, typer.Argument(help="Remove records with a smaller seqnum; `end`: all there are now.")],
    tag: Tag = None,
    sure: Sure = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Remove old records, permanently."""
    if before != "end" and not before.isdecimal():
        raise InvalidArgument(
            f"{before!r} is not a seqnum: write a number, or `end` for all records that are there now"
        )
    seqnum = MAX_SEQNUM if before == "end" else int(before)
    what = f"records of {book}" + (f" with tag {tag}" if tag else "") + (f" below {before}" if before != "end" else "")
    confirm(sure, f"this removes all {what}, for good", f"Remove all {what}, for good?")
    with connect(url, token) as client:
        if not any(info.name == book for info in client.books(book, limit=1)):
            say_if_missing(client, book)
            raise typer.Exit(1)
        client.logbook(book).trim(seqnum, tag=tag)
    errors().print(f"trimmed: {what}", markup=False)


@app.command()
@examples("boki log get guests 8796093022208", "boki log get guests 8796093022208 --json")
def get(
    book: Book,
    seqnum: Annotated[int, typer.Argument(min=0, help="The record's seqnum.", show_default=False)],
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Print one record whole. Into a pipe or file goes its data alone, as it was appended."""
    with connect(url, token) as client:
        record = client.logbook(book).get(seqnum)
    if as_json:
        print_json(record_json(record))
    elif results().is_terminal:
        *head, data = _cells(record, None)
        print("  ".join(filter(None, head)))
        print(data)
    else:
        sys.stdout.buffer.write(record.data)
        sys.stdout.buffer.flush()


@app.command()
@examples(
    "boki log retention guests",
    "boki log retention guests --age-s 2592000  # 30 days",
    "boki log retention guests --off",
)
def retention(
    book: Book,
    age_s: Annotated[float | None, typer.Option(min=0, help="Trim records that are older.", show_default=False)] = None,
    size_bytes: Annotated[
        int | None, typer.Option(min=1, help="Trim the oldest records beyond this much data.", show_default=False)
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Keep all records.")] = False,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Print how long a book keeps its records, or change it.

    A bound that is not named is lifted when the other one is set.
    """
    if off and not (age_s is None and size_bytes is None):
        raise typer.BadParameter("it lifts both bounds: leave out the others", param_hint="--off")
    with connect(url, token) as client:
        if off or age_s is not None or size_bytes is not None:
            client.logbook(book).set_retention(age_s=age_s, size_bytes=size_bytes)
        else:
            info = next((info for info in client.books(book, limit=1) if info.name == book), None)
            if info is None:
                say_if_missing(client, book)
                return
            age_s, size_bytes = info.retention_age_s, info.retention_size_bytes
    if as_json:
        print_json({"book": book, "age_s": age_s, "size_bytes": size_bytes})
        return
    bounds = [f"records older than {duration_text(age_s)}"] if age_s is not None else []
    bounds += [f"the oldest beyond {bytes_text(size_bytes)}"] if size_bytes is not None else []
    text = f"trims {' and '.join(bounds)}" if bounds else "keeps all records"
    results().print(f"{book} {text}", markup=False)


@app.command()
@examples("boki log delete guests", "boki log delete guests --yes")
def delete(book: Book, sure: Sure = False, url: Url = "", token: Token = "") -> None:
    """Delete a book permanently. Its system tags (so its queues), keys and retention are deleted with it."""
    confirm(sure, f"this deletes book {book} with all its records and queues, for good", f"Delete {book}, for good?")
    with connect(url, token) as client:
        has_records = any(info.name == book for info in client.books(book, limit=1))
        if not has_records:
            say_if_missing(client, book)
        client.logbook(book).delete()  # also without records: there may be keys and a retention
    what = f"book {book} is deleted" if has_records else f"keys and retention of {book}, if there were any, are deleted"
    errors().print(what, markup=False)


def _check_tag(tag: str) -> None:
    """`InvalidArgument` for a tag under which the folds of a library read: they expect no records of others there."""
    owners = [f"library {face.library}" for face in installed().faces if face.tags and tag.startswith(face.tags)]
    if tag.startswith(_OF_SPARK):
        owners.append("Spark sinks")
    if owners:
        raise InvalidArgument(f"tag {tag!r} belongs to {owners[0]}: choose another")


def say_if_missing(client: BlockingClient, book: str, what: str = "such records") -> None:
    """Nothing was found: is it the right book? No failure, because a book without records may have been trimmed."""
    if any(info.name == book for info in client.books(book, limit=1)):
        errors().print(f"no {what} in {book}", style="dim", markup=False)
        return
    names: list[str] = []
    while len(names) < MAX_NAMES and (page := client.books(after=names[-1] if names else "", limit=PAGE_RECORDS)):
        names += [info.name for info in page]
    close = difflib.get_close_matches(book, names, n=3)
    remedy = f"did you mean {' or '.join(close)}?" if close else "`boki log books` lists those that have"
    errors().print(f"there is no book {book} that has records: {remedy}", markup=False)


def _print_records(records: list[Record], *, as_json: bool) -> None:
    for record in records:
        if as_json:
            print_json(record_json(record))
        else:
            print(_line(record), flush=True)


def _line(record: Record) -> str:
    """A record without a table around it: on a screen, cut to its width."""
    seqnum, time, *rest = _cells(record)
    if not results().is_terminal:
        return "\t".join((seqnum, time, *rest))
    return cut("  ".join((seqnum, f"{time}Z", *filter(None, rest))), results().width)


def _cells(record: Record, limit: int | None = MAX_SCREEN) -> tuple[str, ...]:
    """For a screen, data is cut to that length, more than fits; in a pipe it is whole."""
    tags = ", ".join(tag if tag.isprintable() else repr(tag) for tag in record.tags)
    data = data_text(record.data, limit if results().is_terminal else None)
    return str(record.seqnum), time_cell(record.time), tags, data


def record_json(record: Record) -> dict[str, Any]:
    """A record as an object, in the same form as over HTTP: `text` if it is UTF-8, else `base64`."""
    shown: dict[str, Any] = {"seqnum": str(record.seqnum), "time_us": record.time, "tags": list(record.tags)}
    try:
        return shown | {"text": record.data.decode()}
    except UnicodeDecodeError:
        return shown | {"base64": base64.b64encode(record.data).decode()}
