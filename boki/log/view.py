"""Views: who sequences and stores in a term, where books live in it, and the chain of views that tells history.

A term is the time between two seals. Its view is installed once and never changed. The view of term t+1 names where
every log of term t ended: metalog entries at or above that end never existed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b

import msgspec

from boki.errors import ConfigError
from boki.log.ids import MAX_LOG, MAX_TERM, LogId, NodeId, Term
from boki.log.quorum import majority


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One term: its members and rules. Checked when made; `ConfigError` lists what cannot work."""

    term: Term
    log_count: int
    sequencers: tuple[NodeId, ...]
    """All that hold the metalogs of this term. A majority of them decides."""
    primaries: tuple[NodeId, ...]
    """Per log, the one sequencer that appends."""
    incarnations: dict[NodeId, int]
    """The sequencers' incarnations: one that lost its disk is another one, and does not count."""
    storage: tuple[NodeId, ...]
    """Where new shards may be placed."""
    replicas: int
    write_quorum: int
    previous_ends: tuple[int, ...] = ()
    """Per log of the term before, how many of its metalog entries exist."""
    start_time_us: int = 0
    """No cut of this term is stamped earlier: the log's time never goes back, also across terms."""
    beside: tuple[NodeId, ...] = ()
    """Per sequencer, the storage node of its process, if cuts of this term may run ahead of reports; else none."""

    def __post_init__(self) -> None:
        problems = []
        if not 1 <= self.term <= MAX_TERM:
            problems.append(f"a term is at least 1 and at most {MAX_TERM}, not {self.term}")
        if not 1 <= self.log_count <= MAX_LOG or len(self.primaries) != self.log_count:
            problems.append(f"{self.log_count} logs need as many primaries, and at most {MAX_LOG}")
        if not set(self.primaries) <= set(self.sequencers):
            problems.append("every primary must be one of the sequencers")
        for what, members in (("sequencers", self.sequencers), ("storage nodes", self.storage)):
            if len(set(members)) != len(members):
                problems.append(f"the {what} must be different ones, or a quorum could be one node")
        if not set(self.sequencers) <= self.incarnations.keys():
            problems.append("every sequencer needs its incarnation")
        if self.beside and len(set(self.beside)) != len(self.sequencers):
            problems.append("where cuts run ahead, each sequencer needs a storage node of its own")
        if not 1 <= self.write_quorum <= self.replicas:
            problems.append(f"write_quorum {self.write_quorum} must be in 1..replicas ({self.replicas})")
        if self.replicas > len(self.storage):
            problems.append(f"{self.replicas} replicas need as many storage nodes, and there are {len(self.storage)}")
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def sequencer_majority(self) -> int:
        """How many sequencers must hold an entry before it counts."""
        return majority(len(self.sequencers))

    def is_beside(self, sequencer: NodeId, storage: NodeId) -> bool:
        """Whether these two are one process, by this view, and cuts may run ahead."""
        return storage in self.beside and self.sequencers[self.beside.index(storage)] == sequencer

    def runs_ahead(self, replicas: tuple[NodeId, ...]) -> bool:
        """Whether cuts may name records of a shard on these replicas that no write quorum has reported.

        A majority of the sequencers that hold such a cut is then a write quorum of replicas that hold the records.
        """
        return set(replicas) == set(self.beside) and self.write_quorum <= self.sequencer_majority

    def log_of(self, book: str) -> LogId:
        """The physical log that holds the book's records of this term."""
        return place_book(book, self.log_count)


@lru_cache(maxsize=65_536)
def place_book(book: str, log_count: int) -> LogId:
    """Rendezvous hashing: every (book, log) pair draws a number, and the highest wins.

    One log more takes over only the books that it wins, so only its share of the books moves.
    """
    if log_count == 1:
        return 0
    return max(range(log_count), key=lambda log: blake2b(f"{log}/{book}".encode(), digest_size=8).digest())


class ViewChain:
    """All views in order, from the first that still has records to the current one."""

    def __init__(self, views: tuple[View, ...] = ()) -> None:
        self._views: dict[Term, View] = {}
        self._current: View | None = None
        for view in views:
            self.add(view)

    def add(self, view: View) -> bool:
        """Take in the next view; False if it is already here. A gap is a bug of the caller."""
        if view.term in self._views:
            assert self._views[view.term] == view, "a view is installed once and never changed"
            return False
        if self._views and view.term != self.current.term + 1:
            raise ValueError(f"the view of term {view.term} came after that of term {self.current.term}")
        self._views[view.term] = self._current = view
        return True

    def __bool__(self) -> bool:
        return bool(self._views)

    def __contains__(self, term: Term) -> bool:
        return term in self._views

    def __getitem__(self, term: Term) -> View:
        return self._views[term]

    @property
    def current(self) -> View:
        """The newest view. There must be one."""
        assert self._current is not None, "nobody asks for the current view before there is one"
        return self._current

    @property
    def first_term(self) -> Term:
        """The oldest term known."""
        return next(iter(self._views))

    def end_of(self, term: Term, log: LogId) -> int | None:
        """How many metalog entries the log has in that term; None while the term continues."""
        following = self._views.get(term + 1)
        return None if following is None else following.previous_ends[log]

    def __iter__(self) -> Iterator[View]:
        return iter(self._views.values())
