"""Those who wait for a queue in this process: who has waited long enough, and when something is due for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from boki.libs.bokiqueue.demand import Arrival, Waiter, Want
from boki.libs.bokiqueue.leavings import ANSWER_S, Rest
from boki.libs.bokiqueue.refusals import no_such_group
from boki.libs.bokiqueue.standing import SESSION_US

if TYPE_CHECKING:
    from boki.libs.bokiqueue.following import Following

LONG_WAIT_S: Final = 3_600.0
EARLY_US: Final = 1_000
"""The log's time may lag behind our guess by this much: who asks early gets nothing, and would ask again at once."""
_MARGIN_S: Final = 0.0005
_LEAST_WAIT_S: Final = 0.002


def finish_late(queue: Following) -> None:
    """Who has waited long enough, or does not wait and has asked everywhere, gets nothing."""
    for waiter in list(queue.waiters):
        if waiter.is_done:
            continue
        if isinstance(waiter, Want) and waiter.group and not _has_group(queue, waiter.group):
            waiter.finish(None, no_such_group(queue.queue, waiter.group))  # dropped meanwhile
        elif isinstance(waiter, Rest | Arrival) and _has_come(queue, waiter):
            waiter.finish(None)
        elif waiter.patience_s is not None:
            late_s = queue.clock.since(waiter.since) - waiter.patience_s + _MARGIN_S
            # While an act asks for it, it waits for the answer: nobody else may be there to take what comes.
            if late_s >= 0 and (late_s > ANSWER_S or not _is_under_way(queue, waiter)):
                waiter.finish([])
        elif isinstance(waiter, Want) and not _is_asked_for(queue, waiter):
            waiter.finish([])


def _has_come(queue: Following, waiter: Rest | Arrival) -> bool:
    return queue.next_start > waiter.seqnum if isinstance(waiter, Arrival) else queue.leavings.are_done(waiter)


def _has_group(queue: Following, name: str) -> bool:
    return any(name in line.state.groups for line in queue.lines)


def _is_asked_for(queue: Following, want: Want) -> bool:
    """Whether an act may still bring something to one that does not wait."""
    return any(line.may_probe(want) or line.is_giving_back for line in queue.lines) or _is_under_way(queue, want)


def _is_under_way(queue: Following, waiter: Waiter) -> bool:
    """Whether an outstanding act asks for messages that this one may get."""
    return isinstance(waiter, Want) and any(
        line.outstanding is not None and waiter.kind in line.outstanding.act.kinds for line in queue.lines
    )


def patience_s(queue: Following) -> float:
    """How long the leader may wait for a record before something is due here."""
    wait_s = LONG_WAIT_S
    groups: dict[str, frozenset[int] | None] = {}
    if queue.dealing.look_again_us:
        wait_s = max(0.05, (queue.dealing.look_again_us - queue.clock.lately_us()) / 1e6)
    for waiter in queue.waiters:
        if not waiter.is_done and waiter.patience_s is not None:
            left_s = waiter.patience_s - queue.clock.since(waiter.since)
            wait_s = min(wait_s, left_s if left_s > 0 else ANSWER_S)
            if isinstance(waiter, Want):
                groups[waiter.group] = waiter.lines
    for line in queue.lines:
        if line.outstanding is not None and not line.outstanding.is_under_way:
            wait_s = min(wait_s, 0.05 * line.outstanding.tries)
        for one in line.state.standing.of(queue.taker) if groups else ():
            wait_s = min(wait_s, (one.until_us - SESSION_US // 2 - queue.clock.now_us()) / 1e6)
    for name, lines in groups.items():
        wait_s = min(wait_s, due_s(queue, name, lines))
    return max(wait_s, _LEAST_WAIT_S)


def due_s(queue: Following, name: str, lines: frozenset[int] | None) -> float:
    """When a delayed message or the end of a lease is due in shards that can be asked now."""
    due_us = 0
    for line in queue.lines:
        group = line.state.groups.get(name)
        if group is not None and line.outstanding is None and (lines is None or line.shard in lines):
            own_us = line.next_due_us(name)
            due_us = min(due_us or own_us, own_us or due_us)
    return (due_us + EARLY_US - queue.clock.now_us()) / 1e6 + _MARGIN_S if due_us else LONG_WAIT_S
