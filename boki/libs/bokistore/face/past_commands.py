"""`boki store history`, `watch`, `fork` and `configure`: what was, what comes, and copies."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from boki.cli.connection import AsJson
from boki.cli.terminal import print_json, print_table, results, say, time_cell
from boki.libs.bokistore.face.commands import Named, app
from boki.log.ids import MAX_SEQNUM

if TYPE_CHECKING:
    from boki.libs.bokistore import Version


@app.of_thing("boki store history shop user:ada", "boki store history shop user:ada -n 5 --json")
async def history(
    named: Named,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of versions, the newest.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the newest versions of an object, with what wrote them."""
    versions: list[Version] = []
    start = MAX_SEQNUM
    while start and len(versions) < limit:  # records that changed nothing make no version: look further back
        start = await _back(named, start, limit - len(versions))
        versions = [version async for version in named.store.history(named.name, start=start)]
    del versions[:-limit]
    if as_json:
        for version in versions:
            print_json(msgspec.to_builtins(version))
        return
    if not versions:
        say(f"no version of {named.name} was written in {named.store.book}", "dim")
    rows = [
        (str(one.seqnum), time_cell(round(one.time_s * 1e6)), one.function, one.invocation, _text(one))
        for one in versions
    ]
    if rows:
        print_table(["version", "time (UTC)", "function", "invocation", "value…"], rows)


async def _back(named: Named, start: int, count: int) -> int:
    """Where the last records of the object below `start` begin, that many of them; 0: all of them."""
    from boki.libs.bokistore.records import row_tag

    for _ in range(count):
        record = await named.store.way.logbook.read_prev(row_tag(named.name), max_seqnum=start - 1)
        if record is None:
            return 0
        start = record.seqnum
    return start


def _text(version: Version) -> str:
    return msgspec.json.encode(version.value).decode() if version.exists else "(deleted)"


@app.of_thing("boki store watch shop user:ada", "boki store watch shop user:ada --json")
async def watch(named: Named, as_json: AsJson = False) -> None:
    """Print an object, and each version that comes.

    Ctrl-C ends it.
    """
    async with aclosing(named.store.watch(named.name)) as versions:
        async for version in versions:
            if as_json:
                print_json(msgspec.to_builtins(version))
            else:
                results().print(_text(version), markup=False, soft_wrap=True)


@app.of_thing(
    "boki store fork shop shop-trial",
    "boki store fork shop shop-before --at 8796093022215",
    named=Annotated[str, typer.Argument(metavar="NEW_BOOK", help="The LogBook of the copy.", show_default=False)],
)
async def fork(named: Named, at: Annotated[int, typer.Option(min=0, help="As of this seqnum; 0: now.")] = 0) -> None:
    """Make another book a copy of all objects.

    Nothing is copied: the copy reads here what nobody has changed in it.
    """
    made = await named.store.fork(named.name, at=at)
    say(f"{made.book} is a copy of {named.store.book}")


@app.of_book("boki store configure shop --history-s 2592000", "boki store configure shop --keep-all")
async def configure(
    named: Named,
    history_s: Annotated[float | None, typer.Option(min=0, help="Seconds for which the past stays readable.")] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Keep it forever.")] = False,
) -> None:
    """Set how long the past of objects stays readable."""
    if (history_s is None) != keep_all:
        raise typer.BadParameter("give one of them", param_hint="--history-s / --keep-all")
    await named.store.configure(history_s=history_s)
