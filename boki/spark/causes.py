"""The reason behind an error of Spark's: what Boki said in a planner or a task, without the traces around it."""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"^(?:boki\.errors\.)(?P<kind>\w+): (?P<message>.+?)$", re.MULTILINE)
_MOST_CHARACTERS: Final = 500


def cause_of(error: BaseException) -> str:
    r"""What to tell a person: Boki's own message if there is one, else the beginning of Spark's.

    >>> cause_of(RuntimeError("trace\nboki.errors.NotFound: there is no book 'a'\n SQLSTATE: 38000"))
    "there is no book 'a'"
    """
    found = _OURS.findall(str(error))
    return str(found[-1][1]) if found else str(error).strip()[:_MOST_CHARACTERS]
