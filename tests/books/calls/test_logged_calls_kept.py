"""How long logged calls are kept, what a restart reads, and how the last one to stop leaves the book."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from boki.api.suspension import MAX_NOTE_CHARS, MAX_WAKES
from boki.books.calls.ledger import BOOK, Accepted, Checkpoint, Finished, Started, TakenOver
from boki.errors import (
    FunctionFailed,
    NoSuchInvocation,
    TooLarge,
    Unavailable,
    VersionTooNew,
)
from boki.log.chunk import Group, encode_chunk
from boki.log.limits import KIB
from boki.log.operations import Append
from boki.protocol.calls import Call, Outcome, Payload, Suspension, WakeOn
from tests.books.calls.call_world import CallWorld, Gate, a_call, echo, failing, now_us, run, time_passes

KEEP_S = 3600.0


def test_records_are_trimmed_when_they_are_older_than_they_are_kept() -> None:
    """By the log's time, and by nothing else."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start(keep_s=KEEP_S)
        await calls.accept(a_call(1))
        assert (await calls.state(a_call(1).id, wait_s=0.9 * KEEP_S)).state == "done"
        await calls.accept(a_call(2), delay_s=0.9 * KEEP_S)
        await calls.state(a_call(2).id, wait_s=KEEP_S)
        assert (await calls.state(a_call(1).id)).state == "done"
        await calls.accept(a_call(3), delay_s=0.3 * KEEP_S)
        await calls.state(a_call(3).id, wait_s=KEEP_S)
        with pytest.raises(NoSuchInvocation):
            await calls.state(a_call(1).id)
        assert (await calls.state(a_call(2).id)).state == "done"
        await calls.stop()

    run(scenario())


def test_a_call_that_waits_longer_than_records_are_kept_is_carried_forward() -> None:
    """It neither gets lost nor holds up trimming, and runs when it is due; also across restarts."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start(keep_s=KEEP_S)
        await calls.accept(a_call(1, data=b'"late"'), delay_s=8 * KEEP_S)
        accepted = await calls.state(a_call(1).id)
        for turn in range(1, 6):
            await calls.accept(a_call(100 + turn), delay_s=KEEP_S)
            await calls.state(a_call(100 + turn).id, wait_s=2 * KEEP_S)
            if turn == 3:
                await world.kill()
                calls = await world.start(keep_s=KEEP_S)
        assert len(world.entries()) < 8
        waiting = await calls.state(a_call(1).id)
        assert (waiting.state, waiting.accepted_us, waiting.due_us) == (
            "accepted",
            accepted.accepted_us,
            accepted.due_us,
        )
        done = await calls.state(a_call(1).id, wait_s=8 * KEEP_S)
        assert (done.state, done.result, done.due_us) == ("done", Payload("json", b'"late"'), accepted.due_us)
        assert 0 <= done.started_us - accepted.due_us < 1000
        await calls.stop()

    run(scenario())


@pytest.mark.parametrize("spare", [600, 17_000])
def test_a_call_that_could_not_be_carried_forward_is_refused(spare: int) -> None:
    """It may wait for sixteen tags for longer than records are kept. If it did not fit a record any more, it held up
    the trimming of the book, for as long as it waited.
    """

    async def scenario() -> None:
        world = CallWorld()
        wakes = tuple(WakeOn("b" * 255, f"{number:0255}", 1) for number in range(MAX_WAKES))

        async def waits(_call: Call) -> Outcome:
            return Outcome(None, None, {}, Suspension(0, wakes, "\u00e9" * MAX_NOTE_CHARS))

        world.bodies["waits"] = waits
        calls = await world.start(keep_s=KEEP_S)
        large = a_call(1, "waits", b"x" * (world.limits.record_bytes - spare))
        if spare < 16 * KIB:
            with pytest.raises(TooLarge, match=r"a logged one may have at most 1,032,192: append it to a LogBook"):
                await calls.accept(large)
        else:
            await calls.accept(large)
        for turn in range(1, 6):
            await calls.accept(a_call(100 + turn), delay_s=KEEP_S)
            await calls.state(a_call(100 + turn).id, wait_s=2 * KEEP_S)
        assert len(world.entries()) < 8
        assert calls.suspended_count == (spare > 16 * KIB)
        await calls.stop()

    run(scenario())


def test_a_call_that_finishes_while_it_is_carried_forward_finishes_once() -> None:
    """The one that loses the race finds what the other has written."""

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["wait"] = Gate()
        calls = await world.start(keep_s=60)
        await calls.accept(a_call(1, "wait"))
        await gate.started.wait()
        await calls.accept(a_call(2), delay_s=100)
        await calls.state(a_call(2).id, wait_s=200)
        carried = [entry for entry in world.entries() if isinstance(entry, Accepted) and entry.call.id == a_call(1).id]
        assert [entry.accepted_us != 0 for entry in carried] == [True]
        gate.opened.set()
        assert (await calls.state(a_call(1).id, wait_s=10)).state == "done"
        assert len([entry for entry in world.finished() if entry.id == a_call(1).id]) == 1
        await calls.stop()

    run(scenario())


def test_the_end_of_a_call_that_was_carried_while_it_ran_names_the_acceptance_that_is_kept() -> None:
    """Else a retry finds no payload, although that is in the log."""

    async def scenario() -> None:
        world = CallWorld()
        body = Gate()

        async def fails(call: Call) -> Outcome:
            await body(call)
            return failing(FunctionFailed("no"))

        world.bodies["long"] = fails
        calls = await world.start(keep_s=KEEP_S)
        await calls.accept(a_call(1, "long", timeout_s=100 * KEEP_S))
        await body.started.wait()
        for number in range(20):
            await calls.accept(a_call(100 + number))
            await time_passes(KEEP_S / 8)
        first = world.records()[0].seqnum
        world.bodies["long"] = echo
        body.opened.set()
        await time_passes(1)
        assert (await calls.state(a_call(1).id)).state == "failed"
        (end,) = [entry for entry in world.finished() if entry.id == a_call(1).id]
        assert end.accepted_seqnum >= first
        await calls.retry(a_call(1).id)
        assert (await calls.state(a_call(1).id, wait_s=10)).state == "done"
        await calls.stop()

    run(scenario())


def test_a_restart_reads_from_the_last_checkpoint_on() -> None:
    """A clean stop leaves a checkpoint, and what lies below it is not read again."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        for number in range(1, 30):
            await calls.accept(a_call(number))
            await calls.state(a_call(number).id, wait_s=10)
        await calls.accept(a_call(99), delay_s=KEEP_S)
        await calls.stop()
        (checkpoint,) = [entry for entry in world.entries() if isinstance(entry, Checkpoint)]
        assert [waiting.id for waiting in checkpoint.waiting] == [a_call(99).id]
        calls = await world.start()
        assert calls.waiting_count == 1
        reads = [operation for operation in world.port.operations if getattr(operation, "start", 0)]
        assert reads
        assert all(read.start >= checkpoint.fold_from for read in reads)  # type: ignore[union-attr]
        assert (await calls.state(a_call(99).id, wait_s=2 * KEEP_S)).state == "done"
        await calls.stop()

    run(scenario())


def test_a_restart_does_without_a_checkpoint_that_builds_on_trimmed_records() -> None:
    """The checkpoint of a stop stands behind records of other books, and a trim keeps it without what it builds on."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start(keep_s=KEEP_S)
        await calls.accept(a_call(1))
        await calls.state(a_call(1).id, wait_s=1)
        await calls.accept(a_call(2), delay_s=4 * KEEP_S)
        world.log.answer(Append("other", encode_chunk("other", [Group([(b"", ())])])), now_us())
        await time_passes(0.5 * KEEP_S)
        await calls.stop()
        await world.start(keep_s=KEEP_S)
        await time_passes(0.7 * KEEP_S)
        assert isinstance(world.entries()[0], Checkpoint)
        await world.kill()
        calls = await world.start({1_000: "halt_before"}, keep_s=KEEP_S)
        assert calls.waiting_count == 1
        assert (await calls.state(a_call(2).id, wait_s=5 * KEEP_S)).state == "done"
        assert [call.id for call in world.ran] == [a_call(1).id, a_call(2).id]
        await calls.stop()

    run(scenario())


def test_an_engine_that_is_killed_leaves_little_to_read() -> None:
    """Checkpoints come while it works, not only in the end: the next start does not read what all calls have left."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        for number in range(1, 400):
            await calls.accept(a_call(number))
            await calls.state(a_call(number).id, wait_s=10)
        entries = world.entries()
        written = [at for at, entry in enumerate(entries) if isinstance(entry, Checkpoint)]
        assert written
        assert max(later - earlier for earlier, later in pairwise([0, *written, len(entries)])) < 600
        await calls.stop()

    run(scenario())


def test_stopping_refuses_new_calls_and_leaves_the_rest_for_the_next_start() -> None:
    """Who waits is told that it is unknown; the call is not lost."""

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["wait"] = Gate()
        calls = await world.start()
        waiter = asyncio.create_task(calls.call_once(a_call(1, "wait"), "k"))
        await gate.started.wait()
        await calls.stop(drain_s=1)
        _, outcome = await waiter
        assert outcome.failure is not None
        assert (outcome.failure.code, outcome.failure.outcome) == ("unavailable", "unknown")
        with pytest.raises(Unavailable):
            await calls.accept(a_call(2))
        world.bodies.clear()
        calls = await world.start()
        assert (await calls.call_once(a_call(3, "wait"), "k"))[0] == a_call(1).id
        await calls.stop()

    run(scenario())


def test_records_of_a_newer_version_stop_the_start() -> None:
    """A downgrade is refused by name instead of running calls that are not understood."""

    async def scenario() -> None:
        world = CallWorld()
        chunk = encode_chunk(BOOK, [Group([(b"\x05new", ("accepted",))])])
        world.log.answer(Append(BOOK, chunk), now_us())
        with pytest.raises(VersionTooNew):
            await world.start()
        assert not world.ran

    run(scenario())


def test_what_is_recorded_is_what_the_first_to_finish_recorded() -> None:
    """Another runner of the same call may have been faster: its outcome counts, and is told."""

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["wait"] = Gate()
        calls = await world.start()
        waiter = asyncio.create_task(calls.call_once(a_call(1, "wait"), "k"))
        await gate.started.wait()
        other = CallWorld()
        other.log, other.incarnation = world.log, world.incarnation

        async def body(_call: Call) -> Outcome:
            return Outcome(Payload("json", b'"other"'), None)

        other.bodies["wait"] = body
        await (await other.start()).state(a_call(1).id, wait_s=10)
        gate.opened.set()
        assert (await waiter)[1].result == Payload("json", b'"other"')
        assert [type(entry) for entry in world.entries()] == [Accepted, TakenOver, Started, Finished]
        await calls.stop()
        await other.calls.stop()

    run(scenario())
