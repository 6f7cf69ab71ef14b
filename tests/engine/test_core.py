"""The engine with real storage nodes and sequencers around it, in a world that loses messages and forgets what it must.

These are whole clusters of cores, driven by hand: what is lost, who dies and when a term ends is up to the test.
"""

from __future__ import annotations

from random import Random

import pytest

from boki.errors import CorruptData, DeadlineExceeded, DiskFull, NotFound, Overloaded, Trimmed
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import MAX_SEQNUM, NodeId, make_seqnum
from boki.log.metalog import make_position
from boki.log.operations import Append, Appended, Done, Get, Read, Sync, TrimBook
from boki.log.record import Expect
from boki.protocol.effects import DiskRoom
from boki.protocol.messages import BatchesFetched, FetchBatches, Metalog, StoreBatch
from tests.engine.cluster import SECOND, Cluster


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.until_ready()
    return made


def test_an_append_is_answered_with_its_seqnum_and_read_back(cluster: Cluster) -> None:
    """The whole way: engine, replicas, cut, index."""
    first, second = cluster.append("a", "b"), cluster.append("c")
    assert cluster.answer(first) == Appended(make_seqnum(1, 0, 0))
    assert cluster.answer(second) == Appended(make_seqnum(1, 0, 2))
    assert [text for _, text in cluster.read()] == ["a", "b", "c"]
    assert [text for _, text in cluster.read(tag="tag")] == ["a", "b", "c"]
    assert cluster.read(tag="other") == []


def test_no_answer_before_a_quorum_has_synced_both_record_and_cut(cluster: Cluster) -> None:
    """Acknowledged means durable: on two storage nodes, and in the metalogs of two sequencers."""
    cluster.holds_syncs |= set(cluster.disks)
    request = cluster.append("a")
    cluster.sync("storage-1")
    cluster.run()
    assert request not in cluster.answers
    cluster.sync("storage-2")
    cluster.run()
    cluster.sync("sequencer-1")
    cluster.run()
    assert request not in cluster.answers
    cluster.sync("sequencer-3")
    cluster.run()
    assert request in cluster.answers


def test_nobody_sees_a_record_before_its_verdict(cluster: Cluster) -> None:
    """A refused record is skipped by every read, and the refusal names the tag's last record (design section 2)."""
    seqnum = cluster.answer(cluster.append("a", when=[Expect("tag", 0)])).first_seqnum
    refused = cluster.answer(cluster.append("c", when=[Expect("tag", 0)]))
    assert refused.rejected[0].actual_seqnum == seqnum
    assert cluster.answer(cluster.append("d", when=[Expect("tag", seqnum)])).rejected == ()
    assert [text for _, text in cluster.read()] == ["a", "d"]
    assert [text for _, text in cluster.read(tag="tag")] == ["a", "d"]


@pytest.mark.parametrize("seed", range(12))
def test_lost_messages_lose_no_record_and_double_none(seed: int) -> None:
    """Whatever is lost on the wire is made up for, and each append is answered once (design section 4)."""
    cluster = Cluster(logs=2)
    cluster.until_ready()
    dice = Random(seed)
    cluster.loses = lambda *_: dice.random() < 0.25
    requests = {}
    for number in range(60):
        book = f"book-{number % 3}"
        requests[f"r{number}"] = book, cluster.append(f"r{number}", book=book)
        cluster.tick(dice.randrange(3))
    cluster.tick(200)
    cluster.loses = lambda *_: False
    cluster.tick(50)
    for book in ("book-0", "book-1", "book-2"):
        places = {text: seqnum for seqnum, text in cluster.read(book)}
        assert len(places) == 20
        for text, (owner, request) in requests.items():
            if owner == book:
                assert cluster.answer(request).first_seqnum == places[text]


@pytest.mark.parametrize("victim", ["storage-1", "storage-3", "sequencer-2", "sequencer-3"])
def test_one_lost_replica_stops_no_append(cluster: Cluster, victim: str) -> None:
    """Any one storage node or backup may die (promise 4), and catches up when it is back."""
    cluster.append("before")
    cluster.crash(victim)
    request = cluster.append("during")
    assert isinstance(cluster.answer(request), Appended)
    cluster.start(victim)
    cluster.tick(40)
    others = [node for node in ("storage-1", "storage-2", "storage-3") if node != victim]
    if victim.startswith("storage"):
        for node in others:
            cluster.crash(node)
        cluster.engine.cache = type(cluster.engine.cache)(1 << 20)
        cluster.engine.reads._cache = cluster.engine.cache
    assert [text for _, text in cluster.read()] == ["before", "during"]


@pytest.mark.parametrize("seed", range(12))
def test_appends_in_flight_when_a_term_ends_are_ordered_once(seed: int) -> None:
    """They are ordered in the old term or appended again in the next; never lost once acknowledged, never doubled."""
    cluster = Cluster()
    cluster.until_ready()
    dice = Random(seed)
    requests: dict[str, int] = {}
    for round_ in range(3):
        cluster.loses = lambda sender, to, _message: dice.random() < 0.4 and "controller-1" not in (sender, to)
        for number in range(10):
            name = f"{round_}-{number}"
            requests[name] = cluster.append(name)
        cluster.loses = lambda *_: False
        cluster.change_term()
        cluster.tick(20)
    found = cluster.read()
    assert sorted(text for _, text in found) == sorted(requests)
    for seqnum, text in found:
        assert cluster.answer(requests[text]).first_seqnum == seqnum
    assert len({seqnum >> 43 for seqnum, _ in found}) > 1


def test_a_power_cut_of_everything_keeps_what_was_acknowledged(cluster: Cluster) -> None:
    """All nodes die at once with their unsynced writes, and come back (promise 2)."""
    acknowledged = [cluster.append(f"kept-{n}") for n in range(10)]
    cluster.holds_syncs |= set(cluster.disks)
    lost = cluster.append("never acknowledged")
    nodes = list(cluster.cores)
    for node in nodes:
        cluster.crash(node)
    cluster.holds_syncs.clear()
    for node in nodes:
        if node != "engine-1":
            cluster.start(node)
    cluster.change_term()
    cluster.start_engine()
    cluster.until_ready()
    assert lost not in cluster.answers
    assert [text for _, text in cluster.read()] == [f"kept-{n}" for n in range(10)]
    assert all(isinstance(cluster.answer(request), Appended) for request in acknowledged)


def test_a_restarted_engine_reads_what_its_former_life_wrote(cluster: Cluster) -> None:
    """With a checkpoint of the index in the middle, and without the batches in any cache."""
    for n in range(5):
        cluster.append(f"early-{n}")
    cluster.perform(NodeId("engine-1"), cluster.engine.checkpoint())
    cluster.run()
    for n in range(5):
        cluster.append(f"late-{n}")
    before = cluster.read()
    cluster.crash("engine-1")
    cluster.change_term()
    cluster.start_engine()
    cluster.until_ready()
    assert cluster.read() == before
    cluster.append("new")
    assert [text for _, text in cluster.read()][-1] == "new"


def test_a_read_waits_for_the_position_that_its_caller_has_seen(cluster: Cluster) -> None:
    """An index that is behind waits, it never answers from the past (promise 3)."""
    cluster.append("a")
    cluster.loses = lambda _sender, to, message: to == "engine-1" and isinstance(message, Metalog)
    position = cluster.engine.follower.position(0)
    request = cluster.submit(Read("book"), {0: position + 1})
    assert request not in cluster.answers
    cluster.append("b")
    assert request not in cluster.answers
    cluster.loses = lambda *_: False
    cluster.tick(30)
    assert cluster.answers[request].positions[0] >= position + 1


def test_a_position_that_never_comes_ends_at_the_deadline(cluster: Cluster) -> None:
    """Nothing waits forever."""
    with pytest.raises(DeadlineExceeded) as caught:
        cluster.do(Read("book"), positions={0: make_position(1, 999)}, timeout_s=1)
    assert caught.value.outcome == "not_applied"


def test_sync_and_fresh_see_all_that_was_acknowledged(cluster: Cluster) -> None:
    """They wait for what a majority of sequencers holds, also when news is lost (hazard H14)."""
    cluster.append("a")
    assert isinstance(cluster.do(Sync("book")), Done)
    assert len(cluster.do(Read("book", fresh=True, backward=True)).slabs) == 1
    for node in ("sequencer-1", "sequencer-2"):
        cluster.crash(node)
    with pytest.raises(DeadlineExceeded):
        cluster.do(Sync("book"), timeout_s=1)


def test_a_fresh_read_is_refused_when_too_many_reads_wait(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known to be too much only when the sequencers have told the tail."""
    monkeypatch.setattr("boki.engine.reads._MAX_WAITING", 4)
    for _ in range(2):
        cluster.submit(Read("book", wait_us=5 * SECOND))
    for operation in (Read("book", fresh=True), Sync("book")):
        request = cluster.submit(operation)
        with pytest.raises(Overloaded):
            cluster.answer(request)


def test_a_long_poll_is_answered_by_the_append_or_by_nothing(cluster: Cluster) -> None:
    """A waiting read wakes with the record, and ends empty when its wait is over."""
    request = cluster.submit(Read("book", "tag", wait_us=SECOND))
    assert request not in cluster.answers
    cluster.append("other", tags=["else"])
    assert request not in cluster.answers
    cluster.append("this")
    assert len(cluster.answer(request).slabs) == 1
    assert cluster.do(Read("book", "none", wait_us=SECOND)).slabs == ()


def test_trims_are_seen_by_their_caller_and_spare_the_future(cluster: Cluster) -> None:
    """`trim(MAX)` takes what stands before it, and nothing that comes after (hazard H22)."""
    old = cluster.answer(cluster.append("old")).first_seqnum
    cluster.do(TrimBook("book", MAX_SEQNUM))
    assert cluster.read() == []
    with pytest.raises(Trimmed):
        cluster.do(Get("book", old))
    cluster.append("new")
    assert [text for _, text in cluster.read()] == ["new"]
    with pytest.raises(NotFound):
        cluster.do(Get("book", MAX_SEQNUM - 1))


def test_a_full_disk_refuses_appends_and_nothing_else(cluster: Cluster) -> None:
    """Two of three without room: refused for certain; reads and trims continue; with room, appends resume (hazard
    H20).
    """
    cluster.append("a")
    cluster.tell("storage-1", DiskRoom(False))
    cluster.run()
    assert isinstance(cluster.answer(cluster.append("b")), Appended)
    cluster.tell("storage-2", DiskRoom(False))
    cluster.run()
    with pytest.raises(DiskFull) as caught:
        cluster.answer(cluster.append("c"))
    assert caught.value.outcome == "not_applied"
    assert [text for _, text in cluster.read()] == ["a", "b"]
    cluster.do(TrimBook("book", 1))
    cluster.tell("storage-2", DiskRoom(True))
    cluster.run()
    assert isinstance(cluster.answer(cluster.append("d")), Appended)


def test_overload_is_answered_at_once(cluster: Cluster) -> None:
    """Beyond the buffer an append is refused before it is numbered, so it is not applied for certain (promise 5)."""
    cluster.loses = lambda _sender, _to, message: isinstance(message, StoreBatch)
    refused = None
    for _ in range(40):
        request = cluster.append("x" * 50_000)
        if request in cluster.answers:
            refused = request
            break
    assert refused is not None
    with pytest.raises(Overloaded) as caught:
        cluster.answer(refused)
    assert (caught.value.outcome, caught.value.retryable) == ("not_applied", True)


def test_an_append_that_is_not_ordered_in_time_is_unknown(cluster: Cluster) -> None:
    """Numbered and not ordered: it may still happen, so the error must not say that it did not (hazard H11)."""
    cluster.loses = lambda _sender, _to, message: isinstance(message, StoreBatch)
    request = cluster.submit(Append("book", encode_chunk("book", [Group([(b"late", ())])])), timeout_s=0.2)
    cluster.tick(10)
    with pytest.raises(DeadlineExceeded) as caught:
        cluster.answer(request)
    assert caught.value.outcome == "unknown"
    cluster.loses = lambda *_: False
    cluster.tick(20)
    assert [text for _, text in cluster.read()] == ["late"]


def test_bytes_come_from_another_replica_if_one_lacks_or_spoils_them(cluster: Cluster) -> None:
    """One good copy is enough; with none the error says so, and no wrong byte is ever returned."""
    cluster.append("precious")
    for node in ("storage-1", "storage-2"):
        spoil(cluster, node)
    empty_cache(cluster)
    assert [text for _, text in cluster.read()] == ["precious"]
    spoil(cluster, "storage-3")
    empty_cache(cluster)
    with pytest.raises(CorruptData, match="no replica"):
        cluster.read()


def test_a_silent_replica_is_not_waited_for(cluster: Cluster) -> None:
    """A read asks the next replica when one does not answer."""
    cluster.append("here")
    empty_cache(cluster)
    asked: list[NodeId] = []

    def loses(_sender: NodeId, to: NodeId, message: object) -> bool:
        if isinstance(message, FetchBatches):
            asked.append(to)
        return isinstance(message, FetchBatches) and to == asked[0]

    cluster.loses = loses
    assert [text for _, text in cluster.read()] == ["here"]
    assert len(set(asked)) == 2


def test_a_late_answer_to_an_old_fetch_does_no_harm(cluster: Cluster) -> None:
    """Answers are matched by their request; strangers are dropped."""
    cluster.append("here")
    cluster.tell("engine-1", BatchesFetched(4711, 1, 0, 1, 0, 1, ()), "storage-1")  # type: ignore[arg-type]
    cluster.run()
    assert [text for _, text in cluster.read()] == ["here"]


def spoil(cluster: Cluster, node: str) -> None:
    """Flip a bit in every batch of a node."""
    rows = cluster.disk(node).rows
    for key, value in rows.items():
        if key.startswith(b"b"):
            rows[key] = value[:-1] + bytes([value[-1] ^ 1])


def empty_cache(cluster: Cluster) -> None:
    """Let every read go to storage."""
    cluster.engine.cache = cluster.engine.reads._cache = type(cluster.engine.cache)(16 << 20)
