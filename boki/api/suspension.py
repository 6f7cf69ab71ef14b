"""Durable suspension: how the run of a logged call ends while the call continues, without a process that waits.

A low-level seam for libraries such as BokiFlow; there is no public decorator. The body of a logged call raises
`Suspend`: the run is over, the call is recorded as suspended, and it costs a few hundred bytes in its engine. The body
is started again, under the same id and with the next `ctx.run_number`, as soon as one of these is true:

- the log's time has come to `wake_us`;
- a record with one of the tags in `wakes` stands at or above its `min_seqnum`. It may have been there before the call
  was suspended: then the next run begins at once.

A body must expect to be woken for nothing, and look for itself at what it waits for. No wake-up is lost with an
engine: the one that takes over waits for the same.
"""

from __future__ import annotations

from asyncio import gather
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from boki.api.call_state import MISSING, CallState, new_invocation_id
from boki.api.port import BeginCall
from boki.errors import InvalidArgument, WrongType
from boki.log.checks import check_book, check_seconds, check_seqnum
from boki.log.ids import check_tag
from boki.log.limits import DEFAULT_LIMITS
from boki.protocol.calls import (
    CALLS_BOOK,
    KEPT_END_TAG,
    Attribute,
    Begun,
    ChosenId,
    IfEnded,
    IfRunning,
    InvocationState,
    Move,
    Payload,
    Suspension,
    WakeOn,
    ends_tag,
    starts_tag,
)

if TYPE_CHECKING:
    from boki.api.blocking_context import Context as BlockingContext
    from boki.api.context import Context
    from boki.api.logbook import LogBook
    from boki.log.record import Record
    from boki.retry import Retry

__all__ = [
    "MAX_NOTE_CHARS",
    "MAX_WAKES",
    "BlockingCallsById",
    "CallsById",
    "Suspend",
    "WakeOn",
    "calls_reporting_to",
    "changes_of",
    "ended_before",
    "ends_of",
    "invocation_id_of",
]

MAX_WAKES: Final = 16
"""Maximum number of tags that one suspended call waits for."""
MAX_NOTE_CHARS: Final = 200
_PAGE_RECORDS: Final = 1_000
_ID_TAG: Final = "id:"
"""How the tag of a call's records begins, in the book of logged calls."""


class Suspend(BaseException):
    """Raised by the body of a logged call: end this run, and run the call again at `wake_us` or on a record.

    `wake_us` is microseconds since the epoch by the log's time, 0: only a record wakes the call. `note` says why it
    waits, for people. It is no `Exception`, so that `except Exception` in a body does not swallow it. In a call that is
    not logged it is an error. `InvalidArgument` names what is wrong, or over its limit.
    """

    def __init__(self, wake_us: int = 0, wakes: Iterable[WakeOn] = (), note: str = "") -> None:
        super().__init__(wake_us, note)
        found = tuple(wakes)
        if not wake_us and not found:
            raise InvalidArgument(
                "Suspend needs a wake_us or wakes: with neither the call would never run again", field="wake_us"
            )
        if len(found) > MAX_WAKES:
            raise InvalidArgument(
                f"a suspended call waits for at most {MAX_WAKES} tags, not {len(found)}: let them share a tag",
                field="wakes",
            )
        if len(note) > MAX_NOTE_CHARS:
            raise InvalidArgument(f"note has {len(note)} characters; the limit is {MAX_NOTE_CHARS}", field="note")
        for wake in found:
            if not isinstance(wake, WakeOn):
                raise WrongType(f"wakes holds WakeOn(book, tag, min_seqnum), not {type(wake).__name__}", field="wakes")
            check_book(wake.book)
            check_tag(wake.tag, DEFAULT_LIMITS.tag_bytes)
            check_seqnum(wake.min_seqnum, "min_seqnum")
        self.suspension = Suspension(check_seqnum(wake_us, "wake_us"), found, note)


def not_logged(function: str) -> InvalidArgument:
    """Why a call of this function cannot be suspended."""
    return InvalidArgument(
        f"{function} raised Suspend, and only logged calls can be suspended: call it with invoke_later, or under a key"
    )


def invocation_id_of(*names: str) -> str:
    """The invocation id (32 hex digits) that stands for these names: the same for the same ones, everywhere.

    >>> invocation_id_of("travel", "trip-17")
    'bb3eb5c08e1fb3eade8d806e0abe069f'
    """
    hashed = sha256()
    for name in names:
        data = name.encode()
        hashed.update(len(data).to_bytes(8, "little") + data)
    return hashed.hexdigest()[:32]


async def calls_reporting_to(logbook: LogBook, invocation_id: str, *, skip_done: bool = False) -> list[str]:
    """The ids of all logged calls that were started to report to this one (`reports_to`), as far as they are kept.

    `logbook` is that of `ends_of(invocation_id).book`. `skip_done`: without those that have reported a result since
    they were last started. Calls that failed or were cancelled are named, because they can be run again.
    """
    # ends first: a call that is started again in between is named
    ends = await _last_records(logbook, ends_tag(invocation_id)) if skip_done else {}
    starts = await _last_records(logbook, starts_tag(invocation_id))
    return [call for call, start in starts.items() if call not in ends or not _is_done(ends[call], start)]


def _is_done(end: Record, start: Record) -> bool:
    return end.seqnum > start.seqnum and not {"failed", "cancelled"}.intersection(end.tags)


async def _last_records(logbook: LogBook, tag: str) -> dict[str, Record]:
    """The last record of each call under that tag of the book of logged calls."""
    found: dict[str, Record] = {}
    start = 0
    while True:
        page = await logbook.read(tag, start=start, limit=_PAGE_RECORDS)
        if not page.records:
            return found
        for record in page.records:
            found.update((tag.removeprefix(_ID_TAG), record) for tag in record.tags if tag.startswith(_ID_TAG))
        start = page.next_start


async def ended_before(logbook: LogBook, invocation_ids: Sequence[str], time_us: int) -> list[bool]:
    """Of each of these logged calls, whether it has ended before that time, by the log's time, or is not kept any more.

    `logbook` is that of `ends_of(invocation_id).book`. What is not kept is found by one question for all.
    """
    tags = [_ID_TAG + invocation_id for invocation_id in invocation_ids]
    compared = await logbook.session.compare(logbook.name, [(tag, 0) for tag in tags])
    kept = range(len(tags)) if compared is None else compared.changed
    lasts = await gather(*(logbook.check_tail(tags[number]) for number in kept))
    ended = [True] * len(tags)
    for number, last in zip(kept, lasts, strict=True):
        if last is not None and KEPT_END_TAG not in last.tags:  # that one is there for the call that it reports to
            ended[number] = "finished" in last.tags and last.time < time_us
    return ended


def ends_of(invocation_id: str, min_seqnum: int = 0) -> WakeOn:
    """Wakes a call when one has ended that was started to report to it (`reports_to`), at or above that seqnum."""
    return WakeOn(CALLS_BOOK, ends_tag(invocation_id), min_seqnum)


def changes_of(invocation_id: str, min_seqnum: int = 0) -> WakeOn:
    """Wakes a call when that logged call has a record at or above that seqnum: each of its runs begins with one, and is
    followed by one.
    """
    return WakeOn(CALLS_BOOK, _ID_TAG + invocation_id, min_seqnum)


class CallHere:
    """The call that runs here: how it was started, and with what."""

    def __init__(self, state: CallState) -> None:
        self._state = state

    @property
    def chosen(self) -> ChosenId | None:
        """How the call that runs here was started, if its caller chose the id."""
        return self._state.call.chosen

    @property
    def attempt(self) -> int:
        """Which run this is since the call was accepted, or last suspended, counted from 1, lost ones included."""
        return self._state.call.attempt

    @property
    def accepted_us(self) -> int:
        """When the call was accepted, by the log's time; 0: not known."""
        return self._state.call.accepted_us

    @property
    def is_tried(self) -> bool:
        """Whether the call is not accepted yet: the body may compute, and raises `Suspend` before it does more."""
        return self._state.call.is_tried

    @property
    def payload(self) -> Payload:
        """The payload of the call that runs here, as it came."""
        return self._state.call.payload


class CallsById(CallHere):
    """Logged calls under ids that the caller chooses, from inside an `async def` function."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx._state)  # noqa: SLF001 - the low-level side of a context
        self._port = ctx._calls  # noqa: SLF001

    async def start(
        self,
        invocation_id: str,
        function: Callable[..., Any] | str,
        payload: Any = MISSING,
        *,
        if_running: IfRunning = "use",
        if_ended: IfEnded = "use",
        delay_s: float = 0,
        book: str | None = None,
        retry: Retry | None = None,
        start: str | None = None,
        name: str = "",
        reports_to: str = "",
        attributes: dict[str, Attribute] | None = None,
        watcher: str = "",
        copies: str = "",
    ) -> Begun:
        """Log a call under this id, to be run by the system: `invocation_id`, once the call is durable, and the result
        if the call has ended with its acceptance and that is known.

        If there is a call of that id, `if_running` and `if_ended` decide: `AlreadyExists` for "fail"; with "use" it
        stands for the start if it was asked for the same, else `KeyReused`. Repeated with the same `start` (by default
        each is another) nothing happens twice. `name` is what people call it. `reports_to` is the id of a logged call
        that waits for the end of this one, maybe suspended for `ends_of(reports_to)`. For the others see `ChosenId`. A
        `Payload` is passed on as it is.
        """
        begins = start or new_invocation_id()
        chosen = ChosenId(begins, if_running, if_ended, name, reports_to, attributes or {}, watcher, copies)
        call = self._state.later(function, payload, delay_s, None, book, retry, (invocation_id, chosen))
        begin: BeginCall | None = getattr(self._port, "begin_call", None)
        if begin is None:
            return Begun(await self._port.invoke_later(call, delay_s, None))
        return await begin(call, delay_s, None)

    async def state(self, invocation_id: str, wait_s: float = 0) -> InvocationState:
        """What is known of a logged call, after waiting at most `wait_s` for its end. `NoSuchInvocation`"""
        check_seconds(wait_s, "wait_s", positive=False)
        return await self._port.ask_call(invocation_id, self._state.deadline.wait_s(wait_s), "")

    async def cancel(self, invocation_id: str, life_us: int = 0) -> InvocationState:
        """End a logged call in whatever state. `WrongState` if it has ended otherwise, or was started or retried since
        it had that `InvocationState.life_us` (0: whichever it has). `NoSuchInvocation`.
        """
        return await self._port.ask_call(invocation_id, 0, life_us or "cancel")

    async def move(self, invocation_id: str, version: int, attempts: int) -> InvocationState:
        """Pin a logged call to another deployed version, if it has had that many runs and does not run now.

        `WrongState` otherwise. Again: nothing more happens.
        """
        return await self._port.ask_call(invocation_id, 0, Move(version, attempts))


class BlockingCallsById(CallHere):
    """Logged calls under ids that the caller chooses, from inside a `def` function. See `CallsById`."""

    def __init__(self, ctx: BlockingContext) -> None:
        super().__init__(ctx._state)  # noqa: SLF001 - the low-level side of a context
        self._port = ctx._calls  # noqa: SLF001

    def start(
        self,
        invocation_id: str,
        function: Callable[..., Any] | str,
        payload: Any = MISSING,
        *,
        if_running: IfRunning = "use",
        if_ended: IfEnded = "use",
        delay_s: float = 0,
        book: str | None = None,
        retry: Retry | None = None,
        start: str | None = None,
        name: str = "",
        reports_to: str = "",
        attributes: dict[str, Attribute] | None = None,
        watcher: str = "",
        copies: str = "",
    ) -> Begun:
        """See `CallsById.start`. The result is never known."""
        begins = start or new_invocation_id()
        chosen = ChosenId(begins, if_running, if_ended, name, reports_to, attributes or {}, watcher, copies)
        call = self._state.later(function, payload, delay_s, None, book, retry, (invocation_id, chosen))
        return Begun(self._port.invoke_later(call, delay_s, None))

    def state(self, invocation_id: str, wait_s: float = 0) -> InvocationState:
        """See `CallsById.state`."""
        check_seconds(wait_s, "wait_s", positive=False)
        return self._port.ask_call(invocation_id, self._state.deadline.wait_s(wait_s), "")

    def cancel(self, invocation_id: str) -> InvocationState:
        """See `CallsById.cancel`."""
        return self._port.ask_call(invocation_id, 0, "cancel")

    def move(self, invocation_id: str, version: int, attempts: int) -> InvocationState:
        """See `CallsById.move`."""
        return self._port.ask_call(invocation_id, 0, Move(version, attempts))
