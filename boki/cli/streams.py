"""Results that are streamed, printed as they arrive."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from boki.api.call_state import MISSING
from boki.api.http.exchange import (
    END_OF_EVENT,
    ERROR_EVENT,
    OUTCOME,
    STREAMED,
    are_events,
    call_answer,
    call_request,
    told_error,
)
from boki.cli.terminal import errors

if TYPE_CHECKING:
    from boki.api.http.blocking_port import BlockingHttpPort

_OK: Final = 200


def print_stream(
    port: BlockingHttpPort, function: str, payload: Any = MISSING, *, book: str | None, timeout_s: float | None
) -> None:
    """Call a function that streams and print what comes, part by part; then the port is closed.

    Raises what the call ended with, also in the middle: then what came before is printed.
    """
    asked = call_request("/function/", function, payload, {}, book=book, key=None, timeout_s=timeout_s)
    with closing(port), closing(port.stream(asked.request)) as answers:
        head = next(answers)
        if head.headers.get(OUTCOME.lower()) != STREAMED:
            call_answer(head, {})  # raises its error
            return  # an empty stream has no head
        if head.status != _OK:
            errors().print(f"status {head.status}", style="dim")
        parts = (answer.body for answer in answers)
        for part in _events(parts) if are_events(head) else parts:
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()


def _events(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Whole events; if the last one tells how the call failed, its error is raised instead."""
    held = b""
    for part in parts:
        whole, end, held = (held + part).rpartition(END_OF_EVENT)
        before, middle, last = whole.rpartition(END_OF_EVENT)
        if end and last.startswith(ERROR_EVENT):  # the last one so far
            whole, end, held = before, middle, last + END_OF_EVENT + held
        if end:
            yield whole + end
    if held.startswith(ERROR_EVENT) and (error := told_error(held.removeprefix(ERROR_EVENT))) is not None:
        raise error
    if held:
        yield held
