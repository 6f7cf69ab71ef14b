"""What a run leaves to be appended with its end: it comes into the log once, in the batch of the end."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from boki.api.log_calls import records_of
from boki.books.calls.ledger import BOOK, Finished, Retrying
from boki.errors import FunctionFailed
from boki.log.chunk import Group, encode_chunk
from boki.log.operations import Append, Found, Read
from boki.log.record import Expect
from boki.protocol.calls import Call, Outcome
from boki.retry import Retry
from tests.books.calls.call_world import CallWorld, Fault, a_call, failing, now_us, run, time_passes

TAG = "!journal"


def left(place: int = 0) -> Append:
    """A record for that place of the journal."""
    return Append("book", encode_chunk("book", [Group([(b"last", (TAG,))], (Expect(TAG, count=place),))]))


async def leaving(call: Call) -> Outcome:
    """A function that leaves its last record to its engine."""
    return Outcome(call.payload, None, {}, appends=(left(),))


def journal(world: CallWorld) -> list[bytes]:
    found = world.log.answer(Read("book", TAG, limit=10), now_us())
    assert isinstance(found, Found)
    return [record.data for record in records_of(found)]


@pytest.mark.parametrize("fault", [None, *get_args(Fault)])
def test_the_record_comes_into_the_log_once(fault: Fault | None) -> None:
    """Whatever is lost on the way, or if the engine stops there and the next one runs the call again."""

    async def scenario() -> None:
        for number in range(6):
            world = CallWorld()
            world.bodies["leave"] = leaving
            calls = await world.start()
            world.port.faults = {len(world.port.operations) + number: fault} if fault is not None else {}
            call = a_call(1, "leave")
            try:
                outcome = None
                outcome = (await calls.call_once(msgspec.structs.replace(call, timeout_us=2_000_000), "key"))[1]
            except Exception:  # noqa: BLE001 - it was refused, or its engine is gone
                await world.kill()
                world.bodies["leave"] = leaving
                calls = await world.start()
                outcome = (await calls.call_once(call, "key"))[1]
            assert outcome.failure is None
            assert not outcome.appends, "they are no part of what a call ended with"
            await time_passes(1)  # one that was refused is appended again
            assert journal(world) == [b"last"], (fault, number)
            assert len(world.finished()) == 1
            await world.kill()

    run(scenario())


def test_the_record_and_the_end_are_asked_for_in_one_turn() -> None:
    """So they are in one batch, and nobody waits for one and then for the other."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["leave"] = leaving
        calls = await world.start()
        await calls.call_once(a_call(1, "leave"), "key")
        appends = [operation for operation in world.port.operations if isinstance(operation, Append)]
        assert [append.book for append in appends] == [BOOK, "book", BOOK]
        first = world.port.operations.index(appends[1])
        assert world.port.operations[first + 1] is appends[2]

    run(scenario())


def test_a_run_that_failed_leaves_its_record_before_the_next_one_begins() -> None:
    """The next run reads what the one before has done."""

    async def scenario() -> None:
        world = CallWorld()
        seen: list[list[bytes]] = []

        async def body(call: Call) -> Outcome:
            seen.append(journal(world))
            if len(seen) > 1:
                return Outcome(call.payload, None)
            bad = failing(FunctionFailed("bad: ValueError: no", error_type="ValueError"))
            return msgspec.structs.replace(bad, appends=(left(),))

        world.bodies["leave"] = body
        calls = await world.start()
        retry = Retry(attempts=2, first_s=1, jitter=0)
        await calls.accept(msgspec.structs.replace(a_call(1, "leave"), retry=retry))
        await time_passes(5)
        assert seen == [[], [b"last"]]
        assert [type(entry) for entry in world.entries() if isinstance(entry, Retrying | Finished)] == [
            Retrying,
            Finished,
        ]

    run(scenario())


def test_an_end_stands_although_its_record_was_refused() -> None:
    """Somebody else stands in its place of the journal: that is noted in the engine's log, and is no end of its own."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["leave"] = leaving
        world.log.answer(left(), now_us())
        calls = await world.start()
        _, outcome = await calls.call_once(a_call(1, "leave"), "key")
        assert outcome.failure is None
        assert journal(world) == [b"last"]

    run(scenario())
