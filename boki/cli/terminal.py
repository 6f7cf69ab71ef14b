"""What people see: one console for results, one for everything else, tables and progress bars.

Results go to stdout, messages and progress to stderr, so that every command can stand in a pipe. With `--json` a
command prints one JSON object a line and nothing else on stdout.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_PIPE_COLUMNS = 160


@functools.cache
def results() -> Console:
    """The console on stdout. In a pipe, where nobody's screen limits it, lines may be long."""
    import sys

    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _PIPE_COLUMNS)


@functools.cache
def errors() -> Console:
    """The console on stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One object on one line."""
    print(json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """A table. Columns whose name ends in `>` are aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", title_style="bold", header_style="bold")
    for column in columns:
        table.add_column(
            column.removesuffix(">"),
            justify="right" if column.endswith(">") else "left",
            no_wrap=column != columns[-1],
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    results().print(table)


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


def data_text(data: bytes, limit: int = 80) -> str:
    r"""A record's data on one line: text if it is text, else Python's notation for bytes.

    >>> data_text(b'{"a": 1}'), data_text(b"\xff\x00"), data_text(b"x" * 9, limit=4)
    ('{"a": 1}', "b'\\xff\\x00'", 'xxxx… (9 B)')
    """
    head = data[: 4 * limit]
    try:
        text = head.decode()
        text = text if text.isprintable() else repr(head)
    except UnicodeDecodeError:
        text = repr(head)
    cut = len(text) > limit or len(data) > len(head)
    return f"{text[:limit]}… ({bytes_text(len(data))})" if cut else text


def time_text(time_us: int) -> str:
    """A record's time in UTC, to the microsecond.

    >>> time_text(1_700_000_000_000_001)
    '2023-11-14 22:13:20.000001'
    """
    from datetime import UTC, datetime

    seconds, micros = divmod(time_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros).strftime("%Y-%m-%d %H:%M:%S.%f")
