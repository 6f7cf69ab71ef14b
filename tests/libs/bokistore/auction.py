"""Classes of replicated objects for the tests."""

from __future__ import annotations

from collections import Counter
from random import random
from typing import Any

from boki.libs.bokistore import ReplicatedObject, accessor, mutator


class Auction(ReplicatedObject):
    """The highest bid counts."""

    def __init__(self) -> None:
        self.best = 0
        self.who = ""
        self.bids: list[list[Any]] = []

    @mutator
    def bid(self, who: str, amount: int) -> bool:
        """Whether it is the highest so far."""
        self.bids.append([who, amount])
        if amount < 0:
            raise ValueError("a bid is not negative")
        if amount <= self.best:
            return False
        self.best, self.who = amount, who
        return True

    @accessor
    def winner(self) -> str:
        """Who has bid most."""
        return self.who

    @accessor
    def all_bids(self) -> list[list[Any]]:
        """All of them."""
        return self.bids

    def helper(self) -> None:
        """Neither of both."""


class LaterAuction(Auction):
    """The code of another day: amounts are in smaller units."""

    version = 2

    @mutator
    def bid(self, who: str, amount: int) -> bool:
        """Whether it is the highest so far."""
        return super().bid(who, 10 * amount)


class Careless(ReplicatedObject):
    """Not deterministic, in two ways."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.number = 0.0

    @mutator
    def note(self, *names: str) -> None:
        """In the order of a set."""
        self.seen += set(names)

    @mutator
    def draw(self) -> None:
        """By chance."""
        self.number = random()


class Hoard(ReplicatedObject):
    """Its state is no JSON."""

    def __init__(self) -> None:
        self.kept: set[int] = set()

    @mutator
    def keep(self) -> int:
        """Keep one more."""
        self.kept.add(len(self.kept))
        return len(self.kept)

    @accessor
    def count(self) -> int:
        """How many are kept."""
        return len(self.kept)


class Words(ReplicatedObject):
    """Its state is no JSON either, but looks like it: a `Counter` comes back as a dict."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @mutator
    def add(self, word: str) -> int:
        """How often it was added."""
        self.counts[word] += 1
        return self.counts[word]

    @accessor
    def total(self) -> int:
        """How many were added."""
        return self.counts.total()


class Forgetful(Words):
    """It says how it is saved, and not how it is loaded."""

    def to_json(self) -> Any:
        """A plain dict."""
        return {"counts": dict(self.counts)}


class Careful(Forgetful):
    """It says both."""

    def from_json(self, state: Any) -> None:
        """A `Counter` again."""
        self.counts = Counter(state["counts"])


class Shared(ReplicatedObject):
    """One list under two names, which come back as two lists."""

    def __init__(self) -> None:
        self.all: list[int] = []
        self.last = self.all

    @mutator
    def add(self) -> int:
        """The number of items."""
        self.last.append(1)
        return len(self.all)

    @accessor
    def total(self) -> int:
        """The number of items."""
        return len(self.all)


class Named(ReplicatedObject):
    """It cannot be made where only its class is known."""

    def __init__(self, name: str) -> None:
        self.name = name
