"""Reads the inbox of a workflow: first what a replay needs, then what comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from boki import BokiError, LogBook
from boki.libs.bokiflow.gates.records import Admission, Asked, GateKept
from boki.libs.bokiflow.locks.state import Queued
from boki.libs.bokiflow.records import CancelRequested, Note, Paused, Resumed, message_of
from boki.libs.fold.retrying import until_answered

PAGE_RECORDS: Final = 1_000
_POLL_S: Final = 5.0
"""How long one read waits. A read that is given up before ends at its engine, too."""
_PAUSE_S: Final = 1.0


class Letter(NamedTuple):
    """A message with its place in the log."""

    seqnum: int
    time_us: int
    note: Note
    stood_at: int = 0
    """Where the message stood that this one is a copy of; 0: it is none."""


def letter_of(data: bytes, seqnum: int, time_us: int) -> Letter | None:
    """The message of that record; None: it is a stranger's."""
    message = message_of(data)
    if message is None or isinstance(message.note, Queued | Asked | GateKept):
        return None
    return Letter(seqnum, message.at_us or time_us, message.note, message.stood_at)


def heard_of(letter: Letter, forgotten: Sequence[tuple[int, int, int]], lives: Collection[int] = ()) -> Letter | None:
    """The message as the life that reads hears it; None: it is a request that is not for that: see `History.forgotten`.
    `lives`: those whose history it has, if known. A request may name another one, which had ended when it came.

    A limit may have let one workflow begin and cancelled another one in one record: only the second part is forgotten.
    """
    seqnum, time_us, note = letter.seqnum, letter.time_us, letter.note
    if lives and isinstance(note, CancelRequested | Paused | Resumed) and note.life and note.life not in lives:
        return None
    if not any(low < seqnum < high and (not until_us or time_us <= until_us) for low, high, until_us in forgotten):
        return letter
    match note:
        case CancelRequested() | Paused() | Resumed():
            return None
        case Admission(cancelled=cancelled) as decided if cancelled:
            return letter._replace(note=msgspec.structs.replace(decided, cancelled=()))
        case _:
            return letter


def unawaited() -> None:
    """What a reader calls that does not follow the inbox."""


class InboxReader:
    """The messages behind a cursor, in order. `arrived` is called when there are more, while it follows, and `between`
    every few seconds.
    """

    def __init__(
        self,
        logbook: LogBook,
        tag: str,
        cursor: int,
        taken: Collection[int],
        arrived: Callable[[], None],
        forgotten: Sequence[tuple[int, int, int]] = (),
        between: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._between = between
        self._logbook = logbook
        self._tag = tag
        self._taken = taken
        self._arrived = arrived
        self._forgotten = forgotten
        self._task: asyncio.Task[None] | None = None
        self.letters: deque[Letter] = deque()
        """What was read and not delivered."""
        self.next_start = cursor + 1
        """Where to read next."""
        self.passed: list[int] = []
        """Messages that were read and are forgotten, maybe in part: the next round is not given them."""
        self.lives: Collection[int] = ()
        """See `heard_of`."""
        self.vet: Callable[[], Awaitable[bool]] | None = None
        """Asked before the first messages are taken in: whether they may be."""

    async def read_to(self, seqnum: int) -> None:
        """Read all messages up to this one."""
        while self.next_start <= seqnum and await self._read_what_is_there():
            pass

    async def read_to_end(self) -> None:
        """Read all messages that there are."""
        while await self._read_what_is_there():
            pass

    def follow(self) -> None:
        """Read on, from here to the end of the execution."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _follow(self) -> None:
        while True:
            try:
                found = await self._read(_POLL_S)
            except BokiError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(_PAUSE_S)
                continue
            if found:
                self._arrived()
            if self._between is not None:
                await self._between()

    async def _read_what_is_there(self) -> bool:
        """Read a page without waiting for records. A refusal that may pass must not end the workflow."""
        return await until_answered(partial(self._read, 0.0), "an inbox")

    async def _read(self, wait_s: float) -> bool:
        """Read a page; whether it had anything."""
        page = await self._logbook.read(self._tag, start=self.next_start, limit=PAGE_RECORDS, wait_s=wait_s)
        if page.records and self.vet is not None:
            if not await self.vet():
                return False
            self.vet = None
        for record in page.records:
            letter = letter_of(record.data, record.seqnum, record.time)
            if letter is None or record.seqnum < self.next_start or record.seqnum in self._taken:
                continue
            heard = heard_of(letter, self._forgotten, self.lives)
            if heard is not letter:  # a continuation leaves it out: what says that it is forgotten is trimmed then
                self.passed.append(letter.seqnum)
            if heard is not None:
                self.letters.append(heard)
        if page.records:
            self.next_start = max(self.next_start, page.records[-1].next_seqnum)
        return bool(page.records)
