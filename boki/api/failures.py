"""How a call ended whose function raised: its error as a `Failure` that is sure to travel."""

from __future__ import annotations

from asyncio import CancelledError
from typing import Any

from boki.api.tracebacks import traceback_text
from boki.errors import BokiError, CallTooDeep, FunctionFailed, TerminalError
from boki.log.operations import Failure
from boki.retry import MAX_DELAY_S


def failure_of(name: str, error: BaseException, *, with_traceback: bool = False) -> Failure:
    """How a call of the function `name` ended that raised `error`: type and message, and the traceback if wanted."""
    if is_depth_from_below(error):
        return _told_once(name, error, with_traceback=with_traceback)
    kind = _sendable(type(error).__name__)
    told = _sendable(str(error))
    if not told and isinstance(error, CancelledError):  # not by the engine, which tells that itself
        told = "the function cancelled its own task, or what it awaited was cancelled"
    failed = FunctionFailed(f"{name}: {kind}: {told}", error_type=kind, function=name)
    if isinstance(error, BokiError):
        failed.details["error_code"] = error.code
    failed.details |= _wishes(error)
    if with_traceback:
        failed.details["traceback"] = _sendable(traceback_text(error))
    return Failure.of(failed)


def _wishes(error: BaseException) -> dict[str, Any]:
    """What an error says about running its call again, for the call's `Retry`: see `TerminalError`."""
    details = error.details if isinstance(error, BokiError) else {}
    if isinstance(error, TerminalError) or details.get("terminal") is True:
        return {"terminal": True}
    asked_s = getattr(error, "retry_after_s", None)
    if isinstance(asked_s, int | float) and not isinstance(asked_s, bool) and 0 <= asked_s <= MAX_DELAY_S:
        return {"retry_after_s": asked_s}
    return {}


def is_depth_from_below(error: BaseException) -> bool:
    """Whether a child call failed because calls are nested too deeply: each call of such a chain fails with the same
    error, which is worth telling once.
    """
    return isinstance(error, FunctionFailed) and error.details.get("error_code") == CallTooDeep.code


def _told_once(name: str, error: BaseException, *, with_traceback: bool) -> Failure:
    kind = CallTooDeep.__name__
    _, _, told = str(error).partition(f"{kind}: ")
    failed = FunctionFailed(f"{name}: {kind}: {told}", error_type=kind, function=name, error_code=CallTooDeep.code)
    below = getattr(error, "details", {}).get("traceback")
    if with_traceback and below:
        failed.details["traceback"] = below
    return Failure.of(failed)


def _sendable(text: str) -> str:
    """The text as UTF-8 can hold it: what an exception says may have lone surrogates, as a file's name may."""
    return text.encode(errors="backslashreplace").decode()
