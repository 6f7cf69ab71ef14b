"""Attendants: logged calls that act for a library, such as for a schedule, and are suspended in between.

An attendant is a call of its workflow (`ChosenId.attends`), so that it runs wherever that does and is taken over with
its engine, but the workflow's body does not run in it. It follows one tag by a pure fold. What the fold decides is one
record, under the condition that the tag has not changed since: of two that act for the same thing one decides. What
was decided and is not known to be done is done by the next run, so all of it can be repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

from boki import BokiError, ConditionFailed, Context, Expect, TooLarge
from boki.extending import MAX_WAKES, Suspend, WakeOn, ends_of
from boki.libs.bokiflow.clocks import clock_of
from boki.libs.fold.retrying import until_answered

N = TypeVar("N")
D = TypeVar("D")
D_co = TypeVar("D_co", covariant=True)

_PAGE_RECORDS: Final = 1_000
_KEPT_EVERY: Final = 64
"""After this many records the whole state is written down, and what stands below is trimmed."""
_PAUSE_US: Final = 2_000_000
"""After an error that may pass."""
_LOOK_US: Final = 10_000_000
"""After this time it looks for what it waits for beyond the tags that a suspended call may name."""


class Codec(Protocol[N]):
    """Writes and reads the records of an attendant's tag."""

    def encode(self, note: N, /) -> bytes:
        """The record's data."""

    def own(self, data: bytes, /) -> N | None:
        """The record; None: a stranger's."""


def nobody(_note: object) -> Sequence[str]:
    """A record that stands under the attendant's tag alone."""
    return ()


class Deciding(Protocol[N, D_co]):
    """The fold of an attendant."""

    last_seqnum: int
    """Of the tag; 0: it has no record."""
    unsaved: int
    """Records since the last that holds the whole state."""
    ends_from: int
    """From where on the ends of its calls are read."""

    def apply(self, seqnum: int, time_us: int, note: N) -> None:
        """Take in the next record."""

    def end(self, invocation_id: str, next_seqnum: int) -> None:
        """A call that reports here has ended; further ends stand at `next_seqnum` or above."""

    def decide(self, now_us: int) -> D_co | None:
        """What is to be done; a record."""

    def next_us(self) -> int:
        """When it has to decide by itself; 0: at no time."""

    def kept(self) -> N:
        """The whole state as a record."""


class Attending(Generic[N, D]):
    """One run of an attendant. `act` carries out a decision that is recorded; it raises what may pass.

    `told`: further tags of a record, under which it reaches those whom it concerns. `others`: what wakes it apart from
    its tag and the ends that are reported to it.
    """

    def __init__(
        self,
        ctx: Context,
        tag: str,
        codec: Codec[N],
        state: Deciding[N, D],
        act: Callable[[D], Awaitable[None]],
        told: Callable[[Any], Sequence[str]] = nobody,
        others: Callable[[], Sequence[WakeOn]] = tuple,
    ) -> None:
        self._ctx = ctx
        self._book = ctx.logbook
        self._tag = tag
        self._codec = codec
        self._state = state
        self._act = act
        self._told = told
        self._others = others
        self._now_us = clock_of(ctx).now_us
        self._next_start = 0
        self._ends_next = 0

    async def run(self, recover: Callable[[], Awaitable[None]]) -> NoReturn:
        """Decide until there is nothing to decide, and suspend the call.

        `recover` is called when the tag has been read: it does what was decided before and may not be done.
        """
        try:
            await self._catch_up()
            await recover()
            while True:
                await self._read_ends()
                decision = self._state.decide(self._now_us())
                if decision is None:
                    if await self._keep():
                        break
                elif await self._append(decision):
                    await self._act(decision)
                    continue
                await recover()  # something came first: another attendant may have decided, and be lost
        except BokiError as error:
            self._ctx.log.warning("%s continues in a moment: %s", self._tag, error)
            raise Suspend(self._now_us() + _PAUSE_US) from None  # what it has not read would wake it at once
        raise self._suspension(self._state.next_us())

    def _suspension(self, wake_us: int) -> Suspend:
        ends = ends_of(self._ctx.invocation_id, max(self._ends_next, self._state.ends_from))
        wakes = [WakeOn(self._book.name, self._tag, self._next_start), ends, *self._others()]
        if len(wakes) > MAX_WAKES:
            again_us = self._now_us() + _LOOK_US
            wake_us = min(wake_us or again_us, again_us)
        return Suspend(wake_us, wakes[:MAX_WAKES])

    async def _catch_up(self) -> None:
        while True:
            page = await until_answered(
                partial(self._book.read, self._tag, start=self._next_start, limit=_PAGE_RECORDS)
            )
            if not page.records:
                return
            for record in page.records:
                note: Any = self._codec.own(record.data)
                if note is not None:
                    self._state.apply(record.seqnum, record.time, note)
                self._state.last_seqnum = record.seqnum
            self._next_start = page.next_start

    async def _append(self, note: Any) -> bool:
        """Whether it is the next record of the tag; if not, what came in between was folded."""
        try:
            seqnum = await self._book.append(
                self._codec.encode(note),
                [self._tag, *self._told(note)],
                when=Expect(self._tag, self._state.last_seqnum),
            )
        except ConditionFailed:
            await self._catch_up()
            return False
        self._state.apply(seqnum, self._now_us(), note)
        self._next_start = seqnum + 1
        return True

    async def _read_ends(self) -> None:
        ends = ends_of(self._ctx.invocation_id)
        book = self._ctx.logbook_named(ends.book)
        self._ends_next = max(self._ends_next, self._state.ends_from)
        while True:
            read = partial(book.read, ends.tag, start=self._ends_next, limit=_PAGE_RECORDS)
            page = await until_answered(read)
            if not page.records:
                return
            self._ends_next = page.next_start
            for record in page.records:
                for tag in record.tags:
                    if tag.startswith("id:"):
                        self._state.end(tag.removeprefix("id:"), record.seqnum + 1)

    async def _keep(self) -> bool:
        """Write the whole state down, if that is due. False: something else came first, and is to be decided on. While
        it does not fit a record, such as with thousands that wait, the tag is read from where it was written down last.
        """
        if self._state.unsaved >= _KEPT_EVERY:
            with suppress(TooLarge):  # no error that passes, for which another run would begin soon
                if not await self._append(self._state.kept()):
                    return False
                await self._book.trim(self._state.last_seqnum, tag=self._tag)
        return True
