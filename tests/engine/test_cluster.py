"""Several engines over the same logs: the same order for all, shards that move, fences that hold."""

from __future__ import annotations

from random import Random

import pytest

from boki.engine.core import EngineCore
from boki.errors import BokiError, ConnectionLost, DeadlineExceeded, DiskFull, Unavailable
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import NodeId
from boki.log.metalog import CloseShard, OpenShard, make_position
from boki.log.operations import Append, Appended, Done, Get, Read, Sync
from boki.log.record import Expect
from boki.protocol.effects import Answer, DiskRoom, EngineNews
from boki.protocol.messages import (
    CheckpointStored,
    EntriesDropped,
    FetchBatches,
    FetchMetalog,
    FetchView,
    IndexBatch,
    Metalog,
    Ping,
    Pong,
    RequestEntry,
    StoreBatch,
    TellTail,
)
from tests.engine.cluster import SECOND, Cluster, records_of


def made(**settings: object) -> Cluster:
    cluster = Cluster(is_registered=True, **({"engines": 2} | settings))  # type: ignore[arg-type]
    cluster.until_ready()
    return cluster


def everything(cluster: Cluster, *books: str) -> list[list[tuple[int, str]]]:
    """What each engine reads; all must read the same."""
    found = [[cluster.read(book, engine=engine) for book in books or ("book",)] for engine in cluster.engines]
    assert all(each == found[0] for each in found)
    return found[0]


def fence(cluster: Cluster, incarnation: int, engine: str = "engine-1", timeout_s: float = 30) -> str:
    token = f"fence-{incarnation}-{engine}"
    deadline = cluster.now_us + int(timeout_s * SECOND)
    cluster.perform(NodeId(engine), cluster.core_of(engine).fence(incarnation, deadline, token))
    cluster.run()
    return token


def fenced(cluster: Cluster, token: str, engine: str = "engine-1") -> bool:
    answered: Answer | None = cluster.answers.get((NodeId(engine), token))
    return answered is not None and answered.answer == Done()


# several engines


def test_both_engines_read_what_either_appends() -> None:
    """One order, whoever appends and whoever reads; a batch that was pushed is not fetched."""
    cluster = made()
    for number in range(6):
        engine = f"engine-{number % 2 + 1}"
        assert isinstance(cluster.answer(cluster.append(f"{number}", engine=engine)), Appended)
    (found,) = everything(cluster)
    assert [text for _, text in found] == [str(number) for number in range(6)]
    assert not cluster.messages(FetchBatches)
    assert len(cluster.messages(IndexBatch)) == 6


def test_a_batch_crosses_to_a_process_once() -> None:
    """The storage node hands it to the index beside it; an engine without a replica beside it gets it by itself."""
    cluster = made(engines=4, is_hosted=True)
    assert isinstance(cluster.answer(cluster.append("one")), Appended)
    pushed = {(sender, to) for sender, to, message in cluster.sent if isinstance(message, IndexBatch)}
    assert pushed == {("storage-2", "engine-2"), ("storage-3", "engine-3"), ("engine-1", "engine-4")}
    assert not cluster.messages(FetchBatches)


@pytest.mark.parametrize("seed", range(8))
def test_two_engines_decide_conditions_and_keys_alike(seed: int) -> None:
    """Both append to the same books at once, with conditions and keys, over lossy links."""
    cluster = made(logs=2)
    dice = Random(seed)
    cluster.loses = lambda *_: dice.random() < 0.1
    requests = []
    for number in range(60):
        book, engine = f"book-{dice.randrange(2)}", f"engine-{dice.randrange(2) + 1}"
        options: dict[str, object] = {}
        if dice.random() < 0.4:
            options["key"] = f"key-{dice.randrange(5)}"
        elif dice.random() < 0.5:
            guess = cluster.core_of(engine).index.last(book, "tag")  # it may change before this is ordered
            options["when"] = [Expect("tag", guess)]
        request = cluster.append(f"{number}", book=book, engine=engine, **options)
        requests.append((book, request, str(number)))
        cluster.tick(dice.randrange(2))
    cluster.loses = lambda *_: False
    answers = [cluster.wait(request) for _, request, _ in requests]
    cluster.tick(10)
    places = dict(zip(("book-0", "book-1"), everything(cluster, "book-0", "book-1"), strict=True))
    kept = {(book, text): seqnum for book, found in places.items() for seqnum, text in found}
    for (book, _, text), answer in zip(requests, answers, strict=True):
        if answer.rejected:
            assert (book, text) not in kept
            assert all(seqnum in kept.values() for seqnum in answer.rejected[0].seqnums)
        else:
            assert kept[book, text] == answer.first_seqnum
    assert cluster.engine.index.applied == cluster.core_of("engine-2").index.applied


def test_a_cut_of_a_batch_that_was_never_pushed_is_applied_at_once() -> None:
    """The other engine dies as it appends: its batches come from storage, and nobody's appends wait for it."""
    cluster = made()
    cluster.loses = lambda _sender, _to, message: isinstance(message, IndexBatch)
    cluster.append("theirs", engine="engine-2")
    cluster.crash("engine-2")
    before_us = cluster.now_us
    mine = cluster.append("mine")
    assert isinstance(cluster.answer(mine), Appended)
    assert cluster.now_us == before_us
    assert cluster.texts() == ["theirs", "mine"]


def test_a_batch_of_many_shards_waits_for_all_of_them() -> None:
    """One cut orders two engines' batches; what is here of it is not lost while the rest is fetched."""
    cluster = made(engines=3)
    cluster.loses = lambda _sender, to, message: isinstance(message, IndexBatch) and to == "engine-1"
    cluster.holds_syncs |= {NodeId(f"sequencer-{n}") for n in (1, 2, 3)}
    first = cluster.append("first")
    second = [cluster.append(f"{n}", engine=f"engine-{n}") for n in (2, 3)]
    assert first not in cluster.answers
    fetched: list[object] = []

    def loses(_sender: NodeId, to: NodeId, message: object) -> bool:
        if isinstance(message, FetchBatches):
            fetched.append(message)
            return len(fetched) == 1  # of one shard the question is lost, and the other's batch comes
        return False

    cluster.loses = loses
    for node in list(cluster.holds_syncs):
        cluster.holds_syncs.discard(node)
        cluster.sync(node)
    cluster.tick(10)
    assert all(isinstance(cluster.answer(request), Appended) for request in [first, *second])
    assert sorted(cluster.texts()) == ["2", "3", "first"]


def test_pushed_batches_beyond_their_budget_are_dropped_and_fetched() -> None:
    """What is pushed waits within a number of bytes; what was dropped comes from storage."""
    cluster = made()
    cluster.core_of("engine-2").strays._pushed_limit_bytes = 10_000
    cluster.loses = lambda _sender, to, message: to == "engine-2" and isinstance(message, Metalog)
    for number in range(20):
        cluster.append(f"{number}" + "x" * 3_000)
    assert cluster.core_of("engine-2").strays._pushed_bytes <= 10_000
    cluster.loses = lambda *_: False
    cluster.tick(30)
    everything(cluster)
    assert cluster.core_of("engine-2").strays._pushed_bytes == 0
    assert cluster.messages(FetchBatches)


def test_a_damaged_push_is_never_read() -> None:
    """Payloads of others' batches are checked when they are first read; a bad one comes from a replica."""
    cluster = made()

    def spoil(_sender: NodeId, to: NodeId, message: object) -> bool:
        if isinstance(message, IndexBatch):
            batch = message.batch[:-1] + bytes([message.batch[-1] ^ 1])
            cluster.queue.append((NodeId("engine-1"), to, IndexBatch(batch)))
            return True
        return False

    cluster.loses = spoil
    cluster.append("precious")
    assert cluster.texts(engine="engine-2") == ["precious"]
    assert cluster.messages(FetchBatches)


def test_a_position_of_another_engine_is_waited_for() -> None:
    """What one engine handed out, the other waits for; a position of no engine ends at the deadline."""
    cluster = made()
    cluster.loses = lambda _sender, to, message: to == "engine-2" and isinstance(message, Metalog)
    request = cluster.append("a")
    positions = cluster.answers[request].positions
    read = cluster.submit(Read("book"), positions, engine="engine-2")
    assert read not in cluster.answers
    cluster.loses = lambda *_: False
    assert [record.data for record in records_of(cluster.wait(read))] == [b"a"]
    with pytest.raises(DeadlineExceeded, match="of this cluster"):
        cluster.do(Get("book", 1), positions={0: make_position(99, 0)}, timeout_s=1, engine="engine-2")
    assert cluster.messages(FetchView)


def test_an_engine_that_was_not_told_of_a_term_asks() -> None:
    """A newer term in a position, or in any message, makes it fetch the view (design section 4)."""
    cluster = made()
    cluster.seal()
    cluster.announce(*[node for node in cluster.cores if node != "engine-2"])
    cluster.tick(3)
    request = cluster.append("new")
    cluster.wait(request)
    positions = cluster.answers[request].positions
    page = cluster.do(Read("book"), positions=positions, engine="engine-2")
    assert [record.data for record in records_of(page)] == [b"new"]
    assert isinstance(cluster.do(Sync("book"), engine="engine-2"), Done)


def test_a_core_answers_a_ping_itself() -> None:
    """With the newest term that it knows, and how far it has applied the metalogs."""
    cluster = made()
    cluster.change_term()
    cluster.tell("engine-1", Ping(7), "controller-1")
    cluster.run()
    assert cluster.messages(Pong)[-1] == Pong(7, 2, cluster.engine.incarnation, applied=cluster.engine.index.applied)


# shards that move


def opened(cluster: Cluster, engine: str = "engine-1") -> list[tuple[NodeId, ...]]:
    """The replicas of the shards that an engine writes now."""
    return [shard.replicas for _, shard in cluster.core_of(engine).appends.current_shards()]


def test_a_shard_moves_when_a_storage_node_is_gone_and_another_is_there() -> None:
    """The new one is opened first, the old one closed when all of it is ordered; appends do not stop."""
    cluster = made(storage=4, engines=1)
    (before,) = opened(cluster)
    old = cluster.engine.appends.current_shards()[0][1].shard
    cluster.append("before")
    cluster.lose(before[0])
    request = cluster.append("after")
    assert isinstance(cluster.answer(request), Appended)
    cluster.tick(5)
    (after,) = opened(cluster)
    assert before[0] not in after
    assert len(after) == 3
    closed = [m.entry for m in cluster.messages(RequestEntry) if isinstance(m.entry, CloseShard)]
    assert set(closed) == {CloseShard(old)}
    assert len(cluster.engine.appends._writers[0].shards()) == 1
    assert cluster.texts() == ["before", "after"]


def test_without_a_spare_node_a_shard_stays() -> None:
    """Degraded, and appending; when a node joins, a new shard uses it."""
    cluster = made(engines=1)
    (before,) = opened(cluster)
    cluster.lose("storage-2")
    cluster.tick(5)
    assert opened(cluster) == [before]
    assert isinstance(cluster.answer(cluster.append("a")), Appended)
    cluster.start("storage-4")
    cluster.tick(5)
    assert set(opened(cluster)[0]) == {"storage-1", "storage-3", "storage-4"}
    assert isinstance(cluster.answer(cluster.append("b")), Appended)


def test_a_draining_node_gets_no_new_shard() -> None:
    """Its shards move away while it lives."""
    cluster = made(storage=4, engines=1)
    (before,) = opened(cluster)
    cluster.draining = (before[1],)
    cluster.register()
    cluster.tick(5)
    assert before[1] not in opened(cluster)[0]
    cluster.change_term()
    cluster.tick(5)
    assert before[1] not in opened(cluster)[0]


def test_what_a_lost_quorum_left_unordered_is_appended_anew_in_another_shard() -> None:
    """Two of three replicas die: the old shard is closed with what it did not order, and nothing is doubled."""
    cluster = made(storage=5, engines=1)
    (before,) = opened(cluster)
    cluster.crash(before[0])
    cluster.crash(before[1])
    requests = [cluster.append(f"{number}") for number in range(5)]
    cluster.tick(3)
    assert not any(request in cluster.answers for request in requests)
    cluster.register()
    cluster.tick(30)
    seqnums = [cluster.answer(request).first_seqnum for request in requests]
    assert cluster.read() == list(zip(seqnums, ["0", "1", "2", "3", "4"], strict=True))


def test_load_spreads_over_storage_nodes() -> None:
    """Shards of engines and logs begin at different nodes."""
    cluster = made(storage=6, engines=3, logs=3)
    used = [node for engine in cluster.engines for replicas in opened(cluster, engine) for node in replicas]
    assert {used.count(node) > 0 for node in cluster.views[0].storage} == {True}


@pytest.mark.parametrize("seed", range(8))
def test_memberships_that_come_and_go_lose_and_double_nothing(seed: int) -> None:
    """Storage nodes come and go, at most one of them away at a time, over lossy links."""
    cluster = made(storage=5)
    dice = Random(seed)
    cluster.loses = lambda *_: dice.random() < 0.1
    requests = {}
    for number in range(60):
        gone = [node for node in cluster.views[0].storage if node not in cluster.cores]
        if dice.random() < 0.2:
            if gone:
                cluster.start(gone[0])
            else:
                cluster.lose(dice.choice(cluster.views[0].storage))
        requests[f"{number}"] = cluster.append(f"{number}", engine=f"engine-{number % 2 + 1}")
        cluster.tick(dice.randrange(4))
    cluster.loses = lambda *_: False
    cluster.tick(60)
    (found,) = everything(cluster)
    assert sorted(int(text) for _, text in found) == list(range(60))
    assert {text: cluster.answer(request).first_seqnum for text, request in requests.items()} == {
        text: seqnum for seqnum, text in found
    }


def test_a_full_replica_and_one_that_is_gone_refuse_appends_for_certain() -> None:
    """Two of three cannot take more: better no than a wait for an order that may never come (hazard H20)."""
    cluster = made(engines=1)
    cluster.append("a")
    cluster.tell("storage-1", DiskRoom(False))
    cluster.run()
    assert isinstance(cluster.answer(cluster.append("b")), Appended)
    cluster.lose("storage-2")
    with pytest.raises(DiskFull):
        cluster.answer(cluster.append("c"))
    cluster.start("storage-2")
    assert isinstance(cluster.wait(cluster.append("d")), Appended)


def test_late_words_to_a_former_life_are_not_heard_before_the_views() -> None:
    """A new incarnation knows no term yet: whatever nodes say is not meant for it."""
    cluster = made(engines=1)
    cluster.append("a")
    core = EngineCore(NodeId("engine-1"), 999, cluster.disk("engine-1"), cluster.config)
    said = [message for _, to, message in cluster.sent if to == "engine-1"]
    said += [CheckpointStored(1, 1, 1, True, 1), EntriesDropped(1, 0, 5), TellTail(1, 1, 0, 1, 5, False)]
    for message in said:
        assert not list(core.receive(NodeId("storage-1"), message, 1))


def test_a_wiped_storage_node_has_stored_nothing() -> None:
    """Batches that only its former incarnation had are sent to it again: the quorum needs it."""
    cluster = made(engines=1)
    cluster.crash("storage-2")
    cluster.crash("storage-3")
    request = cluster.append("a")
    cluster.crash("storage-1")
    cluster.start("storage-1", is_wiped=True)
    cluster.start("storage-2")
    cluster.tick(20)
    assert isinstance(cluster.answer(request), Appended)
    assert cluster.texts() == ["a"]


# fences


def test_a_fence_is_answered_when_every_log_has_it_and_stops_the_engine_for_good() -> None:
    """What was on its way there ends as unknown or not applied; others continue, and take over."""
    cluster = made(logs=2)
    lost = cluster.core_of("engine-2")
    cluster.append("theirs", engine="engine-2")
    cluster.loses = lambda sender, _to, message: isinstance(message, StoreBatch) and sender == "engine-2"
    stuck = [cluster.append("stuck", book=book, engine="engine-2") for book in ("book", "a", "b", "c", "d")]
    waiting = cluster.submit(Read("book", "none", wait_us=10 * SECOND), engine="engine-2")
    token = fence(cluster, lost.incarnation)
    cluster.tick(3)
    assert fenced(cluster, token)
    assert (NodeId("engine-2"), EngineNews.FENCED) in cluster.news
    assert any("was fenced" in text for text in cluster.traces)
    errors: list[BokiError] = [cluster.answers[request].answer for request in [*stuck, waiting]]
    assert {type(error) for error in errors[:-1]} == {ConnectionLost, Unavailable}
    assert isinstance(errors[-1], Unavailable)
    outcomes = {type(error): error.outcome for error in errors}
    assert outcomes == {ConnectionLost: "unknown", Unavailable: "not_applied"}
    with pytest.raises(Unavailable):
        cluster.answer(cluster.append("zombie", engine="engine-2"))
    cluster.loses = lambda *_: False
    cluster.tick(20)
    assert cluster.texts() == ["theirs"]
    assert isinstance(cluster.answer(cluster.append("mine")), Appended)
    again = fence(cluster, lost.incarnation, engine="engine-1")
    assert fenced(cluster, again)


def test_a_fenced_engine_that_was_asleep_stops_before_it_appends_again() -> None:
    """It heard nothing of its fence, nor of the next term: it applies the end of the old one first."""
    cluster = made()
    lost = cluster.core_of("engine-2")
    token = fence(cluster, lost.incarnation)
    cluster.loses = lambda _sender, to, _message: to == "engine-2"  # from here on it hears nothing
    cluster.news.remove((NodeId("engine-2"), EngineNews.FENCED))
    del cluster.cores[NodeId("engine-2")]
    assert fenced(cluster, token)
    cluster.change_term()
    cluster.loses = lambda *_: False
    cluster.start_engine("engine-2")
    cluster.until_ready()
    assert isinstance(cluster.answer(cluster.append("reborn", engine="engine-2")), Appended)


def test_an_engine_that_sleeps_through_its_fence_and_a_term_appends_nothing() -> None:
    """Its unordered batches are refused forever, and what it was asked meanwhile is not applied."""
    cluster = made()
    sleeper = cluster.core_of("engine-2")
    del cluster.cores[NodeId("engine-2")]  # stopped, not dead: it keeps what it knows
    cluster.perform(
        NodeId("engine-2"),
        sleeper.submit(
            Append("book", encode_chunk("book", [Group([(b"zombie", ("tag",))])])),
            {},
            cluster.now_us + 300 * SECOND,
            "zombie",
            cluster.now_us,
        ),
    )
    token = fence(cluster, sleeper.incarnation)
    cluster.tick(5)
    assert fenced(cluster, token)
    cluster.change_term()
    cluster.append("mine")
    cluster.cores[NodeId("engine-2")] = sleeper
    cluster.announce("engine-2")
    cluster.tick(30)
    assert sleeper.is_fenced()
    assert (NodeId("engine-2"), EngineNews.FENCED) in cluster.news
    zombie: Answer = cluster.answers[NodeId("engine-2"), "zombie"]
    assert isinstance(zombie.answer, BokiError)
    assert zombie.answer.outcome == "not_applied"
    assert cluster.texts() == ["mine"]


def test_a_fence_survives_the_end_of_the_term() -> None:
    """Half of it was ordered when the term ended: the lost engine stops there, so the fence holds."""
    cluster = made(logs=2)
    lost = cluster.core_of("engine-2").incarnation
    cluster.crash("engine-2")
    blocked = cluster.views[0].primaries[1]
    cluster.loses = lambda _sender, to, message: isinstance(message, RequestEntry) and to == blocked
    token = fence(cluster, lost)
    cluster.tick(3)
    assert not fenced(cluster, token)
    cluster.loses = lambda *_: False
    cluster.seal()
    cluster.announce()
    cluster.tick(5)
    assert fenced(cluster, token)


def test_a_restarted_engine_remembers_the_fences_of_its_term() -> None:
    """From its checkpoint: the primary appends no second fence, so nobody would ever see one."""
    cluster = made()
    lost = cluster.core_of("engine-2").incarnation
    cluster.crash("engine-2")
    fence(cluster, lost)
    cluster.tick(2)
    cluster.perform(NodeId("engine-1"), cluster.engine.checkpoint())
    cluster.run()
    cluster.crash("engine-1")
    cluster.start_engine()
    cluster.until_ready("engine-1")
    cluster.answers.clear()
    assert fenced(cluster, fence(cluster, lost))


# stopping


def test_a_closing_engine_orders_what_it_has_and_closes_its_shards() -> None:
    """New appends are refused for certain; then no shard of it is open."""
    cluster = made()
    cluster.holds_syncs |= {NodeId(f"storage-{n}") for n in (1, 2, 3)}
    request = cluster.append("last", engine="engine-2")
    cluster.core_of("engine-2").close()
    with pytest.raises(Unavailable):
        cluster.answer(cluster.append("too late", engine="engine-2"))
    cluster.tick(3)
    assert request not in cluster.answers
    for node in list(cluster.holds_syncs):
        cluster.holds_syncs.discard(node)
        cluster.sync(node)
    cluster.tick(10)
    assert isinstance(cluster.answer(request), Appended)
    assert (NodeId("engine-2"), EngineNews.CLOSED) in cluster.news
    assert not cluster.core_of("engine-2").appends.current_shards()
    cluster.change_term()
    cluster.tick(5)
    opens = [m.entry for m in cluster.messages(RequestEntry) if isinstance(m.entry, OpenShard) and m.term == 2]
    assert {entry.engine for entry in opens} == {"engine-1"}
    assert cluster.messages(FetchMetalog)
