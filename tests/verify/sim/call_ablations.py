"""Safeguards of logged calls, each switched off: see `tests.verify.sim.ablations`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

from boki.books.calls.call_book import CallBook
from boki.books.calls.ledger import CODEC, Accepted, CallEntry, Finished, Ledger, Started, Suspended, id_of, id_tag
from boki.books.calls.runs import Runs
from boki.books.calls.sleepers import Sleepers
from boki.books.calls.waiting import PackedCall, Waiting
from boki.engine.watches import Watches
from boki.log.operations import Append
from boki.log.record import Record
from boki.protocol.effects import Effect
from boki.verify.sim.call_promises import (
    NOTHING_AFTER_THE_END,
    ONE_END,
    ONE_OWNER,
    RUNS_IN_ORDER,
    THE_DEAD_SLEEP,
)
from boki.verify.sim.calls import LoggedEngine
from boki.verify.sim.options import Options
from boki.verify.sim.stranded import CALLERS_ARE_TOLD, SLEEPERS_WAKE
from boki.verify.sim.stray_alarms import ONLY_SLEEPERS
from boki.verify.sim.subscriptions import SETTLED
from tests.verify.sim.without import without


def no_fence_before_a_takeover() -> Any:
    """Logged calls of an engine that is presumed lost are begun again at once."""

    async def believe(self: LoggedEngine, incarnation: int) -> None:
        """Whoever is not registered is gone."""

    return without(LoggedEngine, "_fence", believe)


def no_condition_on_ends() -> Any:
    """The end of a logged call is recorded whatever its last record is."""
    return _blind(lambda entry: isinstance(entry, Finished))


def no_condition_on_runs() -> Any:
    """A run begins whatever has become of its call: it has ended, or is another engine's."""
    return _blind(lambda entry: not isinstance(entry, Finished))


def no_numbers_of_runs() -> Any:
    """Whatever run of a call begins is recorded as its first."""

    async def forgetful(self: CallBook, waiting: Waiting, runs: Runs) -> Waiting | None:
        while (found := await self._mine(waiting)) is not None:
            started = Started(found.id, found.accepted_seqnum, found.due_us, self.me, 1, runs)
            if await self.append_after(started, found.seqnum):
                return self.ledger.waiting.get(waiting.id)
        return None

    return without(CallBook, "begin", forgetful)


def _blind(is_meant: Callable[[CallEntry], bool]) -> Any:
    """Such records of a call are appended whatever its last record is."""
    append_after = CallBook.append_after

    async def blind(self: CallBook, entry: CallEntry, expected_seqnum: int, tags: Sequence[str] = ()) -> int:
        if not is_meant(entry):
            return await append_after(self, entry, expected_seqnum, tags)
        seqnum = await self._book.append(CODEC.encode(entry), [id_tag(id_of(entry)), *tags])
        self.ledger.learn(seqnum, 0, entry)
        return seqnum

    return without(CallBook, "append_after", blind)


def no_first_use_of_a_key() -> Any:
    """What a call under a key has computed before it was accepted counts, though its key was used before."""
    accept_ended = CallBook.accept_ended

    async def trusting(
        self: CallBook, entry: Accepted, end: Finished, appends: Sequence[Append], key: str | None
    ) -> bool:
        return await accept_ended(self, entry, end, appends, key) or key is not None

    return without(CallBook, "accept_ended", trusting)


def no_look_at_what_was_there() -> Any:
    """A suspended call is woken by records that come from then on, and not by one that came first."""

    def forward_looking(self: Watches, book: str, tag: str, _min_seqnum: int, token: Any) -> list[Effect]:
        return add(self, book, tag, max(_min_seqnum, self._index.last(book, tag) + 1), token)

    add = Watches.add
    return without(Watches, "add", forward_looking)


def no_end_of_a_sleep() -> Any:
    """A suspended call is woken by each thing that it waits for."""

    def rouse(self: Sleepers, sleeper: Any) -> None:
        self._wake(sleeper.call.id)

    return without(Sleepers, "rouse", rouse)


def no_end_of_alarms() -> Any:
    """The alarm of a call stays when the call ends, wakes by a record or is another's (C1: too many timers)."""

    def disarm(self: Sleepers, invocation_id: str) -> None:
        sleeper = self._asleep.get(invocation_id)
        if sleeper is not None:
            for wake in sleeper.call.wakes:
                self._port.unwatch(wake.book, wake.tag, sleeper)

    return without(Sleepers, "disarm", disarm)


def no_look_whether_a_sleeper_is_dead() -> Any:
    """What a suspended call waits for resumes it, also if it has ended (C6). Three things keep it from that: its engine
    hears of the end, looks for one in the log before a run, and begins the run on condition that there is none.
    """
    apply, newest, begin = Ledger._apply, CallBook.newest, CallBook.begin

    def deaf(self: Ledger, entry: CallEntry, seqnum: int, record_time_us: int) -> None:
        is_asleep = isinstance(self.waiting.kept(id_of(entry)), PackedCall)
        if not (is_asleep and isinstance(entry, Finished)):
            apply(self, entry, seqnum, record_time_us)

    async def blind(self: CallBook, invocation_id: str) -> tuple[CallEntry, Record] | None:
        last, known = await newest(self, invocation_id), self.ledger.waiting.get(invocation_id)
        if last is None or known is None or known.suspension is None:
            return last
        return Suspended(known.id, known.accepted, known.owner, Runs(known.attempts), known.suspension), last[1]

    async def resume(self: CallBook, waiting: Waiting, runs: Runs) -> Waiting | None:
        if waiting.state != "suspended":
            return await begin(self, waiting, runs)
        started = Started(waiting.id, waiting.accepted_seqnum, waiting.due_us, self.me, 1, runs)
        seqnum = await self._book.append(CODEC.encode(started), [id_tag(waiting.id)])
        self.ledger.learn(seqnum, 0, started)
        return self.ledger.waiting.get(waiting.id)

    stack = ExitStack()
    stack.enter_context(without(Ledger, "_apply", deaf))
    stack.enter_context(without(CallBook, "newest", blind))
    stack.enter_context(without(CallBook, "begin", resume))
    return stack


def no_inheritance_of_sleepers() -> Any:
    """The heir of a lost engine does not wait for what its suspended calls wait for (C2)."""
    return without(Sleepers, "inherit", lambda self, waiting: None)


def no_subscriptions_beside_a_time() -> Any:
    """A suspended call that waits for a time, too, is woken by that alone (C2). It wakes, and only later."""
    watch = Sleepers._watch

    class Deaf:
        """Nothing is watched."""

        def watch(self, *_: Any) -> None: ...

    def timed(self: Sleepers, sleeper: Any) -> None:
        port: Any = self._port
        self._port = Deaf() if sleeper.call.due_us else port  # type: ignore[assignment]
        try:
            watch(self, sleeper)
        finally:
            self._port = port

    return without(Sleepers, "_watch", timed)


def no_word_of_ends() -> Any:
    """Callers that wait for the end of a call are not told that it has come (C3). They ask again, some time."""
    return without(CallBook, "_tell_end", lambda _self, _invocation_id, _found: None)


NEED_SLEEPERS: Final = ("end of alarms", "resumption of the living")
"""Ablations that need calls which are cancelled, or woken by a record, before their time: the swarm has few of them."""


def draw_sleepers(seed: int) -> Options:
    """A small run of calls most of which are suspended, and some cancelled meanwhile."""
    return Options(
        seed=seed, clients=1, engines=2, gateways=1, chaos_us=3_000_000, calls=8, call_sleep=1.0, call_trouble=0.5
    )


ABLATIONS: Final[dict[str, Callable[[], Any]]] = {
    "fence before a takeover": no_fence_before_a_takeover,
    "wake-ups that came first": no_look_at_what_was_there,
    "one wake-up for a sleep": no_end_of_a_sleep,
    "end of alarms": no_end_of_alarms,
    "resumption of the living": no_look_whether_a_sleeper_is_dead,
    "inheritance of suspended calls": no_inheritance_of_sleepers,
    "subscriptions beside a time": no_subscriptions_beside_a_time,
    "word of ends": no_word_of_ends,
    "first use of a call's key": no_first_use_of_a_key,
    "conditions on the ends of calls": no_condition_on_ends,
    "conditions on the runs of calls": no_condition_on_runs,
    "numbers of runs": no_numbers_of_runs,
}
CAUGHT_BY: Final[dict[str, str]] = {
    "fence before a takeover": ONE_OWNER,
    "wake-ups that came first": SETTLED,
    "one wake-up for a sleep": "a run begins once",
    "end of alarms": ONLY_SLEEPERS,
    "resumption of the living": THE_DEAD_SLEEP,
    "inheritance of suspended calls": SLEEPERS_WAKE,
    "subscriptions beside a time": SLEEPERS_WAKE,
    "word of ends": CALLERS_ARE_TOLD,
    "first use of a call's key": "a key has one call",
    "conditions on the ends of calls": ONE_END,
    "conditions on the runs of calls": NOTHING_AFTER_THE_END,
    "numbers of runs": RUNS_IN_ORDER,
}
"""See `flow_ablations`."""
