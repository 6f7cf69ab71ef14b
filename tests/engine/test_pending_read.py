"""Reads that wait: for what, in which stage, and the moments at which they are looked at."""

from __future__ import annotations

import heapq

import pytest

from boki.engine.cache import RecordCache
from boki.engine.pending_read import NEXT, Due, PendingRead, Stage, Timed
from boki.engine.reads import _Fetch
from boki.engine.waiter import Ended, Waiter
from boki.errors import CorruptData
from boki.log.operations import Found, Read
from boki.protocol.messages import BatchesFetched, Holding, Metalog
from tests.engine.cluster import SECOND, Cluster


def read() -> PendingRead:
    return PendingRead(Read("book"), Waiter("book", "token"), {}, 10, 5)


def made() -> Cluster:
    """A book with a record whose bytes the engine does not have, and cannot get."""
    cluster = Cluster()
    cluster.until_ready()
    cluster.append("a")
    cluster.engine.cache = cluster.engine.reads._cache = RecordCache(1 << 20)
    cluster.loses = lambda _sender, _to, message: isinstance(message, BatchesFetched)
    return cluster


def stage_of(cluster: Cluster, request: int) -> Stage:
    return cluster.engine.reads._by_token[request].stage  # type: ignore[index]


def answered(cluster: Cluster, holding: Holding, error: str = "") -> list[object]:
    """What the engine decides when every replica that it asks answers so."""
    reads = cluster.engine.reads
    (fetch,) = reads._fetches.values()
    found: list[object] = []
    nodes = {node for node in cluster.cores if node.startswith("storage")}
    for late in nodes - {fetch.asked, *fetch.to_ask}:
        found += reads.on_fetched(late, _answer(fetch, holding, error), cluster.now_us)
    while fetch.request in reads._fetches and fetch.asked is not None:
        found += reads.on_fetched(fetch.asked, _answer(fetch, holding, error), cluster.now_us)
    return found


def _answer(fetch: _Fetch, holding: Holding, error: str) -> BatchesFetched:
    return BatchesFetched(fetch.request, *fetch.place, fetch.lid, holding, (), error)


def test_at_one_moment_waits_end_before_deadlines_and_the_oldest_comes_first() -> None:
    """A read whose wait ends at its deadline is answered with the records present. Reads are never compared."""
    moments = [(5, Due.DEADLINE, 1), (5, Due.WAIT_END, 3), (4, Due.DEADLINE, 4), (5, Due.WAIT_END, 2)]
    heap: list[Timed] = []
    for moment in moments:
        heapq.heappush(heap, Timed(*moment, read()))
    popped = [heapq.heappop(heap)[:3] for _ in moments]
    assert popped == [(4, Due.DEADLINE, 4), (5, Due.WAIT_END, 2), (5, Due.WAIT_END, 3), (5, Due.DEADLINE, 1)]


def test_every_stage_is_reached_and_the_last_one_is_left_by_nothing() -> None:
    """What is done is not answered again."""
    assert {Stage.NEW}.union(*NEXT.values()) == set(Stage) == set(NEXT)
    done = read()
    done.move(Stage.DONE)
    with pytest.raises(AssertionError, match="done cannot become done"):
        done.move(Stage.DONE)


def test_a_read_in_an_engine_goes_through_all_stages() -> None:
    """Behind a position, then for bytes, then for a trim, then for a record."""
    cluster = made()
    position = cluster.engine.follower.position(0)
    request = cluster.submit(Read("book", wait_us=20 * SECOND), {0: position + 1})
    assert stage_of(cluster, request) is Stage.BEHIND
    cluster.append("elsewhere", book="another")
    assert stage_of(cluster, request) is Stage.FETCHING
    assert not answered(cluster, Holding.FREED)
    assert stage_of(cluster, request) is Stage.PAUSED
    watching = cluster.submit(Read("book", "none", wait_us=20 * SECOND))
    assert stage_of(cluster, watching) is Stage.WATCHING
    assert cluster.engine.reads.pending_count == 2


def test_a_read_whose_wait_ends_while_its_bytes_are_fetched_is_answered_once() -> None:
    """It has what it waited for: nothing is tried at the end of its wait."""
    cluster = made()
    request = cluster.submit(Read("book", wait_us=SECOND))
    assert stage_of(cluster, request) is Stage.FETCHING
    cluster.now_us += 2 * SECOND
    cluster.tick()
    ends = [effect for effect in answered(cluster, Holding.UNKNOWN, "spoilt") if isinstance(effect, Ended)]
    assert [type(end.answer) for end in ends] == [CorruptData]


def test_a_wait_that_ends_between_two_terms_is_answered_with_nothing() -> None:
    """Not with an error at the read's deadline: nothing had come, and that can be said once the next term has begun."""
    cluster = Cluster(is_registered=True, engines=1)
    cluster.until_ready()
    request = cluster.submit(Read("book", "none", wait_us=20 * SECOND))
    cluster.loses = lambda _sender, to, message: to == "engine-1" and isinstance(message, Metalog)
    cluster.append("elsewhere", book="another")
    cluster.seal()
    cluster.announce()
    cluster.now_us += 20 * SECOND
    cluster.tick(2)
    assert stage_of(cluster, request) is Stage.BEHIND
    cluster.loses = lambda *_: False
    found = cluster.wait(request)
    assert isinstance(found, Found)
    assert not found.slabs
    assert not any(cluster.engine.index.watched)


def test_what_was_answered_is_let_go_long_before_its_deadline() -> None:
    """Its moment would hold it, its answer and whoever asked; those that still wait keep theirs."""
    cluster = Cluster()
    cluster.until_ready()
    still = [cluster.submit(Read("book", "never", wait_us=20 * SECOND)) for _ in range(3)]
    for number in range(3_000):
        position = cluster.engine.follower.position(0)
        behind = PendingRead(Read("book"), Waiter("book", -number), {0: position + 1}, cluster.now_us + 20 * SECOND, 0)
        cluster.engine.reads.start(behind, cluster.now_us)
        assert cluster.engine.reads.give_up(-number)
    assert len(cluster.engine.reads._due) < 1_100
    assert cluster.engine.reads.pending_count == len(still)
    cluster.now_us += 21 * SECOND
    cluster.tick()
    assert all(not cluster.answer(request).slabs for request in still)


def test_an_answered_read_drops_its_answer() -> None:
    """Until its deadline it stays among the moments, with up to a thousand others; its token holds the whole answer."""
    cluster = Cluster()
    cluster.until_ready()
    answered, given_up = cluster.submit(Read("book", wait_us=SECOND)), cluster.submit(Read("book", wait_us=SECOND))
    cluster.perform("engine-1", cluster.engine.give_up(given_up))
    cluster.append("a")
    assert isinstance(cluster.answers[answered].answer, Found)
    held = {moment.read.waiter.token for moment in cluster.engine.reads._due}
    assert held
    assert not held & {answered, given_up}
