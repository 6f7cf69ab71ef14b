"""Following the metalogs: which entry comes next, which are missing, and when a term is over.

Entries come in messages that may be lost, repeated or out of order. A follower hands them out strictly by index, and
goes to term t+1 only when **every** log of term t has been applied to the end that the next view names, because a book
may have moved from one log to another. Engines and storage nodes both follow; how they apply is their own affair.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from boki.log.ids import LogId, NodeId, Term
from boki.log.metalog import MetalogEntry, Positions, make_position, split_position
from boki.log.view import View, ViewChain
from boki.protocol.messages import EntriesDropped, FetchMetalog, Metalog

COORDINATOR: Final = NodeId("coordinator")
"""Where views are fetched from."""

_BUFFERED_ENTRIES = 100_000
"""Entries farther ahead than this are dropped and fetched again."""
_FETCH_INTERVAL_US = 150_000
"""A fetch that was not answered is repeated, to the next sequencer."""
_FIRST_INTERVAL_US = 60_000
"""The same while nobody has answered at all: a term begins, and appends wait."""
_SILENCE_US = 1_000_000
"""An idle primary repeats the committed index more often than this; longer silence is worth a question."""


class _Log:
    """One log of the current term: what has come, what comes next."""

    __slots__ = ("committed", "entries", "fetch_count", "fetched_at", "has_heard", "heard_at", "next_index")

    def __init__(self, next_index: int) -> None:
        self.next_index = next_index
        self.committed = 0
        self.entries: dict[int, MetalogEntry] = {}
        self.heard_at = 0
        self.has_heard = False
        self.fetched_at = 0
        self.fetch_count = 0


class MetalogFollower:
    """`applied`: how far the owner had come when it was stopped; empty if it begins at the chain's first term."""

    def __init__(self, applied: Positions) -> None:
        self.chain = ViewChain()
        self.term: Term = 0
        self._applied = applied
        self._logs: dict[LogId, _Log] = {}

    def install(self, views: Iterable[View]) -> bool:
        """Take in views; True if any was new. One that follows a gap is left out: its owner fetches what is between."""
        news = [self.chain.add(view) for view in views if not self.chain or self._follows(view.term)]
        if self.term == 0 and self.chain:
            start = max((split_position(position)[0] for position in self._applied.values()), default=0)
            self._begin(max(start, self.chain.first_term))
        return any(news)

    def _follows(self, term: Term) -> bool:
        return self.chain.first_term <= term <= self.chain.current.term + 1

    def _begin(self, term: Term) -> None:
        self.term = term
        self._logs = {}
        for log in range(self.chain[term].log_count):
            applied_term, index = split_position(self._applied.get(log, 0))
            self._logs[log] = _Log(index if applied_term == term else 0)

    @property
    def view(self) -> View:
        """The view of the term that is being followed."""
        return self.chain[self.term]

    @property
    def logs(self) -> Iterable[LogId]:
        """The logs of the term that is being followed."""
        return self._logs.keys()

    def position(self, log: LogId) -> int:
        """The metalog position applied so far."""
        return make_position(self.term, self._logs[log].next_index)

    def offer(self, message: Metalog, now_us: int, sender: NodeId | None = None) -> None:
        """Take in entries of the current term; those of others are dropped (they are fetched when their term comes).

        Who is heard of from a backup is not subscribed at the primary yet, and continues asking.
        """
        log = self._logs.get(message.log)
        if log is None or message.term != self.term:
            return
        log.has_heard = True
        if sender is None or sender == self.view.primaries[message.log]:
            log.heard_at = now_us
        log.committed = max(log.committed, message.committed)
        if message.entries:
            log.fetched_at = 0
        for index, entry in enumerate(message.entries, message.first_index):
            if log.next_index <= index < log.next_index + _BUFFERED_ENTRIES:
                log.entries[index] = entry

    def has_lost(self, message: EntriesDropped) -> bool:
        """Whether the owner needs entries that are kept by nobody any more."""
        log = self._logs.get(message.log)
        return log is not None and message.term == self.term and message.kept_from > log.next_index

    def peek(self, log: LogId) -> tuple[int, MetalogEntry] | None:
        """The next committed entry of the log with its index, if it is here."""
        state = self._logs[log]
        if state.next_index >= state.committed:
            return None
        entry = state.entries.get(state.next_index)
        return None if entry is None else (state.next_index, entry)

    def advance(self, log: LogId) -> None:
        """The entry that `peek` showed is applied."""
        state = self._logs[log]
        del state.entries[state.next_index]
        state.next_index += 1

    def lag(self, log: LogId) -> int:
        """How many entries are known to be committed and not applied."""
        state = self._logs[log]
        ended = self.chain.end_of(self.term, log)
        return max(0, (state.committed if ended is None else ended) - state.next_index)

    def is_at_end(self, log: LogId) -> bool:
        """Whether the log of this term is over and applied to its end."""
        return self._logs[log].next_index == self.chain.end_of(self.term, log)

    def is_caught_up(self) -> bool:
        """Whether the current term of the chain is followed, and all of it that was heard of is applied."""
        return (
            bool(self.chain)
            and self.term == self.chain.current.term
            and all(log.has_heard and log.next_index >= log.committed for log in self._logs.values())
        )

    def next_term(self) -> View | None:
        """Go to the next term if every log of this one is at its end: its view."""
        if self.term + 1 not in self.chain or not all(self.is_at_end(log) for log in self._logs):
            return None  # mostly the first: this term continues
        self._applied = {}
        self._begin(self.term + 1)
        return self.view

    def fetches(self, now_us: int) -> list[tuple[NodeId, FetchMetalog]]:
        """Questions that are due: what is missing, or silence for too long. Call it at every settle and tick."""
        due: list[tuple[NodeId, FetchMetalog]] = []
        for number, log in self._logs.items():
            ended = self.chain.end_of(self.term, number)
            wanted = log.committed if ended is None else ended
            is_lacking = log.next_index < wanted and log.next_index not in log.entries
            if not is_lacking and (ended is not None or now_us - log.heard_at <= _SILENCE_US):
                continue
            if now_us - log.fetched_at < (_FETCH_INTERVAL_US if log.has_heard else _FIRST_INTERVAL_US):
                continue
            whom = self._whom(number, log, is_ended=ended is not None)
            due.append((whom, FetchMetalog(self.term, number, log.next_index)))
            log.fetch_count += 1
            log.fetched_at = now_us
        return due

    def rests_until(self, now_us: int) -> int:
        """Until when `fetches` asks nothing, if nothing is heard; now while entries are lacking or not applied."""
        if not self.is_caught_up():
            return now_us
        return min((log.heard_at + _SILENCE_US for log in self._logs.values()), default=now_us)

    def _whom(self, number: LogId, log: _Log, *, is_ended: bool) -> NodeId:
        """While the term continues every other question goes to the primary: its subscriptions are those that matter.

        When it is over the primary comes last: its end may be why the term ended.
        """
        view = self.view
        at = view.sequencers.index(view.primaries[number])
        others = [*view.sequencers[at + 1 :], *view.sequencers[:at]]
        if is_ended:
            order = [*others, view.primaries[number]]
            return order[log.fetch_count % len(order)]
        if not others or log.fetch_count % 2 == 0:
            return view.primaries[number]
        return others[log.fetch_count // 2 % len(others)]
