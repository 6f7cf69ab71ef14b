"""Transactions as a history has them: what each has read and written, and what its caller was told.

Two kinds of objects are checked: lists, to which transactions append elements (`boki.verify.histories.lists`), and
registers, which they overwrite (`boki.verify.histories.registers`). An element is appended, and a value written, by one
transaction only, so that a read tells whose write it has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Told = Literal["ok", "fail", "info"]
"""Committed for certain, aborted for certain, or nobody knows."""
Value = int | None


@dataclass(frozen=True, slots=True)
class Wrote:
    """A list was appended to, or a register overwritten."""

    key: str
    value: int


@dataclass(frozen=True, slots=True)
class Read:
    """What a list held."""

    key: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadRegister:
    """What a register held; None: it was never written."""

    key: str
    value: Value


Op = Wrote | Read | ReadRegister


@dataclass(frozen=True, slots=True)
class Txn:
    """One transaction. `asked` and `told_at` are times on one clock; without them it is in no order of time."""

    number: int
    ops: tuple[Op, ...]
    told: Told = "ok"
    process: int | None = None
    asked: float | None = None
    told_at: float | None = None

    @property
    def has_happened(self) -> bool:
        """Whether its writes may be in the order."""
        return self.told != "fail"

    @property
    def writes(self) -> Iterator[Wrote]:
        """What it wrote, in order."""
        return (op for op in self.ops if isinstance(op, Wrote))


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that no serial order explains. `name` as in Elle and in Adya's theses; `text` says what was seen."""

    name: str
    text: str


def parse(text: str, *, registers: bool = False) -> tuple[Op, ...]:
    """Operations from Elle's notation: "ax1ry12" appends 1 to x and reads y as [1, 2], "wx1ry_" is of registers.

    >>> parse("ax1ry12")
    (Wrote(key='x', value=1), Read(key='y', values=(1, 2)))
    >>> parse("wx1ry_", registers=True)
    (Wrote(key='x', value=1), ReadRegister(key='y', value=None))
    """
    ops: list[Op] = []
    at = 0
    while at < len(text):
        verb, key = text[at], text[at + 1]
        at += 2
        start = at
        while at < len(text) and (text[at].isdigit() or text[at] == "_"):
            at += 1
        digits = text[start:at]
        if verb in "aw":
            ops.append(Wrote(key, int(digits)))
        elif registers:
            ops.append(ReadRegister(key, None if digits == "_" else int(digits)))
        else:
            ops.append(Read(key, tuple(map(int, digits.replace("_", "")))))
    return tuple(ops)


def told(txns: Iterable[Txn]) -> dict[int, Txn]:
    """Transactions by number."""
    return {txn.number: txn for txn in txns}
