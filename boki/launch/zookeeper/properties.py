"""Values in the files that Java reads as `Properties`: ISO 8859-1, in which a backslash begins an escape."""

from __future__ import annotations

import re
from typing import Final

_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def escaped(text: str) -> str:
    r"""The value as it is to stand in the file, for every text of a path.

    >>> escaped("/ü\\x")
    '/\\u00fc\\\\x'
    """
    units = text.replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2)]
    return "".join(chr(code) if 0x20 <= code < 0x7F else f"\\u{code:04x}" for code in codes)


def misread(text: str) -> str:
    r"""What Java takes for the value if it stands in the file in UTF-8 and without escapes.

    >>> misread("/ü\\x")
    '/Ã¼x'
    """
    letters = text.encode("utf-8", "surrogateescape").decode("latin-1")
    return re.sub(r"\\(.)", lambda found: _CONTROLS.get(found[1], found[1]), letters)
