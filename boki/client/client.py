"""The client of `async` code. Its plain twin is `blocking_client`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from boki.api.append_gatherer import AppendGatherer
from boki.api.call_state import MISSING, AnyContext
from boki.api.deadline import Caller
from boki.api.http import exchange as http_exchange
from boki.api.http import pages
from boki.api.http.exchange import (
    POLL_S,
    Invocation,
    Invocations,
    invocation_answer,
    json_answer,
)
from boki.api.http.port import HttpPort
from boki.api.log_calls import DEFAULT_PAGE_RECORDS
from boki.api.logbook import LogBook, LogSession
from boki.log.checks import check_seconds
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.metalog import Positions, format_positions, merge_positions, parse_positions
from boki.log.operations import BookInfo
from boki.protocol.calls import CallStatus, FunctionInfo, Payload
from boki.protocol.deployments import Deployment, VersionInfo
from boki.retry import Retry

C = TypeVar("C", bound=AnyContext)
P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")


class Client:
    """A running system, for `async` code. Use it in `async with`, or `close` it."""

    def __init__(self, url: str = "http://127.0.0.1:8080", *, token: str = "", limits: Limits = DEFAULT_LIMITS) -> None:
        """Nothing is sent before the first request. `limits` are those of the system, checked before anything is."""
        self._port = HttpPort(url, token)
        self._caller = Caller(limits=limits)
        self._access = LogSession(self._port, AppendGatherer(self._port, limits), self._caller)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections, after what libraries still do beside the calls: at most 10 s."""
        try:
            await self._access.come_to_rest()
        finally:
            await self._port.close()

    @property
    def url(self) -> str:
        """Where the system is."""
        return self._port.url

    @property
    def position(self) -> str:
        """What this client has seen, to be handed to another one: `other.see(client.position)`."""
        return format_positions(self._caller.positions)

    def see(self, position: str) -> None:
        """From now on read nothing older than the client that gave this `position`."""
        merge_positions(self._caller.positions, parse_positions(position, "position"))

    def logbook(self, name: str) -> LogBook:
        """The LogBook of that name; it exists from its first append."""
        return self._access.logbook(name)

    async def books(self, prefix: str = "", *, after: str = "", limit: int = DEFAULT_PAGE_RECORDS) -> list[BookInfo]:
        """Books that have records, by name: the first `limit` that start with `prefix` and come after `after`."""
        return await self._access.books(prefix, after=after, limit=limit)

    @overload
    async def invoke(
        self,
        function: Callable[[C, P], Coroutine[Any, Any, R]],
        payload: P,
        *,
        book: str | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
        retry: Retry | None = None,
    ) -> R: ...

    @overload
    async def invoke(
        self,
        function: Callable[[C, P], R],
        payload: P,
        *,
        book: str | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
        retry: Retry | None = None,
    ) -> R: ...

    @overload
    async def invoke(
        self,
        function: str,
        payload: Any = MISSING,
        *,
        book: str | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
        retry: Retry | None = None,
        result_type: type[T],
    ) -> T: ...

    @overload
    async def invoke(
        self,
        function: Callable[..., Any] | str,
        payload: Any = MISSING,
        *,
        book: str | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
        retry: Retry | None = None,
    ) -> Any: ...

    async def invoke(
        self,
        function: Callable[..., Any] | str,
        payload: Any = MISSING,
        *,
        book: str | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
        retry: Retry | None = None,
        result_type: Any = None,
    ) -> Any:
        """Call a function, by object or by name, and wait for its result.

        `book`: its LogBook instead of its own. `timeout_s`: at most this long (and never longer than the function's own
        limit). `key`: the same key within 24 hours gives the first result, and the function does not run again.
        `retry`, with a `key`: when it runs again if it fails, instead of what its `@function(retry=...)` says.
        """
        asked = http_exchange.call_request(
            "/function/",
            function,
            payload,
            self._caller.positions,
            book=book,
            key=key,
            timeout_s=timeout_s,
            result_type=result_type,
            retry=retry,
        )
        seen: Positions = {}
        try:
            result = http_exchange.call_answer(await self._port.send(asked.request), seen)
        finally:
            merge_positions(self._caller.positions, seen)
        return asked.decode(result)

    async def invoke_later(
        self,
        function: Callable[..., Any] | str,
        payload: Any = MISSING,
        *,
        book: str | None = None,
        delay_s: float = 0.0,
        key: str | None = None,
        retry: Retry | None = None,
    ) -> str:
        """Have a function called by the system, after `delay_s`: its invocation id, once the call is in the log.

        `retry`: when it runs again if it fails, instead of what its `@function(retry=...)` says.
        """
        positions = self._caller.positions
        asked = http_exchange.call_request(
            "/asyncFunction/", function, payload, positions, book=book, key=key, delay_s=delay_s, retry=retry
        )
        return str(json_answer(await self._port.send(asked.request), 202)["id"])

    async def invocation(self, invocation_id: str, *, wait_s: float = 0.0, result_type: Any = None) -> Invocation:
        """The state of a logged call, after waiting at most `wait_s` for its end. `NoSuchInvocation`"""
        until = monotonic() + check_seconds(wait_s, "wait_s", positive=False)
        while True:
            poll_s = min(POLL_S, max(0.0, until - monotonic()))
            request = http_exchange.invocation_request(invocation_id, poll_s)
            found = invocation_answer(await self._port.send(request), result_type)
            if found.is_over or monotonic() >= until:
                return found

    async def calls(
        self,
        *,
        function: str = "",
        states: Iterable[CallStatus] = (),
        since_us: int = 0,
        until_us: int = 0,
        before: int = 0,
        limit: int = 100,
    ) -> Invocations:
        """A page of the logged calls that match, those whose state changed last first. 0 and empty: no condition."""
        request = http_exchange.invocations_request(function, states, since_us, until_us, before, limit)
        return http_exchange.invocations_answer(await self._port.send(request))

    async def cancel(self, invocation_id: str) -> Invocation:
        """End a logged call: one that has not begun never runs, one that runs is cancelled as a deadline does it.

        Again: the same answer. `WrongState` if it has ended, `NoSuchInvocation`.
        """
        return invocation_answer(await self._port.send(http_exchange.change_request(invocation_id, "cancel")))

    async def retry(self, invocation_id: str) -> Invocation:
        """Run a logged call again that has failed or was cancelled, under its id; it has a new outcome then.

        One that has not ended is left as it is. `WrongState` if it is done, `Trimmed` if its payload is gone.
        """
        return invocation_answer(await self._port.send(http_exchange.change_request(invocation_id, "retry")))

    async def page(
        self,
        path: str,
        query: Mapping[str, object] | None = None,
        payload: Payload | None = None,
        key: str = "",
        *,
        posts: bool = False,
        wait_s: float = 0.0,
    ) -> dict[str, Any]:
        """The JSON of a page that a library has at the gateway. `wait_s`: how long the page may take to answer."""
        seen = dict(self._caller.positions)
        request = pages.page_request(path, seen, query, payload, key, posts=posts, wait_s=wait_s)
        found = pages.page_answer(await self._port.send(request), seen)
        merge_positions(self._caller.positions, seen)
        return found

    async def functions(self) -> list[FunctionInfo]:
        """The registered functions, by name."""
        return pages.functions(await self._port.send(pages.get("/functions")))

    async def status(self) -> dict[str, Any]:
        """What an operator wants to know of the system."""
        return pages.document(await self._port.send(pages.get("/status")))

    async def deploy(self, bundle: bytes, *, is_forced: bool = False, timeout_s: float = pages.DEPLOY_S) -> Deployment:
        """Run the functions of a bundle from now on; calls in flight finish as they began.

        `InvalidArgument` with the errors of modules that cannot be loaded, unless that `is_forced`.
        """
        return pages.deployment(await self._port.send(pages.deploy(bundle, is_forced, timeout_s)))

    async def versions(self) -> list[VersionInfo]:
        """The deployed versions of the functions that are kept, the newest first."""
        return pages.versions(await self._port.send(pages.get("/functions/versions")))

    async def use_version(self, version: int | str) -> Deployment:
        """Run a deployed version again: its number, or "previous" for the one that ran before."""
        return pages.deployment(await self._port.send(pages.use(version)))
