"""What an engine wants in the metalogs: trims, shards opened and closed, lost engines fenced.

A request is repeated to the log's primary until the entry shows up in the metalog; the primary drops doubles. Requests
go out only while this engine follows the newest term: until then the term before may still hold the entry.

**Trims go out in a window.** A primary takes an old number for a late repetition once it remembers 10,000 higher ones
(`boki.sequencer.primary`). So no trim overtakes the oldest one of its log that has not shown up by more than
`TRIM_WINDOW` others of that log.

**Fences.** `CloseShard(is_lost=True)` keeps a whole incarnation of an engine from appending to one log for the rest of
the term. A fence is complete when every log of the term has it. It is also complete when the term ends and one log had
it: the lost engine, if it lives, applies that log before it can open a shard of the next term, and stops there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

import msgspec

from boki.engine.waiter import Ended, Unstamped, Waiter
from boki.errors import ConnectionLost, DeadlineExceeded, Unavailable
from boki.log.ids import LogId, NodeId, ShardId, Term, make_shard, shard_incarnation
from boki.log.metalog import CloseShard, ForgetTags, MetalogEntry, OpenShard, Trim, Trims
from boki.log.operations import Done, TrimBook
from boki.log.view import View
from boki.protocol.effects import Send
from boki.protocol.messages import RequestEntry

Fenced = tuple[tuple[Term, LogId], set[int]]
"""A log of a term, and the incarnations that it has fenced."""

_REPEAT_US: Final = 200_000
TRIM_WINDOW: Final = 1_000
"""As many requests as a primary keeps while a proposal is in flight."""


@dataclass(slots=True)
class _PendingTrim:
    """A trim that has not shown up in the metalog yet."""

    trim: Trims
    waiter: Waiter
    deadline_us: int
    window: _TrimWindow | None = None
    """That of its log in the newest term."""
    place: int = 0


@dataclass(slots=True)
class _TrimWindow:
    """The pending trims of one log, by place: in the order of their numbers."""

    trims: dict[int, _PendingTrim] = field(default_factory=dict)
    _oldest: int = 0
    _next: int = 0

    @property
    def end(self) -> int:
        """Trims with places from this one on wait for older ones."""
        while self._oldest < self._next and self._oldest not in self.trims:
            self._oldest += 1
        return self._oldest + TRIM_WINDOW

    def add(self, pending: _PendingTrim) -> bool:
        """Give it a place. → whether it may go out at once"""
        pending.window, pending.place = self, self._next
        self.trims[self._next] = pending
        self._next += 1
        return pending.place < self.end

    def remove(self, pending: _PendingTrim) -> list[_PendingTrim]:
        """→ those that may go out now"""
        before = self.end
        del self.trims[pending.place]
        return [self.trims[place] for place in range(before, min(self.end, self._next)) if place in self.trims]

    def admitted(self) -> Iterable[_PendingTrim]:
        """Those that may go out."""
        end = self.end
        return takewhile(lambda pending: pending.place < end, self.trims.values())


@dataclass(slots=True)
class _PendingFence:
    """A fence that some logs of the term do not have yet."""

    incarnation: int
    waiter: Waiter
    deadline_us: int


@dataclass(slots=True)
class Requests:
    """All of one engine. `fenced`: which incarnations each log of the term has fenced so far; saved with the index."""

    fenced: dict[tuple[Term, LogId], set[int]] = field(default_factory=dict)
    opening: dict[LogId, OpenShard] = field(default_factory=dict)
    _closing: dict[ShardId, LogId] = field(default_factory=dict)
    _trims: dict[int, _PendingTrim] = field(default_factory=dict)
    _windows: dict[LogId, _TrimWindow] = field(default_factory=dict)
    _windows_term: Term = 0
    _fences: list[_PendingFence] = field(default_factory=list)
    _repeat_at: int = 0

    def begin_term(self, term: Term) -> list[Unstamped]:
        """All logs of the terms before are applied to their ends: shards are over, and so are fences that held."""
        over = [place for place in self.fenced if place[0] < term]
        has_held = {incarnation for place in over for incarnation in self.fenced.pop(place)}
        ended = [fence for fence in self._fences if fence.incarnation in has_held]
        self._fences = [fence for fence in self._fences if fence.incarnation not in has_held]
        self.opening.clear()
        self._closing.clear()
        self._repeat_at = 0
        return [Ended(fence.waiter, Done()) for fence in ended]

    # wanting

    def trim(self, trim: Trims, waiter: Waiter, deadline_us: int, view: View | None) -> list[Unstamped]:
        """Want a trim. `view` is that of the newest term, None while an older one is followed."""
        if view is not None:
            self._arrange(view)
        pending = self._trims[trim.request] = _PendingTrim(trim, waiter, deadline_us)
        if view is None or not self._join(pending, view):
            return []
        return [_request(view, view.log_of(trim.book), trim)]

    def _arrange(self, view: View) -> None:
        """Deal pending trims to the logs of the newest term, whose primaries remember nothing of the one before."""
        if view.term != self._windows_term:
            self._windows_term, self._windows = view.term, {}
            for pending in self._trims.values():
                self._join(pending, view)

    def _join(self, pending: _PendingTrim, view: View) -> bool:
        return self._windows.setdefault(view.log_of(pending.trim.book), _TrimWindow()).add(pending)

    def fence(self, incarnation: int, waiter: Waiter, deadline_us: int, view: View | None) -> list[Unstamped]:
        """Want an incarnation fenced; `Done` when it is."""
        fence = _PendingFence(incarnation, waiter, deadline_us)
        if view is not None and not self._unfenced(incarnation, view):
            return [Ended(waiter, Done())]
        self._fences.append(fence)
        return list(self._requests_of(fence, view)) if view is not None else []

    def open(self, log: LogId, shard: OpenShard, view: View | None) -> list[Unstamped]:
        """Want a shard open."""
        self.opening[log] = shard
        return [_request(view, log, shard)] if view is not None else []

    def close(self, log: LogId, shard: ShardId, view: View | None) -> list[Unstamped]:
        """Want a shard of this engine closed. Wanting it again does nothing."""
        if shard in self._closing:
            return []
        self._closing[shard] = log
        return [_request(view, log, CloseShard(shard))] if view is not None else []

    # showing up

    def note(self, log: LogId, entry: MetalogEntry, view: View) -> list[Unstamped]:
        """An entry has been applied, in the term of `view`."""
        match entry:
            case OpenShard(shard) if log in self.opening and self.opening[log].shard == shard:
                del self.opening[log]
            case Trim(request=request) | ForgetTags(request=request):
                pending = self._trims.get(request)
                if pending is not None and pending.trim == entry:
                    admitted = self._end_trim(request)
                    # dealt to the logs of another term than this one, they wait for the next tick
                    trims = [other.trim for other in admitted] if view.term == self._windows_term else []
                    return [Ended(pending.waiter, Done()), *(_request(view, log, trim) for trim in trims)]
            case CloseShard(shard, is_lost):
                self._closing.pop(shard, None)
                if is_lost:
                    self.fenced.setdefault((view.term, log), set()).add(shard_incarnation(shard))
                    return self._end_fences(view)
        return []

    def _end_trim(self, number: int) -> list[_PendingTrim]:
        pending = self._trims.pop(number)
        return pending.window.remove(pending) if pending.window is not None else []

    def _end_fences(self, view: View) -> list[Unstamped]:
        ended = [fence for fence in self._fences if not self._unfenced(fence.incarnation, view)]
        self._fences = [fence for fence in self._fences if fence not in ended]
        return [Ended(fence.waiter, Done()) for fence in ended]

    def _unfenced(self, incarnation: int, view: View) -> list[LogId]:
        return [log for log in range(view.log_count) if incarnation not in self.fenced.get((view.term, log), ())]

    # time

    @property
    def is_at_work(self) -> bool:
        """Whether anything has not shown up yet."""
        return bool(self.opening or self._closing or self._trims or self._fences)

    def tick(self, view: View | None, now_us: int) -> Iterable[Unstamped]:
        """Repeat what has not shown up, and give up waiting for what is late."""
        for number in [number for number, pending in self._trims.items() if pending.deadline_us < now_us]:
            late = DeadlineExceeded("the trim was not ordered before its deadline; it may be still")
            yield Ended(self._trims[number].waiter, late)
            self._end_trim(number)
        for fence in [fence for fence in self._fences if fence.deadline_us < now_us]:
            self._fences.remove(fence)
            yield Ended(
                fence.waiter, DeadlineExceeded("the fence was not ordered before its deadline; it may be still")
            )
        if view is None:
            return
        for log, shard in self.opening.items():
            yield _request(view, log, shard)  # appends wait for it
        if now_us < self._repeat_at:
            return
        self._repeat_at = now_us + _REPEAT_US
        for number, log in self._closing.items():
            yield _request(view, log, CloseShard(number))
        self._arrange(view)
        for log, window in self._windows.items():
            for pending in window.admitted():
                yield _request(view, log, pending.trim)
        for fence in self._fences:
            yield from self._requests_of(fence, view)

    def _requests_of(self, fence: _PendingFence, view: View) -> Iterable[Unstamped]:
        entry = CloseShard(make_shard(fence.incarnation, 0), is_lost=True)
        return [_request(view, log, entry) for log in self._unfenced(fence.incarnation, view)]

    def abandon(self) -> Iterable[Unstamped]:
        """This engine has been fenced: end all pending requests."""
        waiters = [pending.waiter for pending in self._trims.values()] + [fence.waiter for fence in self._fences]
        self._trims.clear()
        self._windows.clear()
        self._fences.clear()
        lost = ConnectionLost("this engine was fenced while it waited for the order; repeat it")
        return [Ended(waiter, lost) for waiter in waiters]


def trim_entry(operation: TrimBook, engine: NodeId, number: int, *, may_forget: bool) -> Trims:
    """The entry that a trim asks for. `may_forget`: every node reads `ForgetTags`; else that is refused."""
    book, before, tag, everything, forgets = msgspec.structs.astuple(operation)
    if not forgets:
        return Trim(book, tag, before, everything, engine, number)
    if not may_forget:
        raise Unavailable(
            "a node of this cluster has a version of Boki that cannot forget tags: upgrade it, and repeat this",
            retry_after_s=1,
        )
    return ForgetTags(book, forgets, before, engine, number)


def _request(view: View, log: LogId, entry: MetalogEntry) -> Send:
    return Send(view.primaries[log], RequestEntry(view.term, log, entry))
