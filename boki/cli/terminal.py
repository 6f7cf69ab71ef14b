"""What people see: one console for results, one for everything else, tables and progress bars.

Results go to stdout, messages and progress to stderr, so that every command can stand in a pipe. With `--json` a
command prints one JSON object a line and nothing else on stdout.
"""

from __future__ import annotations

import functools
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from boki.cli.table import head_and_lines, name_of
from boki.errors import InvalidArgument
from boki.host.lines import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.text import Text


Sure = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(sure: bool, what: str, question: str) -> None:
    """Ask before something is lost permanently, unless the user has said `--yes`; without a terminal that is needed."""
    if not sure:
        if not sys.stdin.isatty():
            raise InvalidArgument(f"{what}: pass --yes if you mean it")
        typer.confirm(question, abort=True, err=True)


def content_of(data: str, empty_command: str, *, may_be_empty: bool) -> bytes:
    """What was typed, or with `-` what comes on stdin. `InvalidArgument` if that is nothing: a command before it in the
    pipe has failed more often than an empty record is meant; `empty_command` is what says that.
    """
    if data != "-":
        return data.encode(errors="surrogateescape")
    if sys.stdin.isatty():
        errors().print("reading stdin; Ctrl-D ends it", style="dim")
    content = sys.stdin.buffer.read()
    if not content and not may_be_empty:
        raise InvalidArgument(f"there is nothing on stdin: if it is to be empty, write `{empty_command}`", field="data")
    return content


@functools.cache
def results() -> Console:
    """The console on stdout. On a terminal, lines are wrapped between words; in a pipe they stay whole."""
    return _console(is_stderr=False)


@functools.cache
def errors() -> Console:
    """The console on stderr, with the same rules."""
    return _console(is_stderr=True)


def say(text: str, style: str = "") -> None:
    """A line for people on stderr, beside the results."""
    errors().print(text, style=style, markup=False)


def _console(*, is_stderr: bool) -> Console:
    from rich.console import Console

    class Pipe(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            """See `Console`: texts of functions and of strangers cannot move the cursor."""
            return super().render_str(printable_lines(text), **options)

        def on_broken_pipe(self) -> None:
            """See `Console`: an end like that of any other write, not one of rich's own."""
            raise BrokenPipeError

    console = Pipe(stderr=is_stderr, highlight=False, emoji=False)
    console.soft_wrap = not console.is_terminal
    return console


def printable_lines(text: str) -> str:
    r"""The text with escapes in place of control characters; its lines stay lines.

    >>> printable_lines("\x1b[2J\r\n\tx")
    '\\x1b[2J\\r\n\tx'
    """
    return "\n".join(map(printable, text.split("\n")))


def stop_writing() -> None:
    """Nobody reads the output any more: what is still buffered must not fail when the process ends."""
    sys.stdout = sys.stderr = Nowhere()


class Nowhere(io.TextIOBase):
    """Takes all that is written to it: the stdout of a server whose terminal or pipe is closed, which continues."""

    def write(self, text: str, /) -> int:
        """See `io.TextIOBase.write`."""
        return len(text)


def has_colour(stream: TextIO) -> bool:
    """Whether lines that are written without a console may have colours: on a terminal, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_json(value: Any) -> None:
    """One object on one line."""
    print(json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """A table, laid out as `boki.cli.table` says. In a pipe, where no screen limits a line, it is tab-separated lines
    under a line of names.
    """
    texts = [["" if cell is None else cell_text(str(cell)) for cell in row] for row in rows]
    console = results()
    if not console.is_terminal:
        for line in ([name_of(column) for column in columns], *texts):
            print("\t".join(line))
        return
    if title:
        console.print(f"\n{title}", style="bold", markup=False)
    for text in table_lines(columns, texts, console.width):
        console.print(text, soft_wrap=True)


def cell_text(text: str) -> str:
    r"""The text of a cell on one line: escapes in place of control characters, of tabs too, which separate cells.

    >>> print(cell_text("a\tb\n\x1b[2J"))
    a\tb\n\x1b[2J
    """
    return printable(text).replace("\t", r"\t")


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], screen_columns: int) -> list[Text]:
    """The lines of a table on a screen."""
    from rich.text import Text

    head, body = head_and_lines(columns, rows, screen_columns)
    return [*(Text(line, style="bold dim") for line in head), *map(Text, body)]


def progress(*, counted: bool = True) -> Progress:
    """A progress bar on stderr, which is not drawn if nobody looks at it. `counted`: it is known how much there is."""
    from rich import progress as bars

    columns: list[bars.ProgressColumn] = [bars.TextColumn("{task.description}"), bars.BarColumn()]
    if counted:
        columns += [bars.MofNCompleteColumn(), bars.TimeRemainingColumn()]
    columns.append(bars.TimeElapsedColumn())
    return bars.Progress(*columns, console=errors(), transient=True, disable=not errors().is_terminal)


def bytes_text(size_bytes: float) -> str:
    """A size for people.

    >>> [bytes_text(n) for n in (0, 1023, 1536, 5 << 30)]
    ['0 B', '1023 B', '1.5 KiB', '5.0 GiB']
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def count_text(count: int, what: str, several: str = "") -> str:
    """A number of things; `several`: their plural, if it is not `what` with an s.

    >>> count_text(1, "shard"), count_text(2_000, "shard"), count_text(0, "batch", "batches")
    ('1 shard', '2,000 shards', '0 batches')
    """
    return f"{count:,} {what if count == 1 else several or what + 's'}"


def duration_text(seconds: float) -> str:
    """A length of time for people, in the largest unit of which it is a whole number.

    >>> [duration_text(s) for s in (86_400.0, 600, 90, 2.5, 0)]
    ['24h', '10min', '90s', '2.5s', '0s']
    """
    for unit, size in (("h", 3_600), ("min", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def age_text(seconds: float) -> str:
    """A measured length of time for people, with one decimal.

    >>> [age_text(s) for s in (0.25, 90, 5400, 90_000)]
    ['0.2 s', '90.0 s', '90.0 min', '25.0 h']
    """
    if seconds < 600:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 36_000 else f"{seconds / 3600:,.1f} h"


def data_text(data: bytes, limit: int | None = 80) -> str:
    r"""A record's data on one line: text if it is text, else Python's notation for bytes. `limit` None: all of it.

    >>> data_text(b'{"a": 1}'), data_text(b"\xff\x00"), data_text(b"x" * 9, limit=4)
    ('{"a": 1}', "b'\\xff\\x00'", 'xxxx… (9 B)')
    """
    head = data if limit is None else data[: 4 * limit]
    try:
        text = head.decode()
        text = text if text.isprintable() else repr(head)
    except UnicodeDecodeError:
        text = repr(head)
    if limit is None or (len(text) <= limit and len(data) == len(head)):
        return text
    return f"{text[:limit]}… ({bytes_text(len(data))})"


def time_text(time_us: int) -> str:
    """A record's time in UTC, to the microsecond.

    >>> time_text(1_700_000_000_000_001)
    '2023-11-14 22:13:20.000001'
    """
    from datetime import UTC, datetime

    seconds, micros = divmod(time_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros).strftime("%Y-%m-%d %H:%M:%S.%f")


def time_cell(time_us: int) -> str:
    """The same in a table: to the second where people read, to the microsecond in a pipe."""
    text = time_text(time_us)
    return text.partition(".")[0] if results().is_terminal else text


def path_text(path: Path) -> str:
    """A path for people: below the current folder or the home folder, from there on."""
    whole = path.resolve()
    for folder, name in ((Path.cwd(), "."), (Path.home(), "~")):
        if whole.is_relative_to(folder):
            return str(Path(name) / whole.relative_to(folder))
    return str(whole)


def lines_of(content: bytes) -> list[bytes]:
    r"""What stands between line feeds, which alone end a line: other characters that break one belong to the text.

    >>> lines_of("one\x0cstill one\r\n\ntwo\u2028still two\n".encode()) == [
    ...     b"one\x0cstill one\r", b"", "two\u2028still two".encode()]
    True
    """
    return content.removesuffix(b"\n").split(b"\n") if content else []
