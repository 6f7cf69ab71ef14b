"""Makes random programs by a seed: see `programs`."""

from __future__ import annotations

from random import Random
from typing import Final

from tests.libs.bokiflow.programs import Program

_POLICIES: Final = ("cancel", "kill", "abandon")
_LONGEST_S: Final = 60.0
"""The longest timer beside updates: who waits for an answer asks every few seconds, which takes time to run."""


class Generator:
    """Makes programs by a seed."""

    def __init__(self, seed: int, longest_s: float = 1e9, *, threads: bool = True) -> None:
        """`longest_s`: no timer is longer. `threads`: some steps run in one."""
        self.rng = Random(seed)
        self._has_updates = self.rng.random() < 0.5
        self.longest_s = min(longest_s, _LONGEST_S) if self._has_updates else longest_s
        self._failing = "fail" if threads else "break off"
        self._count = 0

    def root(self) -> Program:
        """The program of a workflow that is started from outside."""
        kind = self.rng.choice(["plain", "plain", "rounds", "saga", "interrupted"])
        if kind == "interrupted":
            return self._flat_saga(kind)
        if kind == "saga":
            return self._saga(3, ["returns", "fails", "cancelled", "cancelled", "killed"], has_id=True)
        return self._rounds(3, has_id=True) if kind == "rounds" else self.program(3, has_id=True)

    def program(self, depth: int, *, has_id: bool) -> Program:
        """A program of a workflow; it waits for messages only if its id is known."""
        if depth == 0 or self.rng.random() < 0.3:
            return self._atom(has_id=has_id)
        kind = self.rng.choice(
            ["sequence", "sequence", "together", "group", "in time", "cancelled", "locked", "child", "child", "left"]
        )
        if kind == "child":
            return self._child(depth - 1)
        if kind == "left":
            return self._left(depth - 1, has_id=has_id)
        count = 1 if kind in ("in time", "cancelled") else self.rng.randint(1, 4)
        return [kind, *(self.program(depth - 1, has_id=has_id) for _ in range(count))]

    def _label(self) -> str:
        self._count += 1
        return f"#{self._count}"

    def _atom(self, *, has_id: bool) -> Program:
        rng, label = self.rng, self._label()
        atoms: list[Program] = [
            ["act", label],
            ["put", label],
            ["compute", self._count],
            [self._failing, label],
            self._sleep(),
            ["late", min(rng.choice([0.05, 5.0, 3_600.0]), self.longest_s)],
        ]
        messages: list[Program] = [["receive", label], ["promise", label], ["promise", f"{label}!"]]
        messages += [["update", label]] * (2 * self._has_updates)
        return rng.choice(messages if has_id and rng.random() < 0.4 else atoms)

    def _sleep(self) -> Program:
        return ["sleep", min(self.rng.choice([0.0, 0.05, 1.0, 60.0, 86_400.0]), self.longest_s)]

    def _child(self, depth: int) -> Program:
        """A child of any kind; if its id is known, it may be one that is ended from outside."""
        rng, has_id = self.rng, self.rng.random() < 0.6
        label = self._label() if has_id else ""
        kind = rng.choice(["plain", "rounds", "saga", "interrupted"] if has_id else ["plain", "rounds", "saga"])
        if kind == "interrupted":
            return ["child", label, self._flat_saga(kind)]
        if kind == "saga":
            endings = ["returns", "fails", *(["cancelled", "killed"] if has_id else [])]
            return ["child", label, self._saga(depth, endings, has_id=has_id)]
        make = self._rounds if kind == "rounds" else self.program
        return ["child", label, make(depth, has_id=has_id)]

    def _left(self, depth: int, *, has_id: bool) -> Program:
        """A saga that is left behind, where its parent can be told that it rests, or at any moment."""
        label, policy = self._label(), self.rng.choice(_POLICIES)
        if has_id and self.rng.random() < 0.6:
            return ["left", label, policy, True, self._saga(depth, ["left"], has_id=True, label=label)]
        return ["left", label, policy, False, self._flat_saga("left", label)]

    def _saga(self, depth: int, endings: list[str], *, has_id: bool, label: str = "") -> Program:
        label, ending = label or self._label(), self.rng.choice(endings)
        parts = [self.program(max(depth - 1, 0), has_id=has_id) for _ in range(self.rng.randint(1, 3))]
        if ending in ("cancelled", "killed") and self.rng.random() < 0.4:
            parts.append(["within", self._saga(depth - 1, ["left"], has_id=True)])
        return ["saga", label, ending, *parts]

    def _flat_saga(self, ending: str, label: str = "") -> Program:
        """One whose parts are effects and timers: it may be ended at any moment."""
        label = label or self._label()
        parts = [["act", f"{label} {n}"] if self.rng.random() < 0.7 else self._sleep() for n in range(4)]
        return ["saga", label, ending, *parts[: self.rng.randint(1, 4)]]

    def _rounds(self, depth: int, *, has_id: bool) -> Program:
        rounds = [self.program(max(depth - 1, 0), has_id=has_id) for _ in range(self.rng.randint(2, 4))]
        return ["rounds", self._label(), has_id, *rounds]
