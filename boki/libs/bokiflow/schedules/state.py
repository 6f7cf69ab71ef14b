"""Records of a schedule, the fold of them, and what it decides. Pure.

What users say to a schedule (`Defined`, `Paused`, `Triggered`, ...) anybody may append at any time. What it decides
is one record, `Decided`, appended under the condition that nothing came in between: so each tick is decided once,
whoever acts for the schedule, and however many do. A decision names the workflows to start; to start one again that was
just started is harmless, because its id is made of the schedule and the tick. When that id is forgotten, the fold still
knows which ticks were started (`started.py`), and no decision names one of them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, assert_never

import msgspec

from boki.libs.bokiflow.schedules.spec import Overlap, Spec, due_us, next_tick, tick_name, times_of, too_old_us
from boki.libs.bokiflow.schedules.started import Spans, Started
from boki.libs.fold.codec import RecordCodec

VERSION: Final = 1
MAX_QUEUED: Final = 1_000
"""Maximum number of ticks that wait for the one before; what comes then is left out."""
_AT_ONCE: Final = 100
"""Maximum number of ticks that one decision is about."""
_RECENT: Final = 20
_MISSED_COUNTED: Final = 1_000
"""Maximum number of missed ticks that one decision counts; the cursor passes over the rest."""
_PASSED: Final = 1_000
"""Maximum number of ticks that were started before and that a backfill passes by in one decision."""

Verdict = Literal["started", "queued", "skipped", "missed"]


class Defined(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The schedule is there, or is changed: what it has done stays."""

    spec: Spec
    is_paused: bool = False


class Paused(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Ticks pass by until `Resumed`."""

    reason: str = ""


class Resumed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Ticks count again, from here on."""


class Triggered(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Start the workflow now, also while paused. `key` is part of its id."""

    key: str
    overlap: Overlap | None = None


class Backfilled(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Start the workflows of the ticks from `from_us` to before `until_us`, as if they were now, but for those that
    were started before.
    """

    from_us: int
    until_us: int
    overlap: Overlap | None = None


class Deleted(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Nothing is started any more. What runs continues."""


class Act(msgspec.Struct, frozen=True, array_like=True):
    """What was decided of one tick. `key` is the part of the workflow's id behind the schedule's."""

    key: str
    tick_us: int
    verdict: Verdict


class Decided(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """What the schedule does: all ticks up to `cursor_us` are decided.

    `ended` are the workflows that have ended, by key, and `ends_from` says from where on further ends are read.
    `asked` is how many triggers and backfills are done with, and `backfill_us` how far the next backfill has come.
    `closed` says how those that run were ended: "cancel" or "kill".
    """

    cursor_us: int
    at_us: int
    acts: tuple[Act, ...] = ()
    ended: tuple[str, ...] = ()
    ends_from: int = 0
    asked: int = 0
    backfill_us: int = 0
    closed: Literal["", "cancel", "kill"] = ""
    missed: int = 0


class Recent(msgspec.Struct, frozen=True, array_like=True):
    """Something that was decided lately, for people."""

    key: str
    tick_us: int
    verdict: Verdict
    at_us: int


class Kept(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The whole state: what stands below this record is trimmed."""

    spec: Spec
    is_paused: bool
    reason: str
    cursor_us: int
    running: dict[str, int]
    queued: tuple[tuple[str, int], ...]
    asked: tuple[Triggered | Backfilled, ...]
    backfill_us: int
    ends_from: int
    counts: dict[str, int]
    recent: tuple[Recent, ...]
    closing: Literal["", "cancel", "kill"] = ""
    is_deleted: bool = False
    leaving: tuple[str, ...] = ()
    started: tuple[Spans, ...] = ()


Note = Defined | Paused | Resumed | Triggered | Backfilled | Deleted | Decided | Kept
CODEC: Final[RecordCodec[Note]] = RecordCodec("schedules", VERSION, Note)


def schedule_tag(invocation_id: str) -> str:
    """The tag of a schedule's records, in the LogBook of its workflow."""
    return f"!fs:{invocation_id}"


@dataclass
class Fold:
    """The fold. `name` is the schedule's id."""

    name: str
    spec: Spec | None = None
    is_paused: bool = False
    reason: str = ""
    is_deleted: bool = False
    cursor_us: int = 0
    running: dict[str, int] = field(default_factory=dict)
    """Workflows that were started and have not ended, as far as is known: when that was decided, by key."""
    queued: list[tuple[str, int]] = field(default_factory=list)
    """Ticks that wait for those that run: key and tick."""
    asked: list[Triggered | Backfilled] = field(default_factory=list)
    backfill_us: int = 0
    ends_from: int = 0
    closing: Literal["", "cancel", "kill"] = ""
    """How `leaving` are being ended."""
    leaving: set[str] = field(default_factory=set)
    """Of those that run, the ones that make room. What is allowed beside them since is not among them."""
    counts: dict[str, int] = field(default_factory=dict)
    recent: list[Recent] = field(default_factory=list)
    started: Started = field(default_factory=Started)
    """All ticks that were started, also before the schedule was deleted and made again."""
    last_seqnum: int = 0
    unsaved: int = 0
    """Records since the last `Kept`."""
    ended: dict[str, int] = field(default_factory=dict)
    """Workflows whose ends were read and are in no decision yet, and from where on more are to be read."""

    def apply(self, seqnum: int, time_us: int, note: Note) -> None:
        """Take in the next record."""
        self.last_seqnum = seqnum
        self.unsaved += 1
        match note:
            case Defined():
                if self.spec is None or self.is_deleted:
                    self.is_deleted, self.cursor_us, self.reason = False, time_us, ""
                    self.is_paused = note.is_paused
                elif times_of(note.spec) != times_of(self.spec):
                    self.cursor_us = max(self.cursor_us, time_us)  # those of before were no ticks when they passed
                self.spec = note.spec
            case Paused():
                self.is_paused, self.reason = True, note.reason
            case Resumed():
                if self.is_paused:
                    self.is_paused, self.reason, self.cursor_us = False, "", max(self.cursor_us, time_us)
            case Triggered() | Backfilled():
                self.asked.append(note)
            case Deleted():
                self.is_deleted = True
                self.queued.clear()
                self.asked.clear()
                self.backfill_us = 0
            case Decided():
                self._decided(note)
            case Kept():
                self._restore(note)
            case _:
                assert_never(note)

    def _decided(self, note: Decided) -> None:
        self.cursor_us = max(self.cursor_us, note.cursor_us)
        self.ends_from = max(self.ends_from, note.ends_from)
        for key in note.ended:
            self.running.pop(key, None)
            self.ended.pop(key, None)
        taken = {act.key for act in note.acts}
        rest = self.asked[note.asked :]  # among which triggers may have passed a backfill
        self.asked = [one for one in rest if not (isinstance(one, Triggered) and f"now-{one.key}" in taken)]
        self.backfill_us = note.backfill_us
        if note.closed:
            self.closing, self.leaving = note.closed, set(self.running)
        self.leaving &= self.running.keys()
        self.closing = self.closing if self.leaving else ""
        for act in note.acts:
            self.queued = [one for one in self.queued if one[0] != act.key]
            if act.verdict == "started":
                self.running[act.key] = note.at_us
                self._remember(act.tick_us)
            elif act.verdict == "queued":
                self.queued.append((act.key, act.tick_us))
            self._count(act.verdict)
            self.recent = [*self.recent, Recent(act.key, act.tick_us, act.verdict, note.at_us)][-_RECENT:]
        if note.missed:
            self._count("missed", note.missed)
        self.started.shrink(self._is_settled)

    def _remember(self, tick_us: int) -> None:
        if tick_us and self.spec is not None:  # a trigger has no tick
            self.started.add(tick_us, self.spec)

    def _is_settled(self, first_us: int, last_us: int) -> bool:
        """Whether no tick in between is to come, or asked for by a backfill."""
        return last_us <= self.cursor_us and not any(
            isinstance(one, Backfilled) and one.from_us < last_us and first_us < one.until_us for one in self.asked
        )

    def _count(self, verdict: Verdict, number: int = 1) -> None:
        self.counts[verdict] = self.counts.get(verdict, 0) + number

    def _restore(self, kept: Kept) -> None:
        self.spec, self.is_paused, self.reason = kept.spec, kept.is_paused, kept.reason
        self.is_deleted = kept.is_deleted
        self.cursor_us, self.running, self.queued = kept.cursor_us, dict(kept.running), list(kept.queued)
        self.asked, self.backfill_us, self.ends_from = list(kept.asked), kept.backfill_us, kept.ends_from
        self.counts, self.recent, self.closing = dict(kept.counts), list(kept.recent), kept.closing
        self.leaving = set(kept.leaving or (kept.running if kept.closing else ()))  # earlier versions: all that run
        self.started = Started(kept.started)
        if not kept.started:  # earlier versions: what else they have started is known as long as it is kept
            for one in kept.recent:
                if one.verdict == "started":
                    self._remember(one.tick_us)
        self.unsaved = 0

    def kept(self) -> Kept:
        """The state as a record."""
        assert self.spec is not None, "it was defined"
        return Kept(
            self.spec,
            self.is_paused,
            self.reason,
            self.cursor_us,
            self.running,
            tuple(self.queued),
            tuple(self.asked),
            self.backfill_us,
            self.ends_from,
            self.counts,
            tuple(self.recent),
            self.closing,
            self.is_deleted,
            tuple(sorted(self.leaving)),
            self.started.kept(),
        )

    def next_us(self) -> int:
        """When it has something to do by itself; 0: at no time."""
        if self.spec is None or self.is_deleted or self.is_paused:
            return 0
        tick_us = next_tick(self.spec, self.cursor_us)
        return 0 if tick_us is None else due_us(self.spec, self.name, tick_us)

    # deciding

    def decide(self, now_us: int) -> Decided | None:
        """What is to be done now; None: nothing."""
        if self.spec is None or self.is_deleted:
            return None
        draft = _Draft(self, self.spec)
        draft.release()
        draft.take_asked()
        if not self.is_paused:
            draft.take_ticks(now_us)
        return draft.decided(now_us)


class _Draft:
    """A decision while it is made."""

    def __init__(self, state: Fold, spec: Spec) -> None:
        self._state = state
        self._spec = spec
        self._running = {key for key in state.running if key not in state.ended}
        self._queued = list(state.queued)
        self._closed: Literal["", "cancel", "kill"] = ""
        self._acts: list[Act] = []
        self._cursor_us = state.cursor_us
        self._asked = 0
        self._backfill_us = state.backfill_us
        self._missed = 0

    @property
    def _is_full(self) -> bool:
        return len(self._acts) >= _AT_ONCE

    def release(self) -> None:
        """Start what has waited for those that ran."""
        while self._queued and not self._running and not self._is_full:
            key, tick_us = self._queued.pop(0)
            self._start(key, tick_us)

    def take_asked(self) -> None:
        """Triggers and backfills, in their order; but no trigger waits for a backfill."""
        waits = False
        for one in self._state.asked:
            if self._is_full:
                return
            if isinstance(one, Triggered):
                self._take(f"now-{one.key}", 0, one.overlap)
            elif waits or not self._backfill(one):
                waits = True
            else:
                self._backfill_us = 0
            if not waits:
                self._asked += 1

    def _backfill(self, one: Backfilled) -> bool:
        """Whether all its ticks were taken. Whoever asks for ticks of the past wants all of them: where one is to wait
        for the other, each is taken when nothing runs or waits.
        """
        policy = one.overlap or ("allow" if self._spec.overlap == "allow" else "queue_all")
        at_us = self._backfill_us or one.from_us - 1
        passed = 0
        while (tick_us := next_tick(self._spec, at_us)) is not None and tick_us < one.until_us:
            if tick_us in self._state.started:
                passed += 1
            elif self._is_full or (policy == "queue_all" and (self._running or self._queued)):
                return False
            else:
                self._take(tick_name(tick_us), tick_us, policy)
            at_us = self._backfill_us = tick_us
            if passed == _PASSED:
                return False
        return True

    def take_ticks(self, now_us: int) -> None:
        """The ticks that are due. Those that were missed for too long are only counted."""
        spec, name = self._spec, self._state.name
        until_us = too_old_us(spec, now_us)
        while not self._is_full:
            tick_us = next_tick(spec, self._cursor_us)
            if tick_us is None or due_us(spec, name, tick_us) > now_us:
                return
            if tick_us < until_us:
                self._miss(until_us)
                continue
            self._take(tick_name(tick_us), tick_us, None)
            self._cursor_us = tick_us

    def _miss(self, until_us: int) -> None:
        counted = 0
        while counted < _MISSED_COUNTED:
            tick_us = next_tick(self._spec, self._cursor_us)
            if tick_us is None or tick_us >= until_us:
                break
            self._cursor_us = tick_us
            counted += 1
        else:
            self._cursor_us = max(self._cursor_us, until_us - 1)
        self._missed += counted

    def _take(self, key: str, tick_us: int, overlap: Overlap | None) -> None:
        if key in self._running or tick_us in self._state.started or any(one[0] == key for one in self._queued):
            return  # a tick is not started twice
        policy = overlap or self._spec.overlap
        if not self._running or policy == "allow":
            self._start(key, tick_us)
            return
        match policy:
            case "skip":
                self._act(key, tick_us, "skipped")
            case "queue":
                self._queue(key, tick_us, 1)
            case "queue_all":
                self._queue(key, tick_us, MAX_QUEUED)
            case "cancel" | "kill":
                for waiting in self._queued:
                    self._act(*waiting, "skipped")
                self._queued.clear()
                self._closed = policy
                self._queue(key, tick_us, 1)
            case _:
                assert_never(policy)

    def _queue(self, key: str, tick_us: int, most: int) -> None:
        if len(self._queued) >= most:
            self._act(key, tick_us, "skipped")
            return
        self._queued.append((key, tick_us))
        self._act(key, tick_us, "queued")

    def _start(self, key: str, tick_us: int) -> None:
        self._running.add(key)
        self._act(key, tick_us, "started")

    def _act(self, key: str, tick_us: int, verdict: Verdict) -> None:
        self._acts = [one for one in self._acts if one.key != key]
        self._acts.append(Act(key, tick_us, verdict))

    def decided(self, now_us: int) -> Decided | None:
        """The record; None if there is nothing in it."""
        state = self._state
        found = Decided(
            self._cursor_us,
            now_us,
            tuple(self._acts),
            tuple(key for key in state.ended if key in state.running),
            max((state.ends_from, *state.ended.values())),
            self._asked,
            self._backfill_us,
            self._closed,
            self._missed,
        )
        is_empty = not (found.acts or found.ended or found.asked or found.missed)
        if is_empty and found.backfill_us == state.backfill_us and found.cursor_us == state.cursor_us:
            return None
        return found
