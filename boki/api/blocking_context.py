"""`boki.blocking.Context`: what a plain `def` function is given: `boki.api.context` without `await`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

from boki.api.blocking_logbook import LogBook, LogSession
from boki.api.call_state import MISSING, AnyContext, AnyWorkflow, CallLogger, CallState
from boki.api.http.request import Request
from boki.api.log_calls import DEFAULT_PAGE_RECORDS
from boki.api.port import BlockingCallPort, BlockingLogPort
from boki.log.metalog import Positions
from boki.log.operations import BookInfo
from boki.retry import Retry

C = TypeVar("C", bound=AnyContext)
P = TypeVar("P")
R = TypeVar("R")

# Below: made from `boki.api.context` by `python -m tests.unasync`.


class Context(AnyContext):
    """One call, seen from inside: its LogBook, its deadline, and a way to call other functions.

    A child starts from what this call has seen of the logs, and when it returns this call has seen what the child has:
    what either has appended, the other reads.
    """

    __slots__ = ("_access", "_calls", "_state", "log", "logbook")

    logbook: LogBook
    """The call's own LogBook."""
    log: CallLogger
    """A logger whose lines carry the function's name and the invocation id."""

    def __init__(self, state: CallState, log: BlockingLogPort, calls: BlockingCallPort) -> None:
        self._state = state
        self._calls = calls
        self._access = LogSession(log, state.caller)
        self.logbook = self._access.logbook(state.call.book)
        self.log = state.logger()

    @property
    def function_name(self) -> str:
        """The name under which this function was called."""
        return self._state.call.function

    @property
    def invocation_id(self) -> str:
        """32 hex digits; the same when a logged call is run again."""
        return self._state.call.id

    @property
    def run_number(self) -> int:
        """Which run of a logged call this is, counted from 1, those that were cut off or suspended included; 0: the
        call is not logged.
        """
        return self._state.call.run

    @property
    def traceparent(self) -> str:
        """The W3C trace context of this call, to be handed on; "" if there is none."""
        return self._state.call.traceparent

    @property
    def request(self) -> Request | None:
        """The HTTP request that this call came by; None if it was called otherwise, or is a logged call."""
        return Request.of(self._state.call.request)

    @property
    def deadline(self) -> float:
        """When the call must be over, in seconds since the epoch."""
        return self._state.deadline_time

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; 0 if it has passed."""
        return self._state.deadline.left_s()

    @property
    def positions(self) -> Positions:
        """What this call has seen of the logs: raised by every operation, handed to children and back."""
        return self._state.caller.positions

    def logbook_named(self, name: str) -> LogBook:
        """Another LogBook; it exists from its first append."""
        return self._access.logbook(name)

    def books(self, prefix: str = "", *, after: str = "", limit: int = DEFAULT_PAGE_RECORDS) -> list[BookInfo]:
        """Books that have records, by name: the first `limit` that start with `prefix` and come after `after`."""
        return self._access.books(prefix, after=after, limit=limit)

    @overload
    def invoke(
        self,
        function: Callable[[C, P], Coroutine[Any, Any, R]],
        payload: P,
        *,
        timeout_s: float | None = None,
        book: str | None = None,
    ) -> R: ...

    @overload
    def invoke(
        self,
        function: Callable[[C], Coroutine[Any, Any, R]],
        *,
        timeout_s: float | None = None,
        book: str | None = None,
    ) -> R: ...

    @overload
    def invoke(
        self,
        function: Callable[[C, P], R],
        payload: P,
        *,
        timeout_s: float | None = None,
        book: str | None = None,
    ) -> R: ...

    @overload
    def invoke(
        self,
        function: Callable[[C], R],
        *,
        timeout_s: float | None = None,
        book: str | None = None,
    ) -> R: ...

    @overload
    def invoke(
        self, function: str, payload: Any = MISSING, *, timeout_s: float | None = None, book: str | None = None
    ) -> Any: ...

    def invoke(
        self,
        function: Callable[..., Any] | str,
        payload: Any = MISSING,
        *,
        timeout_s: float | None = None,
        book: str | None = None,
    ) -> Any:
        """Call another function, by object or by name, and wait for its result.

        It gets what is left of this call's time, `timeout_s` at most. Its LogBook is `book`; else the one that its own
        `@function(book=...)` names; else this call's. Raises `FunctionFailed` with type and message if it raised; else
        the error says what is known.
        """
        outcome = self._calls.invoke(self._state.child(function, payload, timeout_s, book))
        return self._state.result(function, outcome)

    @overload
    def invoke_later(
        self,
        function: Callable[[C, P], Any],
        payload: P,
        *,
        delay_s: float = 0,
        key: str | None = None,
        book: str | None = None,
        retry: Retry | None = None,
    ) -> str: ...

    @overload
    def invoke_later(
        self,
        function: Callable[[C], Any],
        *,
        delay_s: float = 0,
        key: str | None = None,
        book: str | None = None,
        retry: Retry | None = None,
    ) -> str: ...

    @overload
    def invoke_later(
        self,
        function: AnyWorkflow | str,
        payload: Any = MISSING,
        *,
        delay_s: float = 0,
        key: str | None = None,
        book: str | None = None,
        retry: Retry | None = None,
    ) -> str: ...

    def invoke_later(
        self,
        function: Callable[..., Any] | AnyWorkflow | str,
        payload: Any = MISSING,
        *,
        delay_s: float = 0,
        key: str | None = None,
        book: str | None = None,
        retry: Retry | None = None,
    ) -> str:
        """Have another function called by the system, after `delay_s`; its invocation id. Its LogBook: see `invoke`.

        The call is in the log when this returns: it will run, also if this process, or all of them, are killed. Under a
        `key` that was used before, the id of the first call is returned and nothing else happens. `retry`: when it runs
        again if it fails, instead of what its `@function(retry=...)` says.
        """
        call = self._state.later(function, payload, delay_s, key, book, retry)
        return self._calls.invoke_later(call, delay_s, key)

    def result_of(self, invocation_id: str, *, wait_s: float | None = None) -> Any:
        """What a logged call returned, such as one of `invoke_later`, once it has ended; raises what it ended with.

        It waits at most `wait_s`, and no longer than this call's deadline: then `DeadlineExceeded`. While it waits it
        holds its place in its worker, so a function that only waits is better called when the result is there.
        `NoSuchInvocation`
        """
        state = self._calls.ask_call(invocation_id, self._state.result_wait_s(wait_s), "")
        return self._state.logged_result(state)
