"""Classes of replicated objects for the tests."""

from __future__ import annotations

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
    """The code of another day."""

    version = 2


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


class Named(ReplicatedObject):
    """It cannot be made where only its class is known."""

    def __init__(self, name: str) -> None:
        self.name = name
