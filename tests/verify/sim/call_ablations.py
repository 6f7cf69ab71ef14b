"""Safeguards of logged calls, each switched off: see `tests.verify.sim.ablations`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from boki.books.calls.call_book import CallBook
from boki.books.calls.ledger import CODEC, Accepted, CallEntry, Finished, Started, id_of, id_tag
from boki.books.calls.runs import Runs
from boki.books.calls.sleepers import Sleepers
from boki.books.calls.waiting import Waiting
from boki.engine.watches import Watches
from boki.log.operations import Append
from boki.protocol.effects import Effect
from boki.verify.sim.call_promises import NOTHING_AFTER_THE_END, ONE_END, ONE_OWNER, RUNS_IN_ORDER
from boki.verify.sim.calls import LoggedEngine
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
        while (found := self._mine(waiting.id)) is not None:
            started = Started(found.id, found.accepted_seqnum, found.due_us, self.me, 1, runs)
            if await self.append_after(started, found.seqnum):
                break
        return self._mine(waiting.id)

    return without(CallBook, "begin", forgetful)


def _blind(is_meant: Callable[[CallEntry], bool]) -> Any:
    """Such records of a call are appended whatever its last record is."""
    append_after = CallBook.append_after

    async def blind(self: CallBook, entry: CallEntry, expected_seqnum: int, tags: Sequence[str] = ()) -> bool:
        if not is_meant(entry):
            return await append_after(self, entry, expected_seqnum, tags)
        seqnum = await self._book.append(CODEC.encode(entry), [id_tag(id_of(entry)), *tags])
        self.ledger.learn(seqnum, 0, entry)
        return True

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


def no_inheritance_of_sleepers() -> Any:
    """The heir of a lost engine does not wait for what its suspended calls wait for."""
    return without(Sleepers, "inherit", lambda self, waiting: None)


ABLATIONS: Final[dict[str, Callable[[], Any]]] = {
    "fence before a takeover": no_fence_before_a_takeover,
    "wake-ups that came first": no_look_at_what_was_there,
    "one wake-up for a sleep": no_end_of_a_sleep,
    "inheritance of suspended calls": no_inheritance_of_sleepers,
    "first use of a call's key": no_first_use_of_a_key,
    "conditions on the ends of calls": no_condition_on_ends,
    "conditions on the runs of calls": no_condition_on_runs,
    "numbers of runs": no_numbers_of_runs,
}
CAUGHT_BY: Final[dict[str, str]] = {
    "fence before a takeover": ONE_OWNER,
    "wake-ups that came first": SETTLED,
    "one wake-up for a sleep": "a run begins once",
    "inheritance of suspended calls": "accepted calls end",
    "first use of a call's key": "a key has one call",
    "conditions on the ends of calls": ONE_END,
    "conditions on the runs of calls": NOTHING_AFTER_THE_END,
    "numbers of runs": RUNS_IN_ORDER,
}
"""See `flow_ablations`."""
