"""Appends that are called in one turn of the event loop travel as one chunk.

An append is cheap in a batch and dear alone: a message, a system call, a wake-up. So little is not sent before all
that runs in this turn has run; then the groups of each book are encoded together, and one answer wakes all that wait.
There is no timer: an append that is alone leaves at once. Much is sent before the turn has ended (`EARLY_BYTES`): then
the engine works on the first half of what many callers append while the other half still runs, and the halves keep
taking turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

from boki.api import log_calls
from boki.api.compare_gatherer import CompareGatherer
from boki.api.port import Begin, LogPort
from boki.errors import BokiError, ConditionFailed, DeadlineExceeded
from boki.log.chunk import Group
from boki.log.limits import DEFAULT_LIMITS, KIB, Limits
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Answer, Append, Appended, Failure

CHUNK_BYTES: Final = 256 * KIB
"""Larger than this, gathering gains nothing more, and a lost chunk would cost much to send again."""
EARLY_BYTES: Final = 128 * KIB
"""What has gathered does not wait for the end of the turn from this size on."""

_TIMER_WORTH_S: Final = 0.01
"""Deadlines that are so close together are not told apart."""


class _Waiting(NamedTuple):
    future: asyncio.Future[Sequence[int]]
    group: Group
    positions: Positions
    timeout_s: float


class _Gathering:
    __slots__ = ("book", "members", "size_bytes")

    def __init__(self, book: str) -> None:
        self.book = book
        self.members: list[_Waiting] = []
        self.size_bytes = 0


class AppendGatherer:
    """Gathers the appends of all LogBooks over one port. One per port and event loop."""

    def __init__(self, port: LogPort, limits: Limits = DEFAULT_LIMITS) -> None:
        self._port = port
        self._limits = limits
        self._chunk_bytes = min(CHUNK_BYTES, limits.request_bytes)
        self._early_bytes = min(EARLY_BYTES, limits.request_bytes)
        self._open: dict[str, _Gathering] = {}
        self._begin: Begin | None = getattr(port, "begin_request", None)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_flush_due = False
        self.comparisons = CompareGatherer(port, limits)
        """Of what changed in rows, gathered likewise."""
        self.shared: dict[Callable[[], Any], Any] = {}
        """What libraries share among all callers of the port: see `LogSession.shared`."""

    def add(self, book: str, group: Group, positions: Positions, timeout_s: float) -> asyncio.Future[Sequence[int]]:
        """The seqnums of the group's records, once they are durable; `positions` are raised to have seen them."""
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        size_bytes = log_calls.group_bytes(group)
        gathering = self._open.get(book)
        if gathering is None:
            gathering = self._open[book] = _Gathering(book)
        elif gathering.size_bytes + size_bytes > self._chunk_bytes:
            self._send(gathering)
            gathering = self._open[book] = _Gathering(book)
        future: asyncio.Future[Sequence[int]] = asyncio.get_running_loop().create_future()
        gathering.members.append(_Waiting(future, group, positions, timeout_s))
        gathering.size_bytes += size_bytes
        if gathering.size_bytes >= self._early_bytes:
            self._send(self._open.pop(book))
        return future

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _flush(self) -> None:
        """Runs when all that was ready in this turn has run. Chunks of one book leave in the order of their appends."""
        gatherings, self._open = self._open, {}
        self._is_flush_due = False
        for gathering in gatherings.values():
            self._send(gathering)

    def _send(self, gathering: _Gathering) -> None:
        members = [member for member in gathering.members if not member.future.cancelled()]
        if not members:
            return
        timeout_s = max(member.timeout_s for member in members)
        try:
            operation = log_calls.append_operation(gathering.book, [member.group for member in members], self._limits)
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits
            _fail(members, error)
            return
        sent = _Sent(gathering.book, members, _expire_earlier(members, timeout_s))
        if self._begin is None or not self._begin(operation, {}, timeout_s, sent.told):
            self._start(self._request(sent, operation, timeout_s)).add_done_callback(sent.leave)

    async def _request(self, sent: _Sent, operation: Append, timeout_s: float) -> None:
        seen: Positions = {}
        try:
            sent.told(await self._port.request(operation, seen, timeout_s), seen)
        except Exception as error:  # noqa: BLE001 - also a bug of the port is news for all that wait
            sent.fail(error)


class _Sent:
    """Appends that travel as one request."""

    __slots__ = ("_book", "_timers", "members")

    def __init__(self, book: str, members: Sequence[_Waiting], timers: Sequence[asyncio.TimerHandle]) -> None:
        self._book = book
        self.members = members
        self._timers = timers

    def told(self, answer: Answer, seen: Positions) -> None:
        """The answer to all of them."""
        if isinstance(answer, Appended):
            for timer in self._timers:
                timer.cancel()
            _settle(self.members, answer, self._book, seen)
        else:
            assert isinstance(answer, Failure), "an append is answered by nothing else"
            self.fail(answer.error())

    def leave(self, _task: asyncio.Task[None]) -> None:
        """No answer comes any more. Those that wait have one, unless the request was cancelled."""
        for member in self.members:
            member.future.cancel()

    def fail(self, error: Exception) -> None:
        """There is none."""
        for timer in self._timers:
            timer.cancel()
        _fail(self.members, error)


def _fail(members: Sequence[_Waiting], error: Exception) -> None:
    for member in members:
        if not member.future.done():
            own = BokiError.from_body(error.body()) if isinstance(error, BokiError) else error
            member.future.set_exception(own)  # with a traceback of its own


def _expire_earlier(members: Sequence[_Waiting], timeout_s: float) -> list[asyncio.TimerHandle]:
    """Timers for those whose deadline comes before that of their shared request."""
    loop = asyncio.get_running_loop()
    return [
        loop.call_later(member.timeout_s, _expire, member.future)
        for member in members
        if member.timeout_s < timeout_s - _TIMER_WORTH_S
    ]


def _expire(future: asyncio.Future[Sequence[int]]) -> None:
    if not future.done():
        future.set_exception(
            DeadlineExceeded("no answer to an append before its deadline: it may have happened; repeat it under a key")
        )


def _settle(members: Sequence[_Waiting], answer: Appended, book: str, seen: Positions) -> None:
    """Wake all that wait with their share of the answer."""
    rejected = {verdict.group: verdict for verdict in answer.rejected}
    first_seqnum = answer.first_seqnum
    informed: Positions | None = None
    for number, (future, group, positions, _) in enumerate(members):
        if positions is not informed:  # neighbours are mostly of one call
            merge_positions(positions, seen)
            informed = positions
        if not future.done():
            try:
                future.set_result(log_calls.seqnums_of(first_seqnum, group, rejected.get(number), book))
            except ConditionFailed as error:
                future.set_exception(error)
        first_seqnum += len(group.records)
