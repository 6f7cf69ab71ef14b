"""The reason behind an error of Spark's: what Boki said in a planner or a task, without the traces around it."""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"^(?:boki\.errors\.)(?P<kind>\w+): (?P<message>.+?)$", re.MULTILINE)
_THROWN: Final = re.compile(
    r"^(?:\s*Caused by: (?P<cause>.+)|:? ?(?P<thrown>(?:[\w$]+\.)*[\w$]*(?:Error|Exception): .+))$", re.MULTILINE
)
"""The first line of what was thrown, in Java or in Python."""
_PACKAGE: Final = re.compile(r"^(?:[\w$]+\.)+(?=[\w$]+(?::|$))")
_MOST_CHARACTERS: Final = 500


def cause_of(error: BaseException) -> str:
    r"""What to tell a person: Boki's own message if there is one, else what was thrown first of all, which stands last
    in traces, else the beginning.

    >>> cause_of(RuntimeError("trace\nboki.errors.NotFound: there is no book 'a'\n SQLSTATE: 38000"))
    "there is no book 'a'"
    >>> cause_of(RuntimeError("a job\n\tat a.B\nCaused by: java.io.IOException: No space left on device\n\tat c.D"))
    'IOException: No space left on device'
    >>> cause_of(RuntimeError("[NO_SUCH] There is no such thing\nat all"))
    '[NO_SUCH] There is no such thing\nat all'
    """
    text = f"{error}\n{getattr(error, '_stackTrace', '')}"  # PySpark's own, which its message lacks
    if ours := _OURS.findall(text):
        return str(ours[-1][1])
    thrown = [found["cause"] or found["thrown"] for found in _THROWN.finditer(text)]
    return (_PACKAGE.sub("", thrown[-1].strip()) if thrown else text.strip())[:_MOST_CHARACTERS]
