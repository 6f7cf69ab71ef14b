"""Reads that nobody waits for any more: nothing of them is left, and nobody is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from boki.engine.index.index import Index
from boki.log.operations import Done, Found, Read, TrimBook
from boki.protocol.call_messages import AbandonRead
from tests.books.calls.call_world import time_passes
from tests.engine.cluster import ENGINE, SECOND, Cluster
from tests.engine.host import drive, hosting
from tests.engine.remote_world import Cluster as RemoteCluster
from tests.engine.remote_world import home, in_cluster
from tests.engine.test_relay import RELAY, Relayed, append_of


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    found = Cluster()
    found.until_ready()
    yield found


def give_up(cluster: Cluster, request: int) -> None:
    """The caller of that request leaves."""
    cluster.perform(ENGINE, cluster.engine.give_up(request))  # type: ignore[arg-type]


@pytest.mark.parametrize("tag", [None, "tag"])
def test_of_a_read_that_is_given_up_nothing_is_left(cluster: Cluster, tag: str | None) -> None:
    """It is not answered by the record that it waited for; others that wait for the same are; giving up again, or
    after the answer, does nothing."""
    read = Read("book", tag, wait_us=20 * SECOND)
    left, stays = cluster.submit(read), cluster.submit(read)
    give_up(cluster, left)
    give_up(cluster, left)
    assert cluster.engine.reads.pending_count == 1
    cluster.append("a")
    assert left not in cluster.answers
    assert isinstance(cluster.answers[stays].answer, Found)
    give_up(cluster, stays)
    assert cluster.engine.reads.pending_count == 0
    assert not any(cluster.engine.index.watched)


def test_a_question_for_the_tail_is_given_up_before_its_read_begins(cluster: Cluster) -> None:
    """A fresh read first asks the sequencers: its caller may leave meanwhile."""
    cluster.requests += 1
    operation = Read("book", "tag", wait_us=20 * SECOND, fresh=True)
    until_us = cluster.now_us + 30 * SECOND
    asked = list(cluster.engine.submit(operation, {}, until_us, cluster.requests, cluster.now_us))
    give_up(cluster, cluster.requests)
    cluster.perform(ENGINE, asked)  # type: ignore[arg-type]
    cluster.run()
    assert cluster.engine.reads.pending_count == 0
    assert cluster.requests not in cluster.answers


def test_a_record_of_another_tag_costs_a_waiting_read_nothing(cluster: Cluster) -> None:
    """However many wait in a book, an append looks only for those of its tags; a trim of what lies between takes
    nothing from them."""
    waiting = {tag: cluster.submit(Read("book", tag, start=1, wait_us=20 * SECOND)) for tag in map(str, range(100))}
    looked: list[str | None] = []
    page = Index.page

    def count(self: Index, book: str, tag: str | None, *bounds: int, **options: bool) -> object:
        looked.append(tag)
        return page(self, book, tag, *bounds, **options)

    with patch.object(Index, "page", count):
        cluster.append("a", tags=("other",))
        last = cluster.answer(cluster.append("b", tags=("7", "other"))).first_seqnum
    assert looked == ["7"]
    assert waiting["7"] in cluster.answers
    assert isinstance(cluster.do(TrimBook("book", last + 1)), Done)
    found = cluster.answer(cluster.append("c", tags=("8",)))
    answer = cluster.answers[waiting["8"]].answer
    assert answer.first_seqnum <= 1, "no trim has taken anything that it waited for"
    assert answer.next_start == found.first_seqnum + 1


def test_an_engine_without_the_index_passes_it_on() -> None:
    """The engine that carries the read out is told; an append is carried out whoever waits."""
    cluster = Relayed()
    asked = cluster.ask(Read("book", "other", wait_us=20 * SECOND))
    append = cluster.ask(append_of("a"))
    cluster.perform(RELAY, cluster.relay.give_up(asked))
    cluster.perform(RELAY, cluster.relay.give_up(append))
    cluster.run()
    assert len([message for _, _, message in cluster.sent if isinstance(message, AbandonRead)]) == 1
    cluster.wait_for(append)
    assert asked not in cluster.answers


def test_a_gateway_tells_the_engine_whose_answer_nobody_waits_for() -> None:
    """A client that hangs up leaves no read behind, and the engine is not busy with it any more."""

    async def scenario(cluster: RemoteCluster) -> None:
        first, _ = home(cluster)
        first.log.holds = True
        asked = asyncio.create_task(cluster.backend.request(Read("book", "t", wait_us=20_000_000), {}, 30.0))
        await time_passes(0.05)
        asked.cancel()
        await time_passes(0.05)
        assert len(first.log.abandoned) == 1
        await asyncio.wait_for(first.service.drain(60), 1.0)

    in_cluster(scenario)


LEAVING = {
    "leaving": """
    import asyncio

    from boki import Context, function

    @function
    async def leave(ctx: Context) -> int:
        reading = asyncio.ensure_future(ctx.logbook.read_next("t", wait_s=20))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        return await ctx.logbook.append(b"x")
    """
}


def test_a_worker_tells_its_engine(tmp_path: Path) -> None:
    """Before what it sends next, so nothing waits for a read that a function has cancelled."""

    async def test() -> None:
        async with hosting(tmp_path, LEAVING) as host:
            host.holds_reads = True
            await host.result("leave")
            assert len(host.abandoned) == 1

    drive(test())
