"""Which connections a gateway keeps when more come than it may have. A decision: it knows no sockets.

A connection is a **stranger** until a request on it was let in. When the gateway is full, or one address has its share
of strangers, the oldest stranger that had time to say something makes room, so a flood of silent connections cannot
keep others out. A connection that finds no room becomes a **guest**, until newer guests need its place: probes are
always answered, so that an orchestrator does not restart a gateway for being busy. A guest whose request may be let in
takes the place of the oldest stranger, however young: it has said something, and the stranger has not. Members, which
were let in once, are never put out.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

MAX_GUESTS: Final = 32
STRANGER_S: Final = 1.0
"""A stranger has at least this long to send a request before it may have to make room."""

Connection = TypeVar("Connection", bound=Hashable)


class _Queue(Generic[Connection]):
    """Connections of one kind, the oldest first, in all and by address."""

    def __init__(self, max_per_address: int) -> None:
        self.max_per_address = max_per_address
        self.all: dict[Connection, tuple[str, float]] = {}
        self._by_address: dict[str, dict[Connection, None]] = {}

    def add(self, one: Connection, address: str, now_s: float) -> None:
        self.all[one] = (address, now_s)
        self._by_address.setdefault(address, {})[one] = None

    def remove(self, one: Connection) -> None:
        found = self.all.pop(one, None)
        if found is None:
            return
        others = self._by_address[found[0]]
        del others[one]
        if not others:
            del self._by_address[found[0]]

    def is_full_for(self, address: str) -> bool:
        return len(self._by_address.get(address, ())) >= self.max_per_address

    def oldest(self, born_before_s: float, address: str | None = None) -> Connection | None:
        """The oldest one, of that address or of all, if it is old enough."""
        one = next(iter(self.all if address is None else self._by_address.get(address, ())), None)
        return one if one is not None and self.all[one][1] <= born_before_s else None


class Crowd(Generic[Connection]):
    """The connections of one gateway: at most `max_count`, and `MAX_GUESTS` besides. Times are seconds."""

    def __init__(self, max_count: int) -> None:
        self.max_count = max_count
        self._taken: set[Connection] = set()
        self._strangers: _Queue[Connection] = _Queue(max(2, max_count // 4))
        self._guests: _Queue[Connection] = _Queue(MAX_GUESTS // 2)

    def arrive(self, one: Connection, address: str, now_s: float) -> Connection | None:
        """A new connection is a stranger, or a guest (`is_guest`). Returns the one that is to be closed for it."""
        strangers, guests = self._strangers, self._guests
        is_crowded = strangers.is_full_for(address)
        out = None
        if is_crowded or len(self._taken) >= self.max_count:
            out = strangers.oldest(now_s - STRANGER_S, address if is_crowded else None)
        if out is not None:
            self.leave(out)
        if len(self._taken) < self.max_count and not strangers.is_full_for(address):
            self._taken.add(one)
            strangers.add(one, address, now_s)
            return out
        is_crowded = guests.is_full_for(address)
        if is_crowded or len(guests.all) >= MAX_GUESTS:
            out = guests.oldest(now_s, address if is_crowded else None)
            if out is not None:
                self.leave(out)
        guests.add(one, address, now_s)
        return out

    def know(self, one: Connection) -> Connection | None:
        """A request on it may be let in: it becomes a member, unless all places are taken by members, and it stays the
        guest that it was. Returns the stranger that is to be closed for it. Repeatable.
        """
        self._strangers.remove(one)
        if not self.is_guest(one):
            return None
        out = None
        if len(self._taken) >= self.max_count:
            out = self._strangers.oldest(math.inf)
            if out is None:
                return None
            self.leave(out)
        self._guests.remove(one)
        self._taken.add(one)
        return out

    def is_guest(self, one: Connection) -> bool:
        """Whether it has no place of its own: only probes are answered on it."""
        return one in self._guests.all

    def leave(self, one: Connection) -> None:
        """It is closed. Repeatable."""
        self._guests.remove(one)
        self._strangers.remove(one)
        self._taken.discard(one)
