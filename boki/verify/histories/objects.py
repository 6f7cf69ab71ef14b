"""What users of objects may rely on beyond the order of transactions: counts, sums, and effects of the same commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from boki.verify.histories.txns import Told


@dataclass(slots=True)
class Counted:
    """One increment by 1. `number` is what its caller was told; `asked` and `told_at` are moments on one clock."""

    counter: str
    asked: float
    told: Told = "info"
    number: int = 0
    told_at: float = 0.0


def find_wrong_counts(rows: Iterable[Counted], final: Mapping[str, int]) -> Iterator[str]:
    """Increments that were lost, counted twice, given one number, or numbered against the order of time."""
    by_counter: dict[str, list[Counted]] = {name: [] for name in final}
    for row in rows:
        by_counter.setdefault(row.counter, []).append(row)
    for name, mine in by_counter.items():
        acknowledged = [row for row in mine if row.told == "ok"]
        possible = sum(row.told != "fail" for row in mine)
        value = final.get(name, 0)
        if not len(acknowledged) <= value <= possible:
            yield f"{name} is {value} in the end: {len(acknowledged)} increments were acknowledged, {possible} possible"
        for number, times in Counter(row.number for row in acknowledged).items():
            if times > 1 or not 1 <= number <= value:
                yield f"{name}: {times} increments were told {number}, and it is {value} in the end"
        events = [(row.asked, 0, row.number) for row in acknowledged]
        events += [(row.told_at, 1, row.number) for row in acknowledged]
        highest = 0
        for _, is_answer, number in sorted(events):
            if is_answer:
                highest = max(highest, number)
            elif number < highest:
                yield f"{name}: an increment was told {number}, and began when {highest} was known"


def find_torn_commits(
    effects: Iterable[int], committed: Collection[int], aborted: Collection[int], visible: Mapping[int, bool]
) -> Iterator[str]:
    """Records that commit with a transaction, by its number, and do not stand where it does.

    `visible`: whether the writes of a transaction are seen in the end, for those that have any.
    """
    found = Counter(effects)
    for number, times in found.items():
        if times > 1:
            yield f"the record of transaction {number} stands {times} times"
        if number in aborted:
            yield f"transaction {number} was aborted, and its record stands"
    for number in committed:
        if number not in found:
            yield f"transaction {number} was committed, and its record does not stand"
    for number, is_seen in visible.items():
        if is_seen != (number in found):
            yield f"of transaction {number} the writes {'are' if is_seen else 'are not'} seen, unlike its record"
