"""What is wrong with a text that is not JSON, and with a value that JSON cannot say. Only errors are looked at here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, NoReturn

_ESCAPES: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")


def why_not_json(data: bytes) -> str:
    r"""Why these bytes are not JSON, with the place; "" if nothing is found.

    >>> why_not_json(b'{bad}')
    'expecting property name enclosed in double quotes at line 1, column 2'
    >>> why_not_json(b'{"a":\n 1')
    'it ends at line 2, column 3 before it is complete'
    >>> why_not_json(b'[1, NaN]')
    'NaN is not a value of JSON: send null or a string'
    >>> why_not_json(b'"\\ud800"')
    '\\ud800 at line 1, column 2 is half of a surrogate pair, which is not text'
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start:,} is not UTF-8"
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except _Constant as error:
        return f"{error} is not a value of JSON: send null or a string"
    except json.JSONDecodeError as error:
        place = f"line {error.lineno:,}, column {error.colno:,}"
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            return f"it ends at {_place(text, len(text))} before it is complete"
        return f"{error.msg[:1].lower()}{error.msg[1:]} at {place}"
    except (RecursionError, ValueError):  # it may be JSON: nested too deeply, or a number of too many digits
        return ""
    return _half_a_pair(text)


class _Constant(ValueError):
    """NaN or an infinity, which Python's own reader takes."""


def _refuse_constant(name: str) -> NoReturn:
    raise _Constant(name)


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position)
    return f"line {line + 1:,}, column {position - text.rfind(chr(10), 0, position):,}"


def _half_a_pair(text: str) -> str:
    pending: re.Match[str] | None = None
    for escape in _ESCAPES.finditer(text):
        unit = int(escape[1], 16) if escape[1] else 0
        is_low = 0xDC00 <= unit <= 0xDFFF
        if pending is not None:
            if is_low and pending.end() == escape.start():
                pending = None
                continue
            break
        if is_low:
            pending = escape
            break
        if 0xD800 <= unit <= 0xDBFF:
            pending = escape
    if pending is None:
        return ""
    return f"{pending[0]} at {_place(text, pending.start())} is half of a surrogate pair, which is not text"


def find_nonfinite(value: Any) -> tuple[str, float] | None:
    """The first NaN or infinity in a value of lists, dicts and numbers, and its path from `$`; None if there is none.

    >>> find_nonfinite({"a": [1.0, float("-inf")]})
    ('$.a[1]', -inf)
    """
    todo: list[tuple[str, Any]] = [("$", value)]
    while todo:
        path, part = todo.pop()
        if isinstance(part, float):
            if not isfinite(part):
                return path, part
        elif isinstance(part, Mapping):
            todo += [(f"{path}.{name}", item) for name, item in part.items()]
        elif isinstance(part, (list, tuple, set, frozenset)):
            todo += [(f"{path}[{index}]", item) for index, item in enumerate(part)]
    return None
