"""How a call ends, for both kinds of workers: its result or error as an outcome that is sure to travel."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from boki.api.failures import failure_of, is_depth_from_below
from boki.api.function import Function
from boki.api.suspension import Suspend, not_logged
from boki.errors import BokiError, DeadlineExceeded, FunctionFailed, NoSuchFunction
from boki.log.limits import Limits
from boki.log.metalog import Positions
from boki.log.operations import Failure
from boki.protocol.calls import Call, Outcome
from boki.worker.console import Console, Speaker
from boki.worker.frames import Ended, encode_frame, max_frame_bytes

_MAX_MESSAGE_CHARS = 4096


class Ending:
    """Makes outcomes of what functions return and raise. Tracebacks travel along: the gateway decides who sees them."""

    def __init__(self, console: Console, limits: Limits) -> None:
        self._console = console
        self._limits = limits

    def returned(self, speaker: Speaker, function: Function, value: Any, positions: Positions) -> Outcome:
        """The function returned this value. If it cannot travel, the console is told, too."""
        try:
            result = function.encode_result(value)
            if len(result.data) > self._limits.request_bytes:
                raise self._too_large(function.info.name, len(result.data))
        except BokiError as error:
            if inspect.iscoroutine(value):
                value.close()  # else Python warns of it, too, with a line of ours
            self._console.refused(speaker, error.message)
            return Outcome(None, Failure.of(error), positions)
        return Outcome(result, None, positions)

    def raised(self, speaker: Speaker, error: BaseException, positions: Positions) -> Outcome:
        """The function raised this error, which the console is told in full (once, if calls are nested too deeply)."""
        if not is_depth_from_below(error):
            self._console.error(speaker, error)
        try:
            failure = failure_of(speaker.function, error, with_traceback=True)
        except Exception:  # noqa: BLE001 - an exception of a user's whose text cannot be had
            failure = failure_of(speaker.function, RuntimeError(f"{type(error).__name__} without a text"))
        return Outcome(None, failure, positions)

    def suspended(self, speaker: Speaker, call: Call, suspend: Suspend, positions: Positions) -> Outcome:
        """The function raised `Suspend`: the end of a run, if the call is logged, else an error."""
        if call.run:
            return Outcome(None, None, positions, suspend.suspension)
        return self.raised(speaker, not_logged(call.function), positions)

    def _too_large(self, function: str, size_bytes: int) -> FunctionFailed:
        return FunctionFailed(
            f"{function}: its result has {size_bytes:,} bytes, and limits.request_bytes is "
            f"{self._limits.request_bytes:,}: append it to a LogBook in parts and return where it is",
            error_type="TooLarge",
            function=function,
        )

    def encoded(self, ticket: int, function: str, outcome: Outcome) -> bytes:
        """The end of the call as a frame that the engine takes."""
        try:
            frame = encode_frame(Ended(ticket, outcome))
            if len(frame) <= max_frame_bytes(self._limits):
                return frame
            size_bytes = len(frame)
        except (TypeError, ValueError, OverflowError):
            size_bytes = 0
        failure = outcome.failure
        told = failure.message[:_MAX_MESSAGE_CHARS] if failure else f"the end of the call has {size_bytes:,} bytes"
        error = FunctionFailed(f"{told} … (too large to be told in full)", error_type="TooLarge", function=function)
        return encode_frame(Ended(ticket, Outcome(None, Failure.of(error), {})))


def cancelled(function: str, positions: Positions) -> Outcome:
    """The engine cancelled the call, and has told its caller already."""
    error = DeadlineExceeded(f"the call of {function!r} was cancelled: nobody waits for it any more")
    return Outcome(None, Failure.of(error), positions)


def unknown(call: Call, functions: Mapping[str, Function]) -> Outcome:
    """This process does not have the function: the module registers other ones each time it is imported."""
    error = NoSuchFunction(
        f"the module registered {call.function!r} when it was described, and now registers "
        f"{', '.join(sorted(functions)) or 'nothing'}: register the same functions at every import",
        function=call.function,
    )
    return Outcome(None, Failure.of(error), {})
