"""Nodes that come back, and what had gone wrong with them before: each of these was a bug once."""

from __future__ import annotations

import msgspec
import pytest

from boki.engine.index.layout import TAG_FLOORS
from boki.errors import BokiError, Trimmed, Unavailable
from boki.log.ids import MAX_SEQNUM, NodeId
from boki.log.metalog import Trim
from boki.log.operations import Appended, Done, Get, Read, Sync, TrimBook
from boki.log.record import Expect
from boki.protocol.messages import BatchesFetched, Metalog, RequestEntry, StoreBatch, TellTail
from tests.engine.cluster import CONFIG, SECOND, Cluster, records_of


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.until_ready()
    return made


def save(cluster: Cluster, engine: str = "engine-1") -> None:
    """Checkpoint an engine's index, and let the storage nodes hear of it."""
    cluster.perform(NodeId(engine), cluster.core_of(engine).checkpoint())
    cluster.run()


def restart_engine(cluster: Cluster, engine: str = "engine-1") -> None:
    cluster.crash(engine)
    cluster.start_engine(engine)
    cluster.until_ready(engine)


def sweep(cluster: Cluster) -> None:
    """Enough time for storage nodes to free what may be freed, several times over."""
    cluster.tick(200)


def batch_count(cluster: Cluster, node: str) -> int:
    return sum(key.startswith(b"b") for key in cluster.disk(node).rows)


def test_a_restart_after_a_trim_still_knows_the_tags_that_stood_before(cluster: Cluster) -> None:
    """The trimmed records are freed and no checkpoint covers them: their tags are kept until one does."""
    fence = cluster.answer(cluster.append("old", tags=["!fence"], key="once")).first_seqnum
    cluster.append("old too")
    cluster.do(TrimBook("book", MAX_SEQNUM))
    sweep(cluster)
    restart_engine(cluster)
    refused = cluster.answer(cluster.append("no", when=[Expect("!fence", 0)]))
    assert refused.rejected[0].actual_seqnum == fence
    assert cluster.answer(cluster.append("no", key="once")).rejected[0].seqnums == (fence,)


def test_a_restart_after_a_checkpoint_and_a_sweep_reads_what_is_left(cluster: Cluster) -> None:
    """What the checkpoint covers is deleted outright; the start does not ask for it again."""
    for number in range(10):
        cluster.append(f"old-{number}")
    tail = cluster.answer(cluster.append("kept")).first_seqnum
    cluster.do(TrimBook("book", tail))
    save(cluster)
    before = batch_count(cluster, "storage-1")
    sweep(cluster)
    assert batch_count(cluster, "storage-1") < before
    restart_engine(cluster)
    assert cluster.texts() == ["kept"]
    with pytest.raises(Trimmed):
        cluster.do(Get("book", tail - 1))


def test_a_gap_that_the_peers_have_freed_ends_there(cluster: Cluster) -> None:
    """A storage node was away while records came and went: nobody has them, and it continues."""
    cluster.append("first")
    cluster.crash("storage-2")
    for number in range(10):
        cluster.append(f"missed-{number}")
    cluster.do(TrimBook("book", MAX_SEQNUM))
    save(cluster)
    sweep(cluster)
    cluster.start("storage-2")
    cluster.append("new")
    cluster.tick(60)
    cluster.crash("storage-1")
    request = cluster.append("needs storage-2")
    assert isinstance(cluster.wait(request), Appended)
    assert cluster.texts() == ["new", "needs storage-2"]


def test_a_storage_node_that_restarts_after_a_sweep_still_tells_freed_from_never_had(cluster: Cluster) -> None:
    """What it deleted is no gap for it: it reports as before, and appends continue."""
    for number in range(10):
        cluster.append(f"old-{number}")
    cluster.do(TrimBook("book", MAX_SEQNUM))
    save(cluster)
    sweep(cluster)
    for node in ("storage-1", "storage-2", "storage-3"):
        cluster.crash(node)
        cluster.start(node)
    cluster.append("new")
    cluster.tick(20)
    assert cluster.texts() == ["new"]
    restart_engine(cluster)
    assert cluster.texts() == ["new"]


def test_late_answers_to_a_former_life_find_nobody(cluster: Cluster) -> None:
    """Numbers of one incarnation are never those of another: an old answer must not be taken for a new one."""
    first = cluster.answer(cluster.append("first", tags=["a"])).first_seqnum
    cluster.append("second", tags=["b"])
    late: list[tuple[NodeId, BatchesFetched | TellTail]] = []

    def keep(sender: NodeId, to: NodeId, message: object) -> bool:
        if to == "engine-1" and isinstance(message, BatchesFetched | TellTail):
            late.append((sender, message))
            return True
        return False

    restart_engine(cluster)  # its cache is empty
    cluster.loses = keep
    cluster.submit(Get("book", first))
    cluster.submit(Sync("book"))
    cluster.tick(10)
    assert late
    cluster.crash("engine-1")
    cluster.start_engine()
    cluster.loses = lambda *_: False
    cluster.until_ready()
    tag_b = cluster.submit(Read("book", "b"))
    for sender, message in late:
        cluster.tell("engine-1", message, sender)
    cluster.run()
    assert [record.data for record in records_of(cluster.wait(tag_b))] == [b"second"]
    assert cluster.texts() == ["first", "second"]


def test_reads_that_wait_are_answered_in_the_order_of_the_log(cluster: Cluster) -> None:
    """A trim behind the record in one message: who waits sees the record, then the trim, not a gap without reason."""
    waiting = cluster.submit(Read("book", "tag", wait_us=5 * SECOND))
    cluster.loses = lambda _sender, to, message: to == "engine-1" and isinstance(message, Metalog)
    cluster.append("seen")
    cluster.submit(TrimBook("book", MAX_SEQNUM))
    cluster.loses = lambda *_: False
    cluster.tick(20)
    assert [record.data for record in records_of(cluster.answer(waiting))] == [b"seen"]
    assert cluster.texts() == []


def test_a_wiped_sequencer_is_not_asked_for_the_tail(cluster: Cluster) -> None:
    """It may have forgotten what it acknowledged: with one other down there is no majority that knows."""
    cluster.append("a")
    cluster.crash("sequencer-2")
    cluster.start("sequencer-2", is_wiped=True)
    cluster.crash("sequencer-3")
    with pytest.raises(BokiError):
        cluster.do(Sync("book"), timeout_s=1)
    cluster.start("sequencer-3")
    assert isinstance(cluster.do(Sync("book")), Done)


def test_a_backup_that_was_away_for_long_catches_up_from_the_disk(cluster: Cluster) -> None:
    """More entries than anybody keeps in memory: then the other backup may die."""
    cluster.crash("sequencer-2")
    for number in range(22_000):
        trim = Trim(f"book-{number % 7}", None, 1, everything=False, engine=NodeId("stranger"), request=number)
        cluster.tell("sequencer-1", RequestEntry(1, 0, trim), "stranger")
        if number % 900 == 0:
            cluster.run()
    cluster.tick(2)
    assert cluster.engine.follower.position(0) & ((1 << 43) - 1) > 20_000
    cluster.start("sequencer-2")
    cluster.tick(30)
    cluster.crash("sequencer-3")
    assert isinstance(cluster.wait(cluster.append("needs sequencer-2")), Appended)


def test_a_freed_payload_that_is_cached_is_not_served_as_empty(cluster: Cluster) -> None:
    """An engine that is behind a trim fetches a batch that storage has emptied: it catches up, then says trimmed."""
    first = cluster.answer(cluster.append("freed")).first_seqnum
    cluster.append("kept", book="other")
    restart_engine(cluster)
    cluster.loses = lambda _sender, to, message: to == "engine-1" and isinstance(message, Metalog)
    cluster.submit(TrimBook("book", MAX_SEQNUM))
    sweep(cluster)
    request = cluster.submit(Get("book", first))
    cluster.tick(5)
    assert request not in cluster.answers
    cluster.loses = lambda *_: False
    with pytest.raises(Trimmed):
        cluster.wait(request)


def test_a_batch_that_is_larger_than_the_cache_ends_its_readers_with_a_reason() -> None:
    """They must not fetch it again and again."""
    cluster = Cluster(config=msgspec.structs.replace(CONFIG, cache_bytes=2_000))
    cluster.until_ready()
    cluster.append("x" * 5_000)
    restart_engine(cluster)
    with pytest.raises(BokiError, match="cache is too small"):
        cluster.do(Read("book"))


def test_an_engine_that_restarts_within_a_term_opens_new_shards_beside_the_old(cluster: Cluster) -> None:
    """What its former incarnation had sent is ordered or not; either way it is read alike, and the new incarnation
    appends.
    """
    cluster.append("acknowledged")
    cluster.loses = lambda _sender, to, message: isinstance(message, StoreBatch) and to != "storage-1"
    lost = cluster.append("unordered")
    assert lost not in cluster.answers
    cluster.loses = lambda *_: False
    restart_engine(cluster)
    cluster.append("new")
    cluster.tick(20)
    assert cluster.texts() == ["acknowledged", "new"]
    restart_engine(cluster)
    assert cluster.texts() == ["acknowledged", "new"]


def test_a_wiped_engine_reads_the_whole_log_again(cluster: Cluster) -> None:
    """Its own copy of the index is a cache."""
    for number in range(5):
        cluster.append(f"{number}")
    save(cluster)
    cluster.change_term()
    before = cluster.read()
    cluster.crash("engine-1")
    cluster.disks.pop(NodeId("engine-1"))
    cluster.start_engine()
    cluster.until_ready()
    assert cluster.read() == before


def test_a_wiped_storage_node_is_filled_again(cluster: Cluster) -> None:
    """From the other replicas, and then it serves alone."""
    for number in range(10):
        cluster.append(f"{number}")
    cluster.change_term()
    cluster.append("10")
    cluster.crash("storage-2")
    cluster.start("storage-2", is_wiped=True)
    cluster.tick(200)
    for node in ("storage-1", "storage-3"):
        cluster.crash(node)
    cluster.engine.cache._batches.clear()
    cluster.engine.cache._starts.clear()
    assert cluster.texts() == [str(number) for number in range(11)]


def count_of(cluster: Cluster, tag: str) -> int:
    """As a condition that never holds is told."""
    refused: int = cluster.answer(cluster.append("no", when=[Expect(tag, count=1 << 40)])).rejected[0].actual_count
    return refused


@pytest.mark.parametrize("saves_at", [(), (0,), (1,), (0, 1), (2,), (0, 1, 2)])
def test_a_forgotten_tag_stays_forgotten(cluster: Cluster, saves_at: tuple[int, ...]) -> None:
    """Whether the index that starts has heard of it from a checkpoint, from the metalog, or from both."""
    cluster.append("0", "1", tags=["!t"])
    for number, trim in enumerate([TrimBook("book", MAX_SEQNUM, "!t"), TrimBook("book", 1, "!t", forgets=("!t",))]):
        if number in saves_at:
            save(cluster)
        cluster.do(trim)
        assert count_of(cluster, "!t") == (2, 0)[number]
    cluster.append("2", tags=["!t"], when=[Expect("!t", count=0)])
    if 2 in saves_at:
        save(cluster)
    sweep(cluster)
    restart_engine(cluster)
    assert count_of(cluster, "!t") == 1
    save(cluster)
    assert not [key for key in cluster.disk("engine-1").rows if key.startswith(TAG_FLOORS)]


def test_nothing_is_forgotten_while_a_node_is_of_an_earlier_version(cluster: Cluster) -> None:
    """That node would refuse the entry, and could apply none that follows."""
    cluster.earlier = {NodeId("storage-2")}
    cluster.register()
    cluster.run()
    cluster.append("0", tags=["!t"])
    forget = TrimBook("book", MAX_SEQNUM, "!t", forgets=("!t",))
    with pytest.raises(Unavailable, match="upgrade it"):
        cluster.do(forget)
    assert count_of(cluster, "!t") == 1
    assert [data for _, data in cluster.read(tag="!t")] == ["0"]
    cluster.earlier = set()
    cluster.register()
    cluster.run()
    cluster.do(forget)
    assert count_of(cluster, "!t") == 0
