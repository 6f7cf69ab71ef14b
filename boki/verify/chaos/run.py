"""One run of chaos: load, faults, then quiet, a read-out, and the checkers over the whole history."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from boki.errors import ConditionFailed, Unavailable
from boki.verify.chaos import object_watch, queue_watch
from boki.verify.chaos.faults import FAULTS, Fault, Schedule, inflict
from boki.verify.chaos.flow_watch import FlowWatch
from boki.verify.chaos.load import Orders
from boki.verify.chaos.object_watch import ObjectWatch
from boki.verify.chaos.queue_watch import QueueWatch
from boki.verify.chaos.target import TargetCluster
from boki.verify.chaos.users import Users
from boki.verify.histories.checkers import find_violations
from boki.verify.histories.history import Appending, Call, History, Ordered, Refused

_HEAL_S: Final = 30.0
_WORD_S: Final = 240.0
_ALL_UP_S: Final = 60.0
_POLL_S: Final = 0.2
_MOST_UNFELT: Final = 3
_TOLD_STALL_S: Final = 1.0
_LONG_STALL_S: Final = 2.0
_LATE_S: Final = 0.5
"""A fault that was over no longer than this before a stall has its share in it."""


@dataclass(slots=True)
class Report:
    """What a run has seen. `is_clean` is what its exit status says."""

    seed: int
    acknowledged: int = 0
    accepted_calls: int = 0
    messages: int = 0
    """Messages of queues that have come out, once each."""
    workflows: int = 0
    """Workflows that have ended."""
    transactions: int = 0
    """Transactions over objects that were committed."""
    unknown: int = 0
    """Appends that were not acknowledged and may have happened: to be few, or nothing has been shown."""
    refused: int = 0
    """Appends that certainly did not happen, conditions that did not hold apart."""
    faults: Counter[str] = field(default_factory=Counter)
    """By class, how often one came and was felt."""
    unfelt: Counter[str] = field(default_factory=Counter)
    """By class, how often one came and nobody felt it."""
    missing: list[str] = field(default_factory=list)
    """Classes of faults that were wanted and were never felt."""
    reconfigurations: int = 0
    terms: int = 0
    longest_stall_s: float = 0.0
    duration_s: float = 0.0
    stalls_s: dict[str, float] = field(default_factory=dict)
    """By class of faults, the longest time without an acknowledged append in which one was at work."""
    p99_append_s: float = 0.0
    """Of acknowledged appends while no fault was at work."""
    slowest_append_s: dict[str, float] = field(default_factory=dict)
    """By class of faults, the acknowledged append that took longest of those under way while one was at work."""
    violations: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """No promise was broken, and everything that was to happen has."""
        return not self.violations and not self.missing and self.acknowledged > 0

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "seed": self.seed,
            "acknowledged": self.acknowledged,
            "unknown": self.unknown,
            "refused": self.refused,
            "accepted_calls": self.accepted_calls,
            "messages": self.messages,
            "workflows": self.workflows,
            "faults": dict(sorted(self.faults.items())),
            "faults_unfelt": dict(sorted(self.unfelt.items())),
            "faults_missing": self.missing,
            "reconfigurations": self.reconfigurations,
            "terms": self.terms,
            "longest_stall_s": self.longest_stall_s,
            "stalls_s": dict(sorted(self.stalls_s.items())),
            "p99_append_s": self.p99_append_s,
            "slowest_append_s": dict(sorted(self.slowest_append_s.items())),
            "duration_s": round(self.duration_s, 1),
            "violations": self.violations,
        }


@dataclass(slots=True)
class _Trouble:
    """A fault, and when it was at work."""

    name: str
    begun_s: float
    ended_s: float = math.inf


class Chaos:
    """A run over a cluster that is there already, with its history in `folder`. `tell` is given lines for people."""

    def __init__(
        self,
        target: TargetCluster,
        folder: Path,
        *,
        seed: int,
        duration_s: float,
        faults: Sequence[Fault] = FAULTS,
        sessions: int = 10,
        rest_s: tuple[float, float] = (0.3, 2.0),
        tell: Callable[[str], None],
    ) -> None:
        self.report = Report(seed)
        self.file = folder / "history.jsonl"
        """All that was asked and told."""
        self.stall_file = folder / "stalls.jsonl"
        """What the cluster said of itself while stalls lasted."""
        self._target = target
        self._duration_s = duration_s
        self._faults = tuple(faults)
        self._sessions = sessions
        self._rest_s = rest_s
        self._tell = tell
        self._told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._troubles: list[_Trouble] = []
        self._acknowledged = 0
        self._moved_s = math.inf

    async def run(self) -> Report:
        """Do it all. `Unavailable` if the load breaks down."""
        began_s = time.monotonic()
        await self._under_load()
        self.report.duration_s = time.monotonic() - began_s
        wanted = {queue_watch.KILL, queue_watch.STOP, object_watch.KILL, object_watch.STOP}
        wanted |= {*(fault.name for fault in self._faults)}
        self.report.missing = sorted(wanted - self.report.faults.keys())
        return self.report

    async def _under_load(self) -> None:
        orders = Orders(
            url=self._target.url,
            token="",
            seed=self.report.seed,
            sessions=self._sessions,
            books=4,
            file=str(self.file),
        )
        load = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "boki.verify.chaos.load", msgspec.json.encode(orders).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        listening = asyncio.create_task(self._listen(load))
        watched = (self._target.url, self.file.parent, self.report.seed, self._tell)
        queues, objects = QueueWatch(*watched), ObjectWatch(*watched)
        flows = FlowWatch(self._target.url, self.report.seed, self._tell)
        try:
            await queues.users.start()
            await objects.users.start()
            flows.start()
            await self._word_of("progress")
            await self._inflict((queues.users, objects.users))
            await self._settle()
            await self._order(load, "stop")
            stopped = await self._word_of("stopped")
            self.report.acknowledged = stopped["acknowledged"]
            self.report.longest_stall_s = stopped["longest_stall_s"]
            await queues.finish()
            await objects.finish()
            await flows.finish()
            await self._order(load, "read")
            done = await self._word_of("done")
        finally:
            listening.cancel()
            if load.returncode is None:
                load.kill()
            await load.wait()
            await queues.close()
            await objects.close()
            await flows.close()
        self.report.workflows = flows.ended_count
        self.report.messages = queues.done_count
        self.report.transactions = objects.committed_count
        self.report.faults += queues.users.faults + objects.users.faults
        self.report.violations += queues.violations + objects.violations + flows.violations
        self.report.accepted_calls = done["accepted_calls"]
        self.report.violations += [done["problem"]] if done["problem"] else []
        self.report.violations += done["witnessed"] + done["unfinished"]
        status = await self._target.status()
        self.report.terms = max((told.get("term", 0) for told in status.get("nodes", {}).values() if told), default=0)
        self.report.reconfigurations = self._target.reconfigurations
        await asyncio.to_thread(self._judge)

    async def _inflict(self, libraries: Sequence[Users]) -> None:
        """Faults until the time is up, and until every class has been felt, or has come without effect too often."""
        hurting = [asyncio.create_task(users.hurt()) for users in libraries]
        try:
            await self._inflict_all()
        finally:
            for users in libraries:
                users.calm()
            await asyncio.gather(*hurting)

    async def _inflict_all(self) -> None:
        schedule = Schedule(self.report.seed, self._faults, self._rest_s)
        until = time.monotonic() + self._duration_s
        while time.monotonic() < until or len(self.report.faults) < len(self._faults):
            turn, rest_s = schedule.next()
            felt = await asyncio.gather(*(self._hurt(fault, hold_s, schedule) for fault, hold_s in turn))
            for (fault, _), was_felt in zip(turn, felt, strict=True):
                (self.report.faults if was_felt else self.report.unfelt)[fault.name] += 1
                if not was_felt and self.report.unfelt[fault.name] < _MOST_UNFELT:
                    schedule.again(fault)
            if any(
                count >= _MOST_UNFELT and not self.report.faults[name] for name, count in self.report.unfelt.items()
            ):
                return
            await asyncio.sleep(rest_s)

    async def _hurt(self, fault: Fault, hold_s: float, schedule: Schedule) -> bool:
        trouble = _Trouble(fault.name, time.monotonic())
        self._troubles.append(trouble)
        try:
            return await inflict(fault, self._target, schedule.random, hold_s, self._tell)
        finally:
            trouble.ended_s = time.monotonic()

    def _note_stall(self, stall_s: float, until_s: float) -> None:
        names = self._at_work(until_s - stall_s, until_s)
        for name in names:
            self.report.stalls_s[name] = max(stall_s, self.report.stalls_s.get(name, 0.0))
        if stall_s > _TOLD_STALL_S:
            self._tell(f"no append was acknowledged for {stall_s} s ({', '.join(sorted(names))})")

    def _at_work(self, from_s: float, until_s: float) -> set[str]:
        """The classes of the faults that may have had their share in what happened then."""
        return {
            trouble.name
            for trouble in self._troubles
            if trouble.begun_s <= until_s and from_s <= trouble.ended_s + _LATE_S
        }

    async def _settle(self) -> None:
        """Every fault is over: appends must continue, and every node be at work, within a bounded time."""
        self._tell("faults are over")
        before = (await self._word_of("progress"))["acknowledged"]
        try:
            async with asyncio.timeout(_HEAL_S):
                while (await self._word_of("progress"))["acknowledged"] <= before:
                    pass
        except TimeoutError:
            self.report.violations.append(f"no append was acknowledged within {_HEAL_S:g} s of the last fault")
        until = time.monotonic() + _ALL_UP_S
        while missing := await self._target.missing():
            if time.monotonic() > until:
                text = f"{', '.join(missing)} not at work {_ALL_UP_S:g} s after the last fault"
                self.report.violations.append(text)
                return
            await asyncio.sleep(_POLL_S)
        self._tell("every node is at work")

    # the load's process

    async def _listen(self, load: asyncio.subprocess.Process) -> None:
        assert load.stdout is not None
        try:
            async for line in load.stdout:
                word = json.loads(line)
                if word["event"] == "stall":
                    self._note_stall(word["stall_s"], word["until_s"])
                await self._look_closer(word["acknowledged"])
                self._told.put_nowait(word)
        finally:
            self._told.put_nowait({"event": "ended"})

    async def _look_closer(self, acknowledged: int) -> None:
        """Write down how everybody is while a stall lasts long: afterwards all look well."""
        now_s = time.monotonic()
        if acknowledged != self._acknowledged:
            self._acknowledged, self._moved_s = acknowledged, now_s
        elif now_s - self._moved_s > _LONG_STALL_S:
            self._moved_s = now_s
            status = await self._target.status()
            with self.stall_file.open("ab") as file:
                file.write(msgspec.json.encode({"at": datetime.now(UTC), "status": status}) + b"\n")

    async def _word_of(self, event: str) -> dict[str, Any]:
        """The next event of that name."""
        while not self._told.empty() and event == "progress":
            word = self._told.get_nowait()  # only the newest progress is of interest
            if word["event"] == "ended":
                raise Unavailable("the load has ended by itself: see what it printed")
        async with asyncio.timeout(_WORD_S):
            while (word := await self._told.get())["event"] != event:
                if word["event"] == "ended":
                    raise Unavailable("the load has ended by itself: see what it printed")
        return word

    @staticmethod
    async def _order(load: asyncio.subprocess.Process, word: str) -> None:
        assert load.stdin is not None
        load.stdin.write(f"{word}\n".encode())
        await load.stdin.drain()

    def _judge(self) -> None:
        """Let all checkers look, and see that there was something to look at."""
        with self.file.open("rb") as lines:
            history = History.from_lines(lines)
        self.report.violations += map(str, find_violations(history))
        appends = [call for call in history.calls if isinstance(call.request, Appending) and not call.is_abandoned]
        known = [call for call in appends if isinstance(call.result, Ordered)]
        self._note_latencies(known)
        refused = [call.result for call in appends if isinstance(call.result, Refused) and call.is_impossible]
        self.report.refused = sum(result.code != ConditionFailed.code for result in refused)
        self.report.unknown = len(appends) - len(known) - len(refused)
        if self.report.unknown * 2 > len(appends):
            text = f"of {len(appends)} appends, {self.report.unknown} have no known outcome: that shows nothing"
            self.report.violations.append(text)
        idle = {f"s{number}" for number in range(self._sessions)} - {call.session for call in known}
        if idle:
            self.report.violations.append(f"not one append of {', '.join(sorted(idle))} was acknowledged")

    def _note_latencies(self, known: list[Call]) -> None:
        calm: list[float] = []
        for call in known:
            start_s, end_s = call.start_us / 1e6, call.end_us / 1e6
            names = self._at_work(start_s, end_s)
            took_s = round(end_s - start_s, 3)
            for name in names:
                self.report.slowest_append_s[name] = max(took_s, self.report.slowest_append_s.get(name, 0.0))
            if not names:
                calm.append(took_s)
        if calm:
            self.report.p99_append_s = sorted(calm)[len(calm) * 99 // 100]
