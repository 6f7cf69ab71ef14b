"""What must have come of errands: see `boki.verify.workloads.errands`.

- All executions of a workflow agree on every step: whatever follows from an outcome follows from the same one.
- An effect under a step's key is there once, and none is missing.
- Each signal is taken once and in order, also while the workflow is suspended or continues as new.
- A workflow that is cancelled undoes what it has done, and so does the child that it leaves behind.
- Whatever happens to its engines, a workflow ends.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from boki.log.record import Record
from boki.verify.histories.facts import Violation
from boki.verify.workloads.errands import UNDO, Deed, Errand


@dataclass(slots=True)
class Run:
    """An errand as its user knows it."""

    id: str
    order: Errand
    sent: list[int] = field(default_factory=list)
    ended: str = ""
    """How it has ended: "done", or what it failed with."""
    done: Errand | None = None
    child: str = ""
    """How the child has ended that an endless errand leaves behind."""


def find_wrong_flows(runs: list[Run], deeds: list[Record], keyed: list[Record]) -> list[Violation]:
    """What breaks a promise: see the module. `deeds` and `keyed` are the records of both tags."""
    stuck, ended = [run for run in runs if not run.ended], [run for run in runs if run.ended]
    found = [Violation("workflows end", f"{run.id} has not ended: {run.order}") for run in stuck]
    found += [Violation("executions agree on every step", text) for text in _find_disagreements(deeds)]
    found += [Violation("signals are taken once, in order", text) for text in _find_wrong_signals(ended)]
    found += [Violation("each keyed effect is there once", text) for text in _find_wrong_effects(ended, keyed)]
    found += [Violation("workflows end as they should", text) for text in _find_wrong_ends(ended, deeds)]
    return found


def _find_disagreements(deeds: list[Record]) -> Iterator[str]:
    before: dict[tuple[str, str], set[tuple[int, ...]]] = defaultdict(set)
    for seen in deeds:
        what = _deed_of(seen)
        before[what.errand, what.label].add(tuple(what.before))
    for (flow_id, label), found in before.items():
        if len(found) > 1:
            yield f"{flow_id}: '{label}' was begun after {sorted(found)}"


def _find_wrong_signals(ended: list[Run]) -> Iterator[str]:
    for run in ended:
        if run.done is not None and run.done.taken != run.sent:
            yield f"{run.id} was sent {run.sent} and took {run.done.taken}"


def _find_wrong_effects(ended: list[Run], keyed: list[Record]) -> Iterator[str]:
    counts = Counter((what.errand, what.label) for what in map(_deed_of, keyed))
    for (flow_id, label), count in counts.items():
        if count > 1:
            yield f"{flow_id}: '{label}' is there {count} times"
    for run in ended:
        if run.done is None and not run.order.is_endless:
            continue
        wanted = [f"{number} {what}" for number in range(run.order.rounds) for what in ("first", "a", "b", "last")]
        if run.order.is_endless:
            wanted = [UNDO]
        for label in wanted:
            if not counts[run.id, label]:
                yield f"{run.id}: '{label}' is missing"


def _find_wrong_ends(ended: list[Run], deeds: list[Record]) -> Iterator[str]:
    values = {seen.seqnum: _deed_of(seen) for seen in deeds}
    begun = {what.errand for what in values.values() if what.label == "0 first"}
    for run in ended:
        if run.order.is_endless:
            # One that was cancelled before its first deed may have been cancelled before the start of its child.
            children = {"WorkflowCancelled"} if run.id in begun else {"WorkflowCancelled", ""}
            if run.ended != "WorkflowCancelled" or run.child not in children:
                yield f"{run.id} was cancelled and ended as {run.ended}, its child as {run.child}"
        elif run.done is None:
            yield f"{run.id} ended as {run.ended}"
        elif strange := [value for value in run.done.said if value not in values]:
            yield f"{run.id} says that it did {strange}, which nothing in the log is"


def _deed_of(seen: Record) -> Deed:
    return msgspec.json.decode(seen.data, type=Deed)
