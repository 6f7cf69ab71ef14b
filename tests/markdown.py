"""Markdown has one width: `python -m tests.markdown` wraps all pages to it.

Only paragraphs and list items are filled. Tables, code, headings and quotations stay as they are, and no code span or
link is broken over two lines.
"""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH = 100

ITEM = re.compile(r"(\s*)([-*+]|\d+[.)])(\s+)(?=\S)")
# What ends a paragraph and is never filled: headings, tables, quotations, HTML, definitions of links, rules.
FIXED = re.compile(r"\s*(#{1,6} |\||>|<|\[[^\]]+\]: |---+$|\*\*\*+$)")
FENCE = re.compile(r"\s*(```|~~~)")
# Code spans and links with all that touches them, or words.
WORD = re.compile(r"(?:`[^`]+`|\[[^\]]*\]\([^)]*\)|\S)+")
# A word that would begin a list, a heading or a quotation if a line began with it.
MARKER = re.compile(r"([-*+]|\d+[.)]|#{1,6}|>.*|\|.*)$")


def pages() -> list[Path]:
    """All Markdown of this repository."""
    folders = [ROOT / "docs", ROOT / "boki"]
    return sorted([*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.md"))])


def filled(text: str, first: str, rest: str) -> Iterator[str]:
    """The words of a paragraph in lines of at most WIDTH characters, where the words allow it."""
    line = first
    is_empty = True
    for word in WORD.findall(text):
        is_too_long = len(line) + 1 + len(word) > WIDTH
        if is_empty:
            line += word
        elif is_too_long and not MARKER.match(word):
            yield line
            line = rest + word
        else:
            line += f" {word}"
        is_empty = False
    yield line


def indent_of(line: str) -> str:
    """The spaces at the start of a line."""
    return line[: len(line) - len(line.lstrip())]


def wrapped(text: str) -> str:
    """The same page, its paragraphs filled."""
    out: list[str] = []
    paragraph: list[str] = []
    first = rest = ""

    def end() -> None:
        if paragraph:
            out.extend(filled(" ".join(paragraph), first, rest))
            paragraph.clear()

    in_code = False
    for line in text.splitlines():
        if FENCE.match(line):
            end()
            in_code = not in_code
            out.append(line)
        elif in_code or FIXED.match(line) or not line.strip():
            end()
            out.append(line)
        elif item := ITEM.match(line):
            end()
            first, rest = item[0], " " * len(item[0])
            paragraph.append(line[item.end() :])
        else:
            if not paragraph:
                first = rest = indent_of(line)
            paragraph.append(line.strip())
            if line.endswith(("  ", "\\")):
                end()
    end()
    return "\n".join(out) + "\n"


def long_lines(text: str) -> list[str]:
    """The lines that could be shorter: all but tables, code, headings, and what is one word."""
    found = []
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            in_code = not in_code
        elif not in_code and len(line) > WIDTH and not FIXED.match(line) and len(WORD.findall(line)) > 1:
            found.append(f"line {number}: {len(line)} characters")
    return found


def main() -> None:
    """Wrap all pages."""
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = wrapped(before)
        if before != after:
            page.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
