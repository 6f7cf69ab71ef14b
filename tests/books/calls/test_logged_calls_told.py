"""What an engine reports about a logged call when its index is behind, or the log without a majority."""

from __future__ import annotations

import msgspec
import pytest

from boki.api.log_calls import records_of
from boki.books.calls.ledger import BOOK, id_tag
from boki.books.calls.logged_calls import LoggedCalls
from boki.books.calls.waiting import Owner
from boki.errors import DeadlineExceeded
from boki.log.ids import MAX_SEQNUM
from boki.log.metalog import Positions
from boki.log.operations import Answer, Found, Operation, Read
from boki.protocol.calls import Call, Outcome, Suspension
from tests.books.calls.call_world import CallWorld, FaultyPort, a_call, echo, now_us, run, time_passes
from tests.books.calls.test_logged_calls_asked import broken


class Behind(FaultyPort):
    """An engine whose index has not come so far, until it asks the log for its tail."""

    below = MAX_SEQNUM

    def stay_behind(self) -> None:
        """See no record that comes from now on."""
        found = self.log.answer(Read(BOOK, backward=True), now_us())
        assert isinstance(found, Found)
        (last,) = records_of(found)
        self.below = last.seqnum + 1

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        if isinstance(operation, Read) and not operation.fresh:
            operation = msgspec.structs.replace(operation, stop=min(operation.stop, self.below))
        return await super().request(operation, positions, timeout_s)


def test_what_one_engine_has_told_of_a_call_holds_at_every_other() -> None:
    """Its end, and that it was run again after that, though the index of the other is behind."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["bad"] = broken
        calls = await world.start(tries=False)
        behind = Behind(world.log)
        other = LoggedCalls(behind, broken, me=Owner("engine-2", 2), clock=now_us)
        await calls.accept(a_call(1, "bad"), delay_s=10)
        await other.start()
        behind.stay_behind()
        assert (await calls.state(a_call(1).id, wait_s=100)).state == "failed"
        assert (await other.state(a_call(1).id)).state == "failed"
        assert (await other.retry(a_call(1).id)).state == "accepted", "it had ended"
        behind.below = MAX_SEQNUM
        assert (await other.state(a_call(1).id, wait_s=100)).state == "failed"
        await time_passes(1)
        behind.stay_behind()
        await calls.retry(a_call(1).id)
        assert (await other.state(a_call(1).id)).state in ("accepted", "running"), "it runs again"
        behind.below = MAX_SEQNUM
        await other.stop()
        await calls.stop()

    run(scenario())


class Undecided(FaultyPort):
    """An engine behind which the log has no majority: nobody tells it the tail."""

    is_undecided = False

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        if self.is_undecided and isinstance(operation, Read) and operation.fresh:
            await time_passes(timeout_s)
            raise DeadlineExceeded("no majority of the sequencers answered")
        return await super().request(operation, positions, timeout_s)


@pytest.mark.parametrize(("wait_s", "longest_s"), [(0.0, 1.1), (0.2, 0.3), (20.0, 20.1)])
def test_what_is_known_of_a_call_is_told_without_a_majority(wait_s: float, longest_s: float) -> None:
    """A second late at most, and no later than it was asked for; to change the call needs the majority."""

    async def scenario() -> None:
        world = CallWorld()
        port = Undecided(world.log)
        calls = LoggedCalls(port, echo, me=Owner("engine-1", 1), clock=now_us)
        await calls.start()
        await calls.accept(a_call(1), delay_s=3600)
        port.is_undecided = True
        began_us = now_us()
        assert (await calls.state(a_call(1).id, wait_s)).state == "accepted"
        assert now_us() - began_us <= longest_s * 1e6
        for asked in (calls.cancel(a_call(1).id), calls.state("0" * 32, wait_s)):  # another engine may know that one
            with pytest.raises(DeadlineExceeded):
                await asked
        port.is_undecided = False
        await calls.stop()

    run(scenario())


def test_a_wait_that_has_run_out_asks_the_log_nothing_more() -> None:
    """The engine has followed the log all the time."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        await calls.accept(a_call(1), delay_s=3600)
        before = len(world.port.operations)
        assert (await calls.state(a_call(1).id, 20)).state == "accepted"
        assert not any(isinstance(each, Read) and each.fresh for each in world.port.operations[before:])
        await calls.stop()

    run(scenario())


def test_a_run_reads_nothing_of_its_call_after_its_own_records() -> None:
    """Each was appended on the condition that nothing had come in between, however much there is of other calls."""

    async def scenario() -> None:
        world = CallWorld()
        runs = 0

        async def rest_once(call: Call) -> Outcome:
            nonlocal runs
            runs += 1
            await calls.accept(a_call(10 + runs), delay_s=3600)
            if runs == 1:
                return Outcome(None, None, suspended=Suspension(now_us() + 1_000_000))
            return Outcome(call.payload, None)

        world.bodies["body"] = rest_once
        calls = await world.start(tries=False)
        await calls.accept(a_call(1, "body"))
        await time_passes(10)
        assert (await calls.state(a_call(1).id)).state == "done"
        tag = id_tag(a_call(1).id)
        reads = [each for each in world.port.operations if isinstance(each, Read) and each.tag == tag]
        assert all(each.backward for each in reads), "no range between two records"
        await calls.stop()

    run(scenario())
