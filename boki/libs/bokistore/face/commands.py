"""`boki store`: read and change objects of a running system."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from boki.cli.connection import AsJson
from boki.cli.terminal import cell_text, content_of, print_json, say
from boki.cli.things import ThingCommands
from boki.errors import InvalidArgument

if TYPE_CHECKING:
    from boki import LogBook
    from boki.libs.bokistore import StoredObject

Name = Annotated[str, typer.Argument(metavar="OBJECT", help="The object.", show_default=False)]
At = Annotated[int | None, typer.Option(help="As of this seqnum.", min=0)]
AtTime = Annotated[
    datetime | None,
    typer.Option(
        formats=["%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"],
        metavar="TIME",
        help="As of this time in UTC, as `history` shows it.",
    ),
]
Path = Annotated[str, typer.Option("--path", "-p", help="A value within it, such as cart.items.0.")]
Key = Annotated[str | None, typer.Option(help="The same key within 24 hours counts once.")]


class Named:
    """An object by its name, and the store that has it; a map in `scan`, nothing in commands about the whole store."""

    def __init__(self, logbook: LogBook, name: str) -> None:
        from boki.libs.bokistore import Store

        self.store = Store(logbook)
        self.name = name

    @property
    def object(self) -> StoredObject[Any]:
        """It, as it is now."""
        return self.store.object(self.name)


app = ThingCommands("", name=Name, opened=Named)  # its help is in the face


_NO_NUMBERS: Final = {b"nan", b"inf", b"infinity"}
"""What other languages write for numbers that JSON does not have."""


def value_of(text: str, command: str) -> Any:
    """What was typed as JSON; what is no JSON is text."""
    data = content_of(text, command, may_be_empty=True)
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if data[:1] in {b"{", b"["}:
            raise InvalidArgument("this begins like JSON and is none: quote it for the shell", field="value") from None
        if data.strip().lstrip(b"+-").lower() in _NO_NUMBERS:
            raise InvalidArgument(
                f"{data.decode()} is not a value of JSON: for the text, quote it twice, as '\"NaN\"'", field="value"
            ) from None
        return data.decode(errors="surrogateescape")


def show(value: Any) -> None:
    """A value: text as it is, anything else as JSON."""
    if isinstance(value, str):
        print(value)
    else:
        print_json(value)


@app.of_book(
    "boki store list shop",
    "boki store list shop --prefix user: --after user:ada -n 10",
    "boki store list shop --maps",
    name="list",
)
async def list_names(
    named: Named,
    prefix: Annotated[str, typer.Option(help="Only names that begin so.")] = "",
    after: Annotated[str | None, typer.Option(help="Only names above this one.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of names.")] = 100,
    maps: Annotated[bool, typer.Option("--maps", help="List maps and sets instead of objects.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the names of the objects, in order."""
    store = named.store
    for name in await (store.maps if maps else store.objects)(prefix=prefix, after=after, limit=limit):
        if as_json:
            print_json({"map" if maps else "object": name})
        else:
            print(name)


def _show_missing(name: str, path: str) -> None:
    """Say that there is nothing, and end with code 1."""
    say(f"nothing at {path} of {name}" if path else f"no object {name}", "dim")
    raise typer.Exit(1)


@app.of_thing("boki store get shop user:ada", "boki store get shop user:ada --path address.city --at 8796093022215")
async def get(named: Named, path: Path = "", at: At = None, at_time: AtTime = None, as_json: AsJson = False) -> None:
    """Print an object, or a value of it. Exit code 1 if there is none."""
    if at is not None and at_time is not None:
        raise typer.BadParameter("a moment is a seqnum or a time: leave out --at or --at-time", param_hint="--at")
    is_now = at is None and at_time is None
    time = None if at_time is None else at_time.replace(tzinfo=UTC)
    target = named.object if is_now else named.store.at(at, time=time).object(named.name)
    if not await target.exists(path):
        _show_missing(named.name, path)
    value = await target.get(path)
    if as_json:
        print_json({"object": named.name, "value": value})
    else:
        show(value)


@app.of_thing(
    'boki store set shop user:ada \'{"name": "Ada"}\'',
    "boki store set shop user:ada 36 --path age",
    "boki store set shop report - < report.json",
    name="set",
)
async def put(
    named: Named,
    value: Annotated[str, typer.Argument(help="JSON, or else text; - reads it from stdin.", show_default=False)],
    path: Path = "",
    key: Key = None,
) -> None:
    """Put a value: the whole object, or what stands at a path."""
    meant = value_of(value, f"boki store set {named.store.book} {named.name} '\"\"'")
    await named.object.set(path, meant, key=key)


@app.of_thing('boki store patch shop user:ada \'{"age": 37, "email": null}\'')
async def patch(
    named: Named,
    change: Annotated[str, typer.Argument(metavar="PATCH", help="A JSON Merge Patch: null deletes a key.")],
    path: Path = "",
    key: Key = None,
) -> None:
    """Merge a JSON Merge Patch into an object."""
    meant = value_of(change, f"boki store patch {named.store.book} {named.name} '{{}}'")
    if not isinstance(meant, dict):  # it would replace the object, which is what a typing error does
        raise InvalidArgument("a JSON Merge Patch is a JSON object: boki store set puts any value", field="patch")
    await named.object.merge(path, meant, key=key)


@app.of_thing("boki store increment shop page:home visits", "boki store increment shop account:1 balance --by=-10")
async def increment(
    named: Named,
    path: Annotated[str, typer.Argument(help="Where the number stands; without it, the object is one.")] = "",
    by: Annotated[float, typer.Option(help="How much to add.")] = 1,
    key: Key = None,
) -> None:
    """Add to a number, and print the new one."""
    amount = int(by) if by.is_integer() and abs(by) < 1 << 63 else by
    print_json(await named.object.increment(path, amount, key=key))


@app.of_thing("boki store delete shop user:ada --path email")
async def delete(named: Named, path: Path = "", key: Key = None) -> None:
    """Take an object away, or a value of it. Exit code 1 if there was none. Its past stays readable."""
    if not await named.object.delete(path, key=key):
        _show_missing(named.name, path)


@app.of_thing(
    "boki store scan shop users --prefix a",
    "boki store scan shop users --after ada -n 10 --json",
    named=Annotated[str, typer.Argument(metavar="MAP", help="The map.", show_default=False)],
)
async def scan(
    named: Named,
    prefix: Annotated[str, typer.Option(help="Only keys that begin so.")] = "",
    after: Annotated[str | None, typer.Option(help="Only keys above this one.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of items.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print items of a map, in the order of their keys."""
    users = await named.store.open_map(named.name)
    for key, value in await users.scan(prefix=prefix, after=after, limit=limit):
        if as_json:
            print_json({"key": key, "value": value})
        else:
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            print(f"{cell_text(key)}\t{cell_text(text)}")
