"""Who answers: every node is pinged, and its core answers itself, so that a process that hangs is silent too.

A node is **silent** if it has left pings unanswered for the failure timeout. Only time counts in which this controller
was awake: one that was stopped itself blames nobody for it, and one that is slow still notices the dead.

**Few pings.** Roles of one process live and die together, so one of them answers for all: the first that is named, its
*face*. The others are asked in every fourth round, and whenever they are silent or have not answered yet. A controller
that only follows asks faces alone, and rarely: before it leads, its predecessor's session must have run out, which
takes longer.

**Fewer in a calm.** Where no answer has said anything new for a second, nothing was appended. Then one that leads pings
all nodes at the beats at which a shell ticks what rests, which are four intervals apart (two to six until it has come
there). A new answer ends the calm, and so does a ping without an answer, or the end of a connection: a process that
dies is noticed as soon as under load. One that hangs, or a lost machine, is noticed by three intervals later, rarely by
five; that holds for reads, which no answer speaks of, and for the first appends after a calm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from boki.log.ids import NodeId, Term
from boki.log.metalog import Positions
from boki.log.view import View
from boki.protocol.beats import EARLY_US
from boki.protocol.effects import Effect, Send
from boki.protocol.messages import Ping, Pong

_WIDE_ROUNDS: Final = 4
_CALM_AFTER_US: Final = 1_000_000
_CALM_INTERVALS: Final = (2, 6)
_FOLLOWING_INTERVALS: Final = 4
_SILENT_SHARE: Final = 16
"""A new primary that is silent for this part of the pause is given up before the pause is over."""
_AWAKE_US: Final = 75_000
"""A tick that is later than this shows that the process was stopped: that time counts against nobody."""


@dataclass(slots=True)
class Pulse:
    """What one node has last said of itself."""

    unanswered_since: int = 0
    """When the oldest ping left that no answer has followed; 0 if the last one was answered."""
    pong: Pong | None = None
    idle_as: tuple[Term, Term] = (0, 0)
    """The current term and the one that the node knew when it was last seen not to lead what it should."""
    idle_since: int = 0
    silent_since: int = 0


class Heartbeats:
    """Pings every `interval_us`; `timeout_us` of silence and a node is taken for dead."""

    def __init__(self, interval_us: int, timeout_us: int) -> None:
        self._interval_us = interval_us
        self._timeout_us = timeout_us
        self._pulses: dict[NodeId, Pulse] = {}
        self._round = 0
        self._pinged_at = 0
        self._ticked_at = 0
        self._stirred_at = 0
        self._is_calm = False
        self._leads = False

    def stir(self, now_us: int) -> None:
        """Something new was heard: this is no calm."""
        self._stirred_at, self._is_calm = now_us, False

    def tick(self, processes: Mapping[NodeId, NodeId], now_us: int, *, leads: bool) -> list[Effect]:
        """Time has passed: pings that are due. `processes`: the nodes that there are, and the process of each."""
        pause_us = (1 if self._leads else _FOLLOWING_INTERVALS) * self._interval_us
        asleep_us = now_us - self._ticked_at - pause_us - _AWAKE_US if self._ticked_at else 0
        if asleep_us > 0:
            for pulse in self._pulses.values():
                pulse.unanswered_since = pulse.unanswered_since and pulse.unanswered_since + asleep_us
                pulse.idle_since = pulse.idle_since and pulse.idle_since + asleep_us
        self._ticked_at, self._leads = now_us, leads
        is_still = not any(pulse.unanswered_since or pulse.idle_since for pulse in self._pulses.values())
        self._is_calm = leads and is_still and now_us - self._stirred_at >= _CALM_AFTER_US
        intervals = (_CALM_INTERVALS[0] if self._is_calm else 1) if leads else _FOLLOWING_INTERVALS
        if now_us < self._pinged_at + intervals * self._interval_us - EARLY_US:
            return []
        self._pinged_at = now_us
        is_wide = self._is_calm or self._round % _WIDE_ROUNDS == 0
        self._round += 1
        self._pulses = {node: self._pulses.get(node) or Pulse() for node in processes}
        return [Send(node, Ping(self._round)) for node in self._ask(processes, now_us, leads=leads, is_wide=is_wide)]

    def _ask(self, processes: Mapping[NodeId, NodeId], now_us: int, *, leads: bool, is_wide: bool) -> Iterator[NodeId]:
        """The nodes that are pinged in this round; all are judged."""
        faces: dict[NodeId, Pulse] = {}
        for node, process in processes.items():
            pulse = self._pulses[node]
            face = faces.setdefault(process, pulse)
            is_asked = is_wide or face is pulse or pulse.pong is None or pulse.silent_since
            if is_asked if leads else face is pulse:
                pulse.unanswered_since = pulse.unanswered_since or now_us
                yield node
            unanswered_us = now_us - pulse.unanswered_since if pulse.unanswered_since else 0
            is_silent = unanswered_us >= self._timeout_us or face.silent_since
            pulse.silent_since = (pulse.silent_since or now_us) if is_silent else 0

    def rests_until(self) -> int:
        """When pings of one that leads are due at the latest, or a node that does not answer until then is silent."""
        unanswered = [pulse.unanswered_since for pulse in self._pulses.values() if pulse.unanswered_since]
        if self._is_calm and not unanswered:
            return self._pinged_at + _CALM_INTERVALS[1] * self._interval_us
        ping_at = self._pinged_at + self._interval_us
        return min(ping_at, min(unanswered, default=ping_at) + self._timeout_us)

    def register(self, incarnations: Mapping[NodeId, int]) -> None:
        """Take these as the current incarnations. A node with a lower one than it last answered with has another
        directory now, an older one: the old answer is void, and the node is heard again.
        """
        for node, incarnation in incarnations.items():
            pulse = self._pulses.get(node)
            if pulse is not None and pulse.pong is not None and pulse.pong.incarnation > incarnation:
                pulse.pong = None

    def hear(self, node: NodeId, pong: Pong, now_us: int) -> bool:
        """A node has answered. False if that does not count: it was not asked, or is a former incarnation."""
        pulse = self._pulses.get(node)
        if pulse is None or (pulse.pong is not None and pong.incarnation < pulse.pong.incarnation):
            return False
        if pulse.pong is None or pulse.silent_since or structs.replace(pong, number=pulse.pong.number) != pulse.pong:
            self.stir(now_us)
        pulse.unanswered_since = pulse.silent_since = 0
        pulse.pong = pong
        return True

    def watch(self, view: View, now_us: int) -> None:
        """Notice which primaries of the view answer without leading all that it gives them."""
        for node, pulse in self._pulses.items():
            pong = self.pong(node)
            if node not in view.primaries:
                pulse.idle_since = 0
            elif pong is None:
                pass
            elif pong.term > view.term or self.leads(node, view):
                pulse.idle_since = 0
            elif not pulse.idle_since or pulse.idle_as != (view.term, pong.term):
                pulse.idle_as, pulse.idle_since = (view.term, pong.term), now_us

    def leads(self, node: NodeId, view: View) -> bool:
        """Whether the node answers that it leads all logs that the view gives it."""
        pong = self.pong(node)
        mine = {log for log, primary in enumerate(view.primaries) if primary == node}
        return pong is not None and pong.term == view.term and mine <= set(pong.leads)

    def has_lost_primary(self, view: View, pause_us: int, now_us: int) -> bool:
        """Whether a primary of the view has another disk, or has been silent for a part of that pause: then it leads
        nothing, however long one waits. The pause is longer where terms have ended soon: nodes may be slow.
        """
        pongs = {node: self.pong(node) for node in view.primaries}
        return any(
            self.silent_for(node, now_us) > pause_us // _SILENT_SHARE
            or (pong is not None and pong.incarnation != view.incarnations[node])
            for node, pong in pongs.items()
        )

    def idle_for(self, node: NodeId, now_us: int) -> int:
        """For how long, in microseconds, `watch` has seen it answer and not lead. Counted again when
        it learns of a view.
        """
        pulse = self._pulses.get(node)
        return 0 if pulse is None or not pulse.idle_since else now_us - pulse.idle_since

    def pong(self, node: NodeId) -> Pong | None:
        """Its last answer; None if it is silent or has never answered."""
        pulse = self._pulses.get(node)
        return None if pulse is None or pulse.silent_since else pulse.pong

    def applied(self) -> list[tuple[NodeId, Positions]]:
        """How far nodes have said that they have applied the metalogs, those that are silent now, too."""
        return [(node, pulse.pong.applied) for node, pulse in self._pulses.items() if pulse.pong is not None]

    def silent_for(self, node: NodeId, now_us: int) -> int:
        """For how long, in microseconds, the node has been silent; 0 if it is not."""
        pulse = self._pulses.get(node)
        return 0 if pulse is None or not pulse.silent_since else now_us - pulse.silent_since

    def silent(self) -> list[NodeId]:
        """The nodes that are silent, by name."""
        return sorted(node for node, pulse in self._pulses.items() if pulse.silent_since)
