"""The prose of a source: its comments and docstrings, or a page without its code."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

FENCED = re.compile(r"^\s*(```|~~~).*?^\s*\1", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"``[^`]*``|`[^`\n]*`")


def blank(match: re.Match[str]) -> str:
    """As many lines, and nothing on them: what follows keeps its line."""
    return "\n" * match[0].count("\n")


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Strings that stand alone: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Runs of comments, each as one text."""
    gathered: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if gathered and line != last + 1:
                yield first, "\n".join(gathered)
                gathered = []
            first = first if gathered else line
            last = line
            gathered.append(token.string.lstrip("#: "))
    if gathered:
        yield first, "\n".join(gathered)


def prose(source: str, *, is_page: bool) -> list[tuple[int, str]]:
    """(line, text) of everything that is written for readers; code spans and blocks are left out."""
    texts = [(1, FENCED.sub(blank, source))] if is_page else [*strings(ast.parse(source)), *comments(source)]
    return [(line, SPAN.sub("`", text)) for line, text in texts]
