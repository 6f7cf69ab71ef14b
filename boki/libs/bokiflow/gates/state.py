"""The fold of flow control, and what it decides. Pure.

Workflows ask (`Asked`), anybody's request in the order of the log. What is decided is one record, `Admission`, appended
under the condition that nothing came in between: so each workflow is let begin once, whichever engine decides.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, assert_never

import msgspec

from boki.libs.bokiflow.gates.records import Admission, Asked, GateKept, GateNote, Running, Waiting
from boki.libs.bokiflow.gates.spec import Limit, describe

_AT_ONCE: Final = 12
"""Maximum number of workflows that one decision names: each is a tag of its record."""


class Gate:
    """See `boki.libs.bokiflow.attending.Deciding`."""

    def __init__(self) -> None:
        self.last_seqnum = 0
        self.unsaved = 0
        self.ends_from = 0
        self.waiting: dict[str, Waiting] = {}
        """By request, in the order in which they came."""
        self.running: dict[str, Running] = {}
        self.begun: dict[str, tuple[int, ...]] = {}
        """By key, if it has a rate: how far that looks back, and when workflows began since."""
        self.ended: dict[str, int] = {}
        """Requests whose ends were read and are in no decision yet, and from where on more are to be read."""

    def apply(self, seqnum: int, time_us: int, note: GateNote) -> None:
        """Take in the next record."""
        self.last_seqnum = seqnum
        self.unsaved += 1
        match note:
            case Asked():
                self._ask(note, time_us)
            case Admission():
                self._decided(note)
            case GateKept():
                self.waiting = {one.asked.id: one for one in note.waiting}
                self.running, self.begun, self.ends_from = dict(note.running), dict(note.begun), note.ends_from
                self.unsaved = 0
            case _:
                assert_never(note)

    def _ask(self, asked: Asked, time_us: int) -> None:
        if asked.id in self.running or asked.id in self.waiting:
            return
        first_us = time_us
        if asked.limit.debounce_s:
            first_us = min(
                (one.first_us for one in self.waiting.values() if one.asked.key == asked.key), default=time_us
            )
        self.waiting[asked.id] = Waiting(asked, time_us, first_us)

    def _decided(self, note: Admission) -> None:
        self.ends_from = max(self.ends_from, note.ends_from)
        for request in note.ended:
            self.running.pop(request, None)
            self.waiting.pop(request, None)
            self.ended.pop(request, None)
        for request, _ in note.refused:
            self.waiting.pop(request, None)
        for request in note.admitted:
            waiting = self.waiting.pop(request, None)
            if waiting is None:
                continue
            asked = waiting.asked
            self.running[request] = Running(asked.call, asked.key, note.at_us, is_unreported=asked.is_unreported)
            if asked.limit.rate:
                span_us = round(asked.limit.per_s * 1e6)
                self.begun[asked.key] = (span_us, *self.begun.get(asked.key, ())[1:], note.at_us)
        self._forget(note.at_us)
        for request, _ in note.cancelled:
            if request in self.running:
                self.running[request] = msgspec.structs.replace(self.running[request], is_ending=True)

    def _forget(self, now_us: int) -> None:
        """Leave out what began longer ago than its rate looks back."""
        for key, (span_us, *times) in list(self.begun.items()):
            recent = [at_us for at_us in times if at_us > now_us - span_us]
            if recent:
                self.begun[key] = (span_us, *recent)
            else:
                del self.begun[key]

    def end(self, invocation_id: str, next_seqnum: int) -> None:
        """A call has ended. One that was started again since has asked again: the earlier request has ended."""
        self.ends_from = max(self.ends_from, next_seqnum)
        for request, running in self.running.items():
            if running.call == invocation_id and request not in self.ended:
                self.ended[request] = next_seqnum
                return
        for request, waiting in self.waiting.items():
            if waiting.asked.call == invocation_id and request not in self.ended:
                self.ended[request] = next_seqnum
                return

    def kept(self) -> GateKept:
        """The state as a record."""
        return GateKept(tuple(self.waiting.values()), self.running, self.begun, self.ends_from)

    def calls_of(self, note: Admission) -> list[str]:
        """The calls that a decision is about and that are to be told."""
        found = [request for request, _ in (*note.refused, *note.cancelled)] + list(note.admitted)
        calls = [self.waiting[one].asked.call if one in self.waiting else self.running[one].call for one in found]
        return list(dict.fromkeys(calls))

    # deciding

    def decide(self, now_us: int) -> Admission | None:
        """What is to be done now; None: nothing."""
        draft = _Draft(self, now_us)
        for key in dict.fromkeys(one.asked.key for one in self.waiting.values()):
            draft.decide(key)
        return draft.decided()

    def next_us(self) -> int:
        """When it has something to decide by itself; 0: at no time."""
        draft = _Draft(self, 0)
        keys = dict.fromkeys(one.asked.key for one in self.waiting.values())
        return min(filter(None, (draft.due_us(key) for key in keys)), default=0)


class _Draft:
    """A decision while it is made."""

    def __init__(self, state: Gate, now_us: int) -> None:
        self._state = state
        self._now_us = now_us
        self._admitted: list[str] = []
        self._refused: list[tuple[str, str]] = []
        self._cancelled: list[tuple[str, str]] = []
        self._of_key: dict[str, list[Waiting]] = defaultdict(list)
        for request, one in state.waiting.items():
            if request not in state.ended:
                self._of_key[one.asked.key].append(one)
        self._running_of_key: dict[str, list[str]] = defaultdict(list)
        """The longest first."""
        for request, running in state.running.items():
            if request not in state.ended:
                self._running_of_key[running.key].append(request)

    @property
    def _room(self) -> int:
        """Number of workflows that this decision can still name."""
        return _AT_ONCE - len(self._admitted) - len(self._refused) - len(self._cancelled)

    def decide(self, key: str) -> None:
        """What is due of a key."""
        waiting = self._of_key[key]
        if not waiting:
            return
        limit = waiting[-1].asked.limit
        if limit.debounce_s:
            waiting = self._debounced(waiting)
        if limit.when_full == "cancel_running":
            waiting = self._newest(waiting, limit)
        for one in sorted(waiting, key=lambda each: -each.asked.priority):
            if self._room <= 0 or (self._rate_us(key, limit) > self._now_us):
                return
            if limit.concurrency and len(self._running(key)) >= limit.concurrency:
                self._full(key, limit, one, len(waiting))
            else:
                self._admitted.append(one.asked.id)

    def _debounced(self, waiting: list[Waiting]) -> list[Waiting]:
        """The last one, if it is due; those before are superseded."""
        for one in waiting[:-1]:
            if self._room > 0:
                self._refused.append((one.asked.id, "superseded by a later start"))
        return waiting[-1:] if _debounced_us(waiting[-1]) <= self._now_us else []

    def _newest(self, waiting: list[Waiting], limit: Limit) -> list[Waiting]:
        for one in waiting[: -limit.concurrency]:
            if self._room > 0:
                self._refused.append((one.asked.id, "superseded by a later start"))
        return waiting[-limit.concurrency :]

    def _full(self, key: str, limit: Limit, one: Waiting, count: int) -> None:
        """`count`: the number of those that wait and are not superseded."""
        match limit.when_full:
            case "queue":
                pass
            case "cancel_newest":
                self._refused.append((one.asked.id, f"the limit is reached: {describe(limit, key)}"))
            case "cancel_running":
                self._make_room(key, count)
            case _:
                assert_never(limit.when_full)

    def _make_room(self, key: str, count: int) -> None:
        """Cancel as many of those that run longest as wait for a place; more by the next decision, if there is no room
        to name them all.
        """
        running = self._state.running
        chosen = {request for request, _ in self._cancelled}
        old = [request for request in self._running(key) if request in running]
        left = [request for request in old if not running[request].is_ending and request not in chosen]
        wanted = count - len(self._admitted_of(key))
        for request in left[: max(0, min(wanted - (len(old) - len(left)), self._room))]:
            self._cancelled.append((request, "a later start takes its place"))

    def _admitted_of(self, key: str) -> list[str]:
        return [request for request in self._admitted if self._state.waiting[request].asked.key == key]

    def _running(self, key: str) -> list[str]:
        """Those that run, the longest first, with those that are let begin now."""
        return self._running_of_key[key] + self._admitted_of(key)

    def _rate_us(self, key: str, limit: Limit) -> int:
        """When the next one may begin by the rate."""
        if not limit.rate:
            return 0
        span_us = round(limit.per_s * 1e6)
        begun = [*self._state.begun.get(key, ())[1:], *(self._now_us for _ in self._admitted_of(key))]
        return begun[-limit.rate] + span_us if len(begun) >= limit.rate else 0

    def due_us(self, key: str) -> int:
        """When time alone lets something of this key begin; 0: it does not."""
        waiting = self._of_key[key]
        if not waiting:
            return 0
        limit = waiting[-1].asked.limit
        running = self._running(key)
        if limit.concurrency and len(running) >= limit.concurrency:
            is_ending = any(self._state.running[request].is_ending for request in running)
            if limit.when_full == "queue" or is_ending:
                return 0  # an end comes first
        due_us = max(_debounced_us(waiting[-1]), self._rate_us(key, limit))
        return due_us if limit.debounce_s or limit.rate else 0

    def decided(self) -> Admission | None:
        """The record; None if there is nothing in it."""
        state = self._state
        found = Admission(
            self._now_us,
            tuple(self._admitted),
            tuple(self._refused),
            tuple(self._cancelled),
            tuple(state.ended),
            max((state.ends_from, *state.ended.values())),
        )
        return found if found.admitted or found.refused or found.cancelled or found.ended else None


def _debounced_us(one: Waiting) -> int:
    limit = one.asked.limit
    if not limit.debounce_s:
        return 0
    return min(one.at_us + round(limit.debounce_s * 1e6), one.first_us + limit.most_us)
