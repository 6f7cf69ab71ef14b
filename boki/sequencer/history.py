"""Ended terms, made whole: a sequencer that lacks some of a metalog fetches it from the others of that term.

A term ends when a majority holds it, so the others may lack some, and one that lost its disk lacks everything. Until a
checkpoint covers a term its metalog must survive further losses, so each sequencer makes itself whole, term by term.
How far it has come is durable: a start does not look at every term again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from boki.log.ids import LogId, NodeId, Term
from boki.log.view import ViewChain
from boki.protocol.effects import DiskReader, Effect, Put, Send, Store
from boki.protocol.messages import FetchMetalog, Metalog
from boki.sequencer.metalog_store import MetalogStore, whole_key

_REPEAT_US: Final = 500_000
_TERMS_PER_TICK: Final = 50


class History:
    """`find(term, log)` is this node's metalog of a term, None if it has no part in it or all of it was dropped."""

    def __init__(
        self, node: NodeId, disk: DiskReader, chain: ViewChain, find: Callable[[Term, LogId], MetalogStore | None]
    ) -> None:
        self.term = int(disk.get(whole_key()) or 1)
        """Every ended term below is whole here."""
        self._node = node
        self._chain = chain
        self._find = find
        self._ask_at = 0
        self._asked = 0

    def tick(self, now_us: int) -> list[Effect]:
        """Continue to the next term that lacks something, and ask for it."""
        if not self._chain or now_us < self._ask_at:
            return []
        before = self.term
        self.term = max(self.term, self._chain.first_term)
        last = min(self._chain.current.term, self.term + _TERMS_PER_TICK)
        while self.term < last and not self._lacking():
            self.term += 1
        effects: list[Effect] = []
        if self.term > before:
            effects.append(Store([Put(whole_key(), str(self.term).encode())]))
        if self.term < last:
            self._ask_at = now_us + _REPEAT_US
            self._asked += 1
            effects += [self._ask(store) for store in self._lacking()]
        return effects

    @property
    def is_at_work(self) -> bool:
        """Whether ended terms are left to look at."""
        return bool(self._chain) and self.term < self._chain.current.term

    def take(self, message: Metalog) -> list[Effect]:
        """A page of what was asked for: the writes that keep it, and the question for the next one."""
        if message.term != self.term or message.term not in self._chain:
            return []
        store = self._find(message.term, message.log)
        end = self._chain.end_of(message.term, message.log) if store is not None else None
        if store is None or end is None or message.first_index > store.length:
            return []
        before = store.length
        puts = store.add("fill", message.first_index, message.entries[: max(0, end - message.first_index)])
        if store.length == before:
            return []
        return [Store(puts), *([self._ask(store)] if store.length < end else [])]

    def _lacking(self) -> list[MetalogStore]:
        found = [self._find(self.term, log) for log in range(self._chain[self.term].log_count)]
        ends = [self._chain.end_of(self.term, log) or 0 for log in range(len(found))]
        return [store for store, end in zip(found, ends, strict=True) if store is not None and store.length < end]

    def _ask(self, store: MetalogStore) -> Effect:
        others = [node for node in self._chain[store.term].sequencers if node != self._node] or [self._node]
        return Send(others[self._asked % len(others)], FetchMetalog(store.term, store.log, store.length))
