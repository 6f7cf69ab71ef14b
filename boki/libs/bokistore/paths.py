"""Paths into an object: `"cart.items.0.price"` as the keys and indices that lead to a value.

The segments of a path are keys of objects, and indices of arrays: what stands at a place decides which of the two a
segment is. A dot in a key is written as a backslash and a dot, or the path as a list of its segments.
"""

from __future__ import annotations

import re
from typing import Final

from boki import InvalidArgument, TooLarge, WrongType

Path = str | tuple[str | int, ...] | list[str | int]
Segments = tuple[str, ...]

MAX_SEGMENTS: Final = 32
MAX_SEGMENT_CHARS: Final = 1_000
_DOTTED: Final = re.compile(r"((?:[^.\\]|\\[.\\])+)(\.|$)")
_INDEX: Final = re.compile(r"-1|0|[1-9][0-9]{0,9}")
LONE_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def parse_path(path: object) -> Segments:
    r"""The segments of a path; "" is the whole object.

    >>> parse_path("cart.items.0"), parse_path(""), parse_path(r"a\.b.c"), parse_path(("a.b", 0))
    (('cart', 'items', '0'), (), ('a.b', 'c'), ('a.b', '0'))
    """
    if isinstance(path, str):
        segments = _split(path)
    elif isinstance(path, (tuple, list)):
        segments = tuple(_segment(segment) for segment in path)
    else:
        raise WrongType(
            f'a path must be a str such as "cart.items.0", or a list of its segments, not {type(path).__name__}',
            field="path",
        )
    if len(segments) > MAX_SEGMENTS:
        raise TooLarge(
            f"a path may have at most {MAX_SEGMENTS} segments, not {len(segments)}", field="path", limit=MAX_SEGMENTS
        )
    for segment in segments:
        if len(segment) > MAX_SEGMENT_CHARS:
            raise TooLarge(
                f"a segment of a path may have at most {MAX_SEGMENT_CHARS:,} characters, not {len(segment):,}",
                field="path",
                limit=MAX_SEGMENT_CHARS,
            )
        if not segment.isascii() and LONE_SURROGATE.search(segment):
            raise InvalidArgument(f"a path must be text, without lone surrogates: {segment!r:.60}", field="path")
    return segments


def _split(path: str) -> Segments:
    if "\\" not in path:
        segments = tuple(path.split(".")) if path else ()
        if "" not in segments:
            return segments
    found, at = [], 0
    while at < len(path):
        match = _DOTTED.match(path, at)
        if match is None or (match[2] and match.end() == len(path)):
            raise InvalidArgument(
                f'path {path!r:.100} has an empty segment or a lone backslash: write "a.b", a dot inside of a key as '
                r'"\.", or the path as a list of segments',
                field="path",
            )
        found.append(re.sub(r"\\(.)", r"\1", match[1]))
        at = match.end()
    return tuple(found)


def _segment(segment: object) -> str:
    if isinstance(segment, str):
        return segment
    if type(segment) is int:
        return str(segment)
    raise WrongType(f"a segment of a path must be a str or an int, not {type(segment).__name__}", field="path")


def index_of(segment: str, length: int) -> int | None:
    """The segment as an index of an array of that length (-1 is the last item); None if it is not an index at all.

    >>> index_of("2", 3), index_of("-1", 3), index_of("7", 3), index_of("x", 3), index_of("-1", 0)
    (2, 2, 7, None, -1)
    """
    if not _INDEX.fullmatch(segment):
        return None
    return length - 1 if segment == "-1" else int(segment)


def show(segments: Segments) -> str:
    r"""A path for messages, and as it can be written.

    >>> show(("a.b", "0")), show(())
    ('a\\.b.0', 'the whole object')
    """
    return ".".join(re.sub(r"([.\\])", r"\\\1", segment) for segment in segments) or "the whole object"
