"""What a context knows of the call that it belongs to, and what it makes of it for others. Shared by both contexts."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from os import urandom
from time import monotonic, time
from typing import Any, Final, Protocol

from msgspec.structs import replace

from boki.api.deadline import LONGEST_POLL_S, Caller, Deadline
from boki.api.function import Function
from boki.api.http.response import result_of
from boki.api.payloads.values import NO_PAYLOAD, encode_any
from boki.errors import DeadlineExceeded, InvalidArgument
from boki.log.checks import check_book, check_key, check_seconds
from boki.log.ids import check_name
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.metalog import merge_positions
from boki.protocol.calls import OVER, Call, ChosenId, InvocationState, Outcome, Payload
from boki.retry import Retry, check_retry

UNHURRIED_US: Final = 10 * 365 * 24 * 3600 * 1_000_000
"""A `timeout_us` beyond every function's own: that one decides."""

MISSING: Final[Any] = object()
"""No payload was given. None is a payload: JSON's null."""


class AnyContext:
    """What a function is given, `async` or not: a function of either kind may call one of the other."""

    __slots__ = ()


class AnyWorkflow(Protocol):
    """A workflow of a library: it stands for a function that a logged call runs, and cannot be called itself."""

    is_workflow: bool


class CallState:
    """One call under way: its deadline, what it has seen, and the calls and log lines that it gives rise to."""

    __slots__ = ("_wall_clock", "call", "caller", "deadline")

    def __init__(
        self,
        call: Call,
        *,
        limits: Limits = DEFAULT_LIMITS,
        clock: Callable[[], float] = monotonic,
        wall_clock: Callable[[], float] = time,
        longest_poll_s: float = LONGEST_POLL_S,
    ) -> None:
        self._wall_clock = wall_clock
        self.call = call
        self.deadline = Deadline.after(call.timeout_us / 1e6, clock)
        self.caller = Caller(dict(call.positions), self.deadline, limits, longest_poll_s, wall_clock=wall_clock)

    @property
    def deadline_time(self) -> float:
        """When the call must be over, in seconds since the epoch."""
        return self._wall_clock() + self.deadline.left_s()

    def child(
        self, function: Callable[..., Any] | str, payload: Any, timeout_s: float | None, book: str | None
    ) -> Call:
        """A call of `function` that this one waits for. `DeadlineExceeded` if there is no time left for it."""
        timeout_s = self.deadline.timeout_s(timeout_s, default_s=UNHURRIED_US / 1e6)
        return self._call(function, payload, book, int(timeout_s * 1e6), self.call.depth + 1)

    def later(
        self,
        function: Callable[..., Any] | AnyWorkflow | str,
        payload: Any,
        delay_s: float,
        key: str | None,
        book: str | None,
        retry: Retry | None = None,
        chosen: tuple[str, ChosenId] | None = None,
    ) -> Call:
        """A call of `function` that runs by itself: neither this call's deadline nor its depth bounds it.

        `chosen`: its id, and what is done if there is a call of that id.
        """
        check_seconds(delay_s, "delay_s", positive=False)
        if key is not None:
            check_key(key, self.caller.limits)
        call = self._call(function, payload, book, UNHURRIED_US, 0)
        if chosen is not None:
            call = replace(call, id=check_invocation_id(chosen[0]), chosen=chosen[1])
        return call if check_retry(retry) is None else replace(call, retry=retry)

    def _call(
        self,
        function: Callable[..., Any] | AnyWorkflow | str,
        payload: Any,
        book: str | None,
        timeout_us: int,
        depth: int,
    ) -> Call:
        invocation_id = new_invocation_id()
        name, data = _encoded(function, payload)
        return Call(
            id=invocation_id,
            function=name,
            payload=data,
            book="" if book is None else check_book(book),
            timeout_us=timeout_us,
            depth=depth,
            positions=dict(self.caller.positions),
            traceparent=child_traceparent(self.call.traceparent, self.call.id, invocation_id),
            parent=self.call.id,
            caller_book=self.call.book,
        )

    def result(self, function: Callable[..., Any] | str, outcome: Outcome) -> Any:
        """What a child returned; raises what it ended with. This call has then seen what its child has seen."""
        merge_positions(self.caller.positions, outcome.positions)
        if outcome.failure is not None:
            raise outcome.failure.error()
        if outcome.result is None:
            return None
        if isinstance(function, str):
            return result_of(outcome.result, f"result of {function}")
        return Function.of(function).decode_result(outcome.result)

    def result_wait_s(self, wait_s: float | None) -> float:
        """How long `result_of` waits."""
        wished_s = UNHURRIED_US / 1e6 if wait_s is None else check_seconds(wait_s, "wait_s", positive=False)
        return self.deadline.wait_s(wished_s)

    def logged_result(self, state: InvocationState) -> Any:
        """What a logged call returned; raises what it ended with, or `DeadlineExceeded` if it has not ended."""
        if state.state not in OVER:
            raise DeadlineExceeded(
                f"call {state.id} has not ended (it is {state.state}): wait longer, or ask again",
                outcome="not_applied",
                invocation=state.id,
            )
        if state.failure is not None:
            raise state.failure.error()
        return None if state.result is None else result_of(state.result, f"result of {state.function}")

    def logger(self) -> CallLogger:
        """A logger whose records carry the function's name and the invocation id."""
        return CallLogger(self.call)


def _encoded(function: Callable[..., Any] | AnyWorkflow | str, payload: Any) -> tuple[str, Any]:
    if isinstance(function, str):
        name = check_name(function, "function")
        if isinstance(payload, Payload):
            return name, payload
        return name, NO_PAYLOAD if payload is MISSING else encode_any(payload, f"payload of {name}")
    known = Function.of(function)
    if payload is not MISSING:
        return known.info.name, known.encode_payload(payload)
    if known.payload_codec is not None and not known.has_default:
        raise InvalidArgument(f"{known.info.name} needs a payload: pass it after the function", field="payload")
    return known.info.name, NO_PAYLOAD


def check_invocation_id(invocation_id: object) -> str:
    """`invocation_id`, if it can be one: 32 hex digits."""
    text = invocation_id if isinstance(invocation_id, str) else ""
    if len(text) != 32 or text.strip("0123456789abcdef"):
        raise InvalidArgument(
            f"an invocation id has 32 hex digits, not {invocation_id!r:.60}: make one with invocation_id_of(name)",
            field="id",
        )
    return text


def new_invocation_id() -> str:
    """32 hex digits, never the same twice."""
    return urandom(16).hex()


def child_traceparent(traceparent: str, parent_id: str, child_id: str) -> str:
    """The W3C trace context of a child: its parent's trace (or the trace of the parent's id), and a span of its own.

    >>> child_traceparent("00-" + 32 * "a" + "-" + 16 * "b" + "-00", "", 32 * "c")
    '00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-cccccccccccccccc-00'
    """
    parts = traceparent.split("-")
    trace, flags = (parts[1], parts[3]) if len(parts) == 4 else (parent_id, "01")
    return f"00-{trace}-{child_id[:16]}-{flags}"


class CallLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds `function` and `invocation` to each log record, in addition to what its caller gives as `extra`."""

    def __init__(self, call: Call) -> None:
        super().__init__(
            logging.getLogger(f"boki.function.{call.function}"), {"function": call.function, "invocation": call.id}
        )

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge `extra`, which the standard adapter would replace."""
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs
