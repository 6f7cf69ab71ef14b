"""Appends of one turn of the loop travel together, and each is answered for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from boki.api.append_gatherer import AppendGatherer
from boki.api.port import Told
from boki.errors import ConditionFailed, DeadlineExceeded, Overloaded, TooLarge
from boki.log.chunk import Chunk, Group
from boki.log.limits import KIB, Limits
from boki.log.metalog import Positions
from boki.log.operations import Answer, Append, Appended, Operation, Rejected
from boki.log.record import Expect


class Port:
    """Answers when told to; remembers what it was asked."""

    def __init__(self, *answers: Appended | Exception) -> None:
        self.chunks: list[Chunk] = []
        self.timeouts_s: list[float] = []
        self.answers = list(answers)
        self.gate = asyncio.Event()
        self.gate.set()
        self.next_seqnum = 100

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        assert isinstance(operation, Append)
        chunk = Chunk(operation.chunk)
        assert chunk.book == operation.book
        self.chunks.append(chunk)
        self.timeouts_s.append(timeout_s)
        first_seqnum, self.next_seqnum = self.next_seqnum, self.next_seqnum + chunk.count
        await self.gate.wait()
        positions[0] = self.next_seqnum
        answer = self.answers.pop(0) if self.answers else Appended(first_seqnum)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def counts(self) -> list[tuple[str, int]]:
        return [(chunk.book, chunk.count) for chunk in self.chunks]


def group(*data: bytes, when: Sequence[Expect] = (), key: str | None = None) -> Group:
    return Group([(each, ()) for each in data], when, key)


def test_appends_of_one_turn_are_one_request_a_book() -> None:
    """In the order of the calls; neighbours of several records keep their place."""

    async def scenario() -> None:
        port = Port()
        gatherer = AppendGatherer(port)
        futures = [
            gatherer.add(book, group(*data), {}, 30)
            for book, *data in (("a", b"1"), ("b", b"2"), ("a", b"3", b"4"), ("a", b"5"), ("b", b"6"))
        ]
        assert [list(seqnums) for seqnums in await asyncio.gather(*futures)] == [[100], [104], [101, 102], [103], [105]]
        assert port.counts == [("a", 4), ("b", 2)]
        assert [port.chunks[0].payload(i) for i in range(4)] == [b"1", b"3", b"4", b"5"]
        await gatherer.add("a", group(b"alone"), {}, 30)
        assert port.counts[2:] == [("a", 1)]

    asyncio.run(scenario())


def test_chunks_are_split() -> None:
    """At 256 KiB, and at what a request may hold; a record that is larger goes alone. The order of a book stays."""

    async def scenario(limits: Limits, sizes: list[int]) -> list[int]:
        port = Port()
        gatherer = AppendGatherer(port, limits)
        futures = [gatherer.add("a", group(bytes(size)), {}, 30) for size in sizes]
        seqnums = [seqnum for seqnums in await asyncio.gather(*futures) for seqnum in seqnums]
        assert seqnums == list(range(100, 100 + len(sizes)))
        return [chunk.count for chunk in port.chunks]

    assert asyncio.run(scenario(Limits(), [100 * KIB] * 5)) == [2, 2, 1]
    assert asyncio.run(scenario(Limits(), [10, 1000 * KIB, 10, 10])) == [1, 1, 2]
    assert asyncio.run(scenario(Limits(record_bytes=1000, request_bytes=4000), [1000] * 7)) == [3, 3, 1]


class Beginning(Port):
    """A port that begins a request when it is told to, as that of a worker."""

    def begin_request(self, operation: Operation, _positions: Positions, _timeout_s: float, told: Told) -> bool:
        """See `boki.api.port.BeginningPort`."""
        assert isinstance(operation, Append)
        chunk = Chunk(operation.chunk)
        self.chunks.append(chunk)
        answer = Appended(self.next_seqnum)
        self.next_seqnum += chunk.count
        asyncio.get_running_loop().call_soon(told, answer, {0: self.next_seqnum})
        return True


def test_what_is_large_leaves_before_the_turn_ends() -> None:
    """128 KiB do not wait for the callers that are still to run; what gathers after them waits for the next 128, or for
    the end of the turn. The order stays.
    """

    async def scenario() -> None:
        port = Beginning()
        gatherer = AppendGatherer(port)
        futures, sent = [], []
        for _ in range(300):
            futures.append(gatherer.add("a", group(bytes(KIB)), {}, 30))
            sent.append(len(port.chunks))
        first, second = sent.index(1) + 1, sent.index(2) + 1
        assert second == 2 * first
        assert 120 <= first <= 128
        assert [list(each) for each in await asyncio.gather(*futures)] == [[100 + number] for number in range(300)]
        assert [chunk.count for chunk in port.chunks] == [first, first, 300 - second]

    asyncio.run(scenario())


def test_each_append_has_its_own_verdict() -> None:
    """A failed condition is raised where it was set, a used key gives its first seqnums, and the others continue."""

    async def scenario() -> None:
        verdicts = (Rejected(1, "t", 5, 7), Rejected(3, "", 0, 0, (40, 41)))
        gatherer = AppendGatherer(Port(Appended(100, verdicts)))
        futures = [
            gatherer.add("a", group(b"1"), {}, 30),
            gatherer.add("a", group(b"2", b"3", when=[Expect("t", 5)]), {}, 30),
            gatherer.add("a", group(b"4"), {}, 30),
            gatherer.add("a", group(b"5", key="k"), {}, 30),
            gatherer.add("a", group(b"6"), {}, 30),
        ]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        failed = outcomes.pop(1)
        assert [list(seqnums) for seqnums in outcomes if not isinstance(seqnums, BaseException)] == [
            [100],
            [103],
            [40, 41],
            [105],
        ]
        assert isinstance(failed, ConditionFailed)
        assert (failed.tag, failed.expected_seqnum, failed.actual_seqnum, failed.book) == ("t", 5, 7, "a")

    asyncio.run(scenario())


def test_an_error_of_the_request_is_everybodys() -> None:
    """With all that it says, and for each an exception of its own, because tracebacks grow on them."""

    async def scenario() -> None:
        gatherer = AppendGatherer(Port(Overloaded("too much", retry_after_s=2)))
        futures = [gatherer.add("a", group(b"x"), {}, 30) for _ in range(3)]
        errors = await asyncio.gather(*futures, return_exceptions=True)
        assert len({id(error) for error in errors}) == 3
        for error in errors:
            assert isinstance(error, Overloaded)
            assert (error.outcome, error.retryable, error.retry_after_s) == ("not_applied", True, 2)

    asyncio.run(scenario())


def test_a_group_that_no_request_can_hold_is_refused() -> None:
    """Its neighbours in the same turn are appended."""

    async def scenario() -> None:
        port = Port()
        gatherer = AppendGatherer(port, Limits(record_bytes=100, request_bytes=1000))
        small = gatherer.add("a", group(b"x"), {}, 30)
        large = gatherer.add("a", group(*[b""] * 100), {}, 30)
        with pytest.raises(TooLarge, match="1,000 bytes"):
            await large
        assert list(await small) == [100]

    asyncio.run(scenario())


def test_what_is_given_up_before_it_leaves_is_not_sent() -> None:
    """A call that is cancelled in the same turn appends nothing."""

    async def scenario() -> None:
        port = Port()
        gatherer = AppendGatherer(port)
        lone = gatherer.add("b", group(b"lone"), {}, 30)
        given_up = gatherer.add("a", group(b"1"), {}, 30)
        kept = gatherer.add("a", group(b"2"), {}, 30)
        lone.cancel()
        given_up.cancel()
        assert list(await kept) == [100]
        assert port.counts == [("a", 1)]

    asyncio.run(scenario())


def test_what_is_given_up_later_does_not_disturb() -> None:
    """Its neighbours are answered."""

    async def scenario() -> None:
        port = Port()
        port.gate.clear()
        gatherer = AppendGatherer(port)
        given_up, kept = (gatherer.add("a", group(data), {}, 30) for data in (b"1", b"2"))
        await asyncio.sleep(0)
        given_up.cancel()
        port.gate.set()
        assert list(await kept) == [101]

    asyncio.run(scenario())


def test_each_append_has_its_own_deadline() -> None:
    """The request has the latest one; who has less time is told at its own, that it may have happened."""

    async def scenario() -> None:
        port = Port()
        port.gate.clear()
        gatherer = AppendGatherer(port)
        short = gatherer.add("a", group(b"1"), {}, 0.02)
        long = gatherer.add("a", group(b"2"), {}, 30)
        with pytest.raises(DeadlineExceeded) as caught:
            await short
        assert caught.value.outcome == "unknown"
        assert port.timeouts_s == [30]
        port.gate.set()
        assert list(await long) == [101]

    asyncio.run(scenario())


def test_everybody_has_seen_what_the_request_has_seen() -> None:
    """The positions of each call are raised before it continues, also those of calls that failed."""

    async def scenario() -> None:
        gatherer = AppendGatherer(Port(Appended(100, (Rejected(1, "t", 5, 7),))))
        mine: Positions = {}
        theirs: Positions = {0: 10_000, 1: 3}
        futures = [
            gatherer.add("a", group(b"1"), mine, 30),
            gatherer.add("a", group(b"2", when=[Expect("t", 5)]), theirs, 30),
            gatherer.add("a", group(b"3"), mine, 30),
        ]
        await asyncio.gather(*futures, return_exceptions=True)
        assert mine == {0: 103}
        assert theirs == {0: 10_000, 1: 3}

    asyncio.run(scenario())


def test_a_bug_in_the_port_leaves_nobody_waiting() -> None:
    """What is no error of ours is raised where the append was called."""

    async def scenario() -> None:
        gatherer = AppendGatherer(Port(ZeroDivisionError("bug")))
        futures = [gatherer.add("a", group(b"x"), {}, 30) for _ in range(2)]
        for future in futures:
            with pytest.raises(ZeroDivisionError):
                await future

    asyncio.run(scenario())


def test_a_loop_that_ends_leaves_nobody_waiting() -> None:
    """When the request is cancelled, so are those that wait for it."""

    async def scenario() -> None:
        port = Port()
        port.gate.clear()
        gatherer = AppendGatherer(port)
        future = gatherer.add("a", group(b"x"), {}, 30)
        await asyncio.sleep(0)
        (task,) = asyncio.all_tasks() - {asyncio.current_task()}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future

    asyncio.run(scenario())
