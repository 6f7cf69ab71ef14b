"""The layout of a table on a screen: what identifies a row stays whole, and no line is longer than the screen.

Column names say how: one that ends in `>` is aligned to the right; `~` may be wrapped between words; `…` is cut to what
is left of the line. All others keep the width of their widest cell. Where even that is too much, each row becomes a
block of lines, one for each column.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

GAP: Final = 2
"""Characters between two columns."""
MIN_COLUMNS: Final = 12
"""A column that may be wrapped or cut gets at least this, or its rows become blocks."""
MAX_WORD: Final = 24
"""A longer word may be cut."""
_MARKS: Final = ">~…"

Rows = Sequence[Sequence[str]]


def name_of(column: str) -> str:
    """The column's name without its mark."""
    return column.rstrip(_MARKS)


def head_and_lines(columns: Sequence[str], rows: Rows, screen_columns: int) -> tuple[list[str], list[str]]:
    """The lines of names, and those of the rows.

    >>> head_and_lines(["n>", "what~"], [["12", "one two three four"]], 18)
    ([' n  what'], ['12  one two three', '    four'])
    """
    widths = _widths(columns, rows, screen_columns)
    if widths is None:
        return [], _blocks(columns, rows, screen_columns)
    names = [textwrap.wrap(name_of(column), width) or [""] for column, width in zip(columns, widths, strict=True)]
    depth = max(map(len, names))
    head = _joined(columns, [[""] * (depth - len(lines)) + lines for lines in names], widths)
    body = [
        line
        for row in rows
        for line in _joined(columns, [_cell(*cell) for cell in zip(columns, row, widths, strict=True)], widths)
    ]
    return head, body


def _widths(columns: Sequence[str], rows: Rows, screen_columns: int) -> list[int] | None:
    """The width of each column; None if they do not fit beside each other."""
    natural = [
        max([_longest_word(name_of(column)), *(_length(row[at]) for row in rows)]) for at, column in enumerate(columns)
    ]
    least = [_least(column, natural[at], [row[at] for row in rows]) for at, column in enumerate(columns)]
    free = screen_columns - GAP * (len(columns) - 1) - sum(least)
    if free < 0:
        return None
    growing = sorted(range(len(columns)), key=lambda at: natural[at] - least[at])
    for done, at in enumerate(growing):
        more = min(natural[at] - least[at], free // (len(growing) - done))
        least[at] += more
        free -= more
    return least


def _least(column: str, natural: int, cells: Sequence[str]) -> int:
    """What a column needs at least: all of its cells, or its longest word, or a few characters."""
    if column.endswith("~"):
        words = max((_longest_word(text) for text in (name_of(column), *cells)), default=0)
        return min(natural, max(MIN_COLUMNS, min(words, MAX_WORD)))
    return min(natural, MIN_COLUMNS) if column.endswith("…") else natural


def _cell(column: str, text: str, width: int) -> list[str]:
    """The lines of one cell."""
    if not column.endswith("~"):
        return [cut(text, width)]
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return [cut(line, width) for line in lines] or [""]


def _joined(columns: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """The lines of one row; its cells may have several."""
    lines = []
    for number in range(max(map(len, cells))):
        parts = []
        for column, cell, width in zip(columns, cells, widths, strict=True):
            text = cell[number] if number < len(cell) else ""
            padding = " " * (width - _length(text))
            parts.append(padding + text if column.endswith(">") else text + padding)
        lines.append((" " * GAP).join(parts).rstrip())
    return lines


def _blocks(columns: Sequence[str], rows: Rows, screen_columns: int) -> list[str]:
    """Each row as lines `name: value`, with an empty line between rows."""
    lines = []
    for row in rows:
        for column, text in zip(columns, row, strict=True):
            lines += _cell("~", f"{name_of(column)}: {text}", screen_columns)
        lines.append("")
    return lines[:-1]


def cut(text: str, width: int) -> str:
    """The text, or so much of it that it ends in `…` within the width."""
    if _length(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1).rstrip() + "…"


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _length(text: str) -> int:
    """Characters that the text takes on a screen; some take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
