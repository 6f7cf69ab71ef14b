"""Checkpoints of the index on the storage nodes: mirrored, covering, and enough to begin from."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from boki.engine.checkpoint.bootstrap import LOADING_KEY, Bootstrap
from boki.engine.checkpoint.mirror import INDEX_KEYS
from boki.engine.core import EngineCore
from boki.log.ids import MAX_SEQNUM, NodeId
from boki.log.membership import Member, Membership, Role
from boki.log.metalog import make_position
from boki.log.operations import TrimBook
from boki.log.record import Expect
from boki.protocol.effects import DiskRoom, EngineNews, Send
from boki.protocol.follower import COORDINATOR
from boki.protocol.messages import (
    BatchesFetched,
    CheckpointFetched,
    CheckpointStored,
    DropEntries,
    EntriesDropped,
    FetchBatches,
    FetchCheckpoint,
    FetchView,
    IndexBatch,
    InstallMembership,
    InstallView,
    Metalog,
    StoreCheckpoint,
)
from tests.engine.cluster import CONFIG, Cluster
from tests.members import view
from tests.world import MemoryDisk


def made(**settings: object) -> Cluster:
    cluster = Cluster(is_registered=True, **({"engines": 2} | settings))  # type: ignore[arg-type]
    cluster.until_ready()
    return cluster


def save(cluster: Cluster, engine: str = "engine-1") -> None:
    """Save an engine's index, and let it be mirrored if that is this engine's task."""
    cluster.perform(NodeId(engine), cluster.core_of(engine).checkpoint())
    cluster.run()
    mirror = cluster.core_of(engine).checkpoints._mirror
    cluster.tick(2)
    for _ in range(60):
        if mirror._build is None and not mirror._queue:
            break
        cluster.tick()


def wipe(cluster: Cluster, engine: str) -> None:
    cluster.crash(engine)
    cluster.disks[NodeId(engine)] = MemoryDisk()


def index_rows(disk: MemoryDisk) -> dict[bytes, bytes]:
    return {key: value for start, stop in INDEX_KEYS for key, value in disk.scan(start, stop)}


def kept_rows(disk: MemoryDisk) -> dict[bytes, bytes]:
    """What a storage node keeps of the newest checkpoint: all lineages but one are dropped."""
    return {key[10:]: value for key, value in disk.rows.items() if key.startswith(b"xr")}


def test_every_storage_node_keeps_what_the_first_engine_has_saved() -> None:
    """A whole index first, then what changes: after each it is the same, row by row."""
    cluster = made()
    for round_ in range(4):
        for number in range(20):
            cluster.append(
                f"{round_}-{number}", book=f"book-{number % 3}", tags=[f"t{number}", f"r{round_}"], key=f"{number}"
            )
        if round_ == 2:
            cluster.do(TrimBook("book-1", MAX_SEQNUM, everything=True))
        save(cluster)
        rows = index_rows(cluster.disk("engine-1"))
        assert rows
        for node in cluster.views[0].storage:
            assert kept_rows(cluster.disk(node)) == rows
    senders = {sender for sender, _, message in cluster.sent if isinstance(message, StoreCheckpoint)}
    assert senders == {"engine-1"}
    assert max(message.number for message in cluster.messages(StoreCheckpoint)) == 4


def test_an_engine_without_its_disk_begins_from_a_checkpoint() -> None:
    """It reads neither the entries nor the batches before: they may be long, or gone."""
    cluster = made()
    for number in range(30):
        cluster.append(f"{number}")
    save(cluster)
    cluster.append("after")
    before = cluster.read()
    wipe(cluster, "engine-2")
    cluster.sent.clear()
    cluster.start_engine("engine-2")
    cluster.until_ready("engine-2")
    assert cluster.read(engine="engine-2") == before
    news = [m for _, to, m in cluster.sent if to == "engine-2" and isinstance(m, Metalog) and m.entries]
    assert sum(len(message.entries) for message in news) <= 5
    assert cluster.answer(cluster.append("mine", engine="engine-2"))


def test_old_entries_are_dropped_once_a_checkpoint_covers_them() -> None:
    """One checkpoint later; a start from an empty disk still knows tags and conditions of what was trimmed before."""
    cluster = made()
    fence = cluster.answer(cluster.append("old", tags=["!fence"])).first_seqnum
    for number in range(10):
        cluster.append(f"{number}")
    save(cluster)
    cluster.append("kept")
    cluster.do(TrimBook("book", cluster.read()[-1][0]))
    save(cluster)
    cluster.append("later")
    save(cluster)
    assert cluster.messages(DropEntries)
    cluster.change_term()
    cluster.append("latest")
    save(cluster)
    save(cluster)
    for engine in ("engine-1", "engine-2"):
        wipe(cluster, engine)
    cluster.start_engine("engine-1")
    cluster.start_engine("engine-2")
    cluster.until_ready()
    for engine in cluster.engines:
        assert cluster.texts(engine=engine) == ["kept", "later", "latest"]
        refused = cluster.wait(cluster.append("no", when=[Expect("!fence", 0)], engine=engine))
        assert refused.rejected[0].actual_seqnum == fence


def test_an_engine_whose_copy_is_too_old_takes_a_newer_one() -> None:
    """It slept while entries were dropped: it says that its index is stale, and its next start is elsewhere."""
    cluster = made()
    save(cluster, "engine-2")
    cluster.crash("engine-2")
    for _ in range(3):
        cluster.append("x")
        save(cluster)
    cluster.change_term()
    for _ in range(3):
        cluster.append("y")
        save(cluster)
    before = cluster.read()
    cluster.start_engine("engine-2")
    cluster.tick(30)
    assert cluster.messages(EntriesDropped)
    cluster.until_ready("engine-2")
    assert cluster.read(engine="engine-2") == before
    assert any("cannot go on" in text for text in cluster.traces)
    assert (NodeId("engine-2"), EngineNews.STALE) not in cluster.news


def test_a_copy_that_is_only_somewhat_behind_is_kept() -> None:
    """Reading the log is quicker than loading an index."""
    cluster = made()
    save(cluster, "engine-2")
    cluster.crash("engine-2")
    cluster.append("x")
    save(cluster)
    cluster.start_engine("engine-2")
    cluster.until_ready("engine-2")
    asked = [m for sender, _, m in cluster.sent if sender == "engine-2" and isinstance(m, FetchCheckpoint)]
    assert {message.max_bytes for message in asked} == {1}
    assert cluster.texts(engine="engine-2") == ["x"]


def test_a_copy_from_before_retired_sequencers_is_given_up_for_a_checkpoint() -> None:
    """It lacks little, but whoever kept that is gone permanently: the engine must not wait for it."""
    cluster = made()
    save(cluster, "engine-2")
    cluster.crash("engine-2")
    for _ in range(3):
        cluster.append("x")
        save(cluster)
    retired = cluster.plan.sequencers
    chosen = tuple(NodeId(f"sequencer-{number}") for number in (7, 8, 9))
    for node in chosen:
        cluster.start(node)
    cluster.change_term(sequencers=chosen, incarnations=dict.fromkeys(chosen, 1), primaries=())
    for _ in range(3):
        cluster.append("y")
        save(cluster)
    assert all(cluster.cores[node]._kept_from_term == 2 for node in chosen)  # type: ignore[attr-defined]
    cluster.lose(*retired)
    before = cluster.read()
    cluster.start_engine("engine-2")
    cluster.until_ready("engine-2")
    assert cluster.read(engine="engine-2") == before


@pytest.mark.parametrize("seed", range(6))
def test_a_load_that_is_interrupted_begins_anew(seed: int) -> None:
    """By crashes, lost messages, and storage nodes that die: half an index is never taken for one."""
    cluster = made()
    for number in range(200):
        cluster.append(f"{number}", tags=[f"tag-{number}" * 20])
    save(cluster)
    before = cluster.read()
    wipe(cluster, "engine-2")
    dice = Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("boki.engine.checkpoint.bootstrap._PAGE_BYTES", 2_000)
        cluster.loses = lambda _sender, _to, message: isinstance(message, CheckpointFetched) and dice.random() < 0.3
        for _ in range(4):
            cluster.start_engine("engine-2")
            cluster.tick(dice.randrange(3, 10))
            if LOADING_KEY in cluster.disk("engine-2").rows:
                victim = f"storage-{dice.randrange(3) + 1}"
                cluster.crash(victim)
                cluster.start(victim)
            cluster.crash("engine-2")
        cluster.loses = lambda *_: False
        cluster.start_engine("engine-2")
        cluster.until_ready("engine-2")
    assert LOADING_KEY not in cluster.disk("engine-2").rows
    assert cluster.read(engine="engine-2") == before


class Asking:
    """An engine without an index of its own, and three storage nodes that are played by hand."""

    nodes = tuple(NodeId(f"storage-{number}") for number in (1, 2, 3))

    def __init__(self) -> None:
        members = tuple(Member(node=node, role=Role.STORAGE, incarnation=1) for node in self.nodes)
        self.boot = Bootstrap(NodeId("engine-2"), 5, MemoryDisk(), CONFIG)
        self.now_us = 1
        self.boot.receive(COORDINATOR, InstallView((view(),)), self.now_us)
        self.boot.receive(COORDINATOR, InstallMembership(Membership(number=1, members=members)), self.now_us)

    def questions(self) -> dict[NodeId, Any]:
        """What it asks of whom a while later."""
        self.now_us += 600_000
        sent = [each for each in self.boot.tick(self.now_us) if isinstance(each, Send)]
        return {each.to: each.message for each in sent}

    def answer(self, node: NodeId, request: int, lineage: int, entries: int = 9) -> None:
        """The node has that checkpoint (0: none), which covers this many entries."""
        told = CheckpointFetched(request, lineage, 1, (), False, {0: entries} if lineage else {})
        self.boot.receive(node, told, self.now_us)

    def offer(self, *offers: tuple[int, int] | None) -> None:
        """Each node answers what it is asked first: lineage, entries; or nothing."""
        for (node, question), offered in zip(sorted(self.questions().items()), offers, strict=True):
            assert question.lineage == 0
            if offered is not None:
                self.answer(node, question.request, *offered)

    def asked_for_page(self) -> tuple[NodeId, Any]:
        """Of whom it asks a page, and which, once it has waited long enough for those that do not answer."""
        while True:
            for node, question in self.questions().items():
                if question.lineage:
                    return node, question


def test_late_answers_about_a_checkpoint_that_was_replaced_do_not_say_that_there_is_none() -> None:
    """Its pages were asked for more than once; whether there is another is asked again."""
    asking = Asking()
    asking.offer((7, 9), (7, 9), (7, 9))
    first = asking.nodes[0]
    pages = [asking.questions()[first].request for _ in range(3)]
    asking.answer(first, pages[-1], 0)
    for node in asking.nodes:
        asking.answer(node, pages[0], 0)
    assert asking.boot.engine is None
    asking.offer((0, 0), (0, 0), (0, 0))
    asking.questions()
    assert asking.boot.engine is not None


def test_a_checkpoint_that_its_node_cannot_read_gives_way_to_an_older_one() -> None:
    """The node offers it again and again, because its name can be read; it was on no quorum, so the older one will do.

    Seed 306922 of the simulator asked for it forever.
    """
    asking = Asking()
    offers = ((7, 9), (7, 9), (8, 12))
    asking.offer(*offers)
    damaged, page = asking.asked_for_page()
    assert (damaged, page.lineage) == (asking.nodes[2], 8)
    asking.answer(damaged, page.request, 0)
    asking.offer(*offers)
    source, page = asking.asked_for_page()
    assert (source, page.lineage) == (asking.nodes[0], 7)


def test_a_checkpoint_that_cannot_be_read_does_not_count_as_none() -> None:
    """A complete one is on a write quorum: the engine waits until enough others have said that there is none."""
    asking = Asking()
    silent = asking.nodes[2]
    asking.offer((8, 12), (0, 0), None)
    damaged, page = asking.asked_for_page()
    asking.answer(damaged, page.request, 0)
    asking.offer((8, 12), (0, 0), None)
    for _ in range(5):
        asked = asking.questions()
        assert set(asked) == {silent}
    assert asking.boot.engine is None
    asking.answer(silent, asked[silent].request, 0)
    asking.questions()
    assert asking.boot.engine is not None


def test_a_checkpoint_of_a_term_that_is_not_known_yet_waits_for_its_view() -> None:
    """The coordinator's word may be late. Seed 307823 of the simulator began from one, and the engine died of it."""
    asking = Asking()
    ahead = make_position(2, 3)
    asking.offer((8, ahead), (0, 0), (0, 0))
    asked = asking.questions()
    assert asked == {COORDINATOR: FetchView(1)}
    later = view(term=2, previous_ends=(9,))
    asking.boot.receive(COORDINATOR, InstallView((later,)), asking.now_us)
    source, page = asking.asked_for_page()
    assert (source, page.lineage) == (asking.nodes[0], 8)


def test_a_storage_node_that_comes_later_gets_a_whole_index_in_time() -> None:
    """While it lacks one the others are enough; nobody waits for it."""
    cluster = made(storage=4)
    cluster.crash("storage-4")
    cluster.register()
    cluster.append("x")
    save(cluster)
    cluster.start("storage-4", is_wiped=True)
    for number in range(3):
        cluster.append(f"{number}")
        save(cluster)
    assert cluster.messages(DropEntries)
    assert not kept_rows(cluster.disk("storage-4"))
    cluster.now_us += 310_000_000
    cluster.tick(250)
    save(cluster)
    cluster.tick(30)
    assert kept_rows(cluster.disk("storage-4")) == index_rows(cluster.disk("engine-1"))


def test_another_engine_goes_on_when_the_first_is_gone() -> None:
    """With a lineage of its own: what it sends builds on nothing of the other's."""
    cluster = made()
    cluster.append("x")
    save(cluster)
    cluster.lose("engine-1")
    cluster.append("y", engine="engine-2")
    save(cluster, "engine-2")
    cluster.tick(30)
    for node in cluster.views[0].storage:
        assert kept_rows(cluster.disk(node)) == index_rows(cluster.disk("engine-2"))
    lineages = {message.lineage for message in cluster.messages(StoreCheckpoint)}
    assert len(lineages) == 2
    cluster.start_engine("engine-1")
    cluster.until_ready("engine-1")
    assert cluster.texts(engine="engine-1") == ["x", "y"]


def test_full_disks_keep_the_index_that_they_have_and_take_another_once_they_have_room() -> None:
    """A whole index is sent when an engine starts again: without room its pages come seldom, and none stays."""
    cluster = made()
    cluster.append("before")
    save(cluster)
    storage = cluster.views[0].storage
    kept = {node: kept_rows(cluster.disk(node)) for node in storage}
    for node in storage:
        cluster.tell(node, DiskRoom(False))
    cluster.crash("engine-1")
    cluster.start_engine("engine-1")
    cluster.until_ready("engine-1")
    cluster.sent.clear()
    cluster.tick(1200)
    assert {node: kept_rows(cluster.disk(node)) for node in storage} == kept
    assert not any(answer.is_complete for answer in cluster.messages(CheckpointStored))
    assert 0 < len(cluster.messages(StoreCheckpoint)) <= 60 * len(storage)
    for node in storage:
        cluster.tell(node, DiskRoom(True))
    cluster.append("after")
    cluster.tick(500)
    save(cluster)
    assert all(kept_rows(cluster.disk(node)) == index_rows(cluster.disk("engine-1")) for node in storage)


def test_pages_that_are_lost_are_sent_again() -> None:
    """And a checkpoint that no quorum has lets nothing be dropped."""
    cluster = made()
    dice = Random(1)
    cluster.loses = lambda _sender, _to, message: isinstance(message, CheckpointStored)
    cluster.append("x")
    save(cluster)
    cluster.append("y")
    save(cluster)
    assert not cluster.messages(DropEntries)
    cluster.loses = lambda _s, _t, message: (
        isinstance(message, StoreCheckpoint | CheckpointStored) and dice.random() < 0.5
    )
    cluster.tick(400)
    cluster.loses = lambda *_: False
    cluster.tick(250)
    save(cluster)
    for node in cluster.views[0].storage:
        assert kept_rows(cluster.disk(node)) == index_rows(cluster.disk("engine-1"))


def mirroring() -> Cluster:
    """A cluster in the middle of a first whole index, which is of many pages."""
    cluster = made(config=msgspec.structs.replace(CONFIG, checkpoint_page_bytes=1_000))
    for number in range(200):
        cluster.append(f"{number}", tags=[f"a tag of some length {number}"], key=f"a key of some length {number}")
    cluster.perform(NodeId("engine-1"), cluster.engine.checkpoint())
    cluster.tick(5)
    assert cluster.messages(StoreCheckpoint)
    return cluster


def is_mirrored_whole(cluster: Cluster) -> bool:
    """Whether that index was sent once, and all storage nodes keep it."""
    cluster.tick(100)
    lineages = {message.lineage for message in cluster.messages(StoreCheckpoint)}
    complete = {sender for sender, _, m in cluster.sent if isinstance(m, CheckpointStored) and m.is_complete}
    return len(lineages) == 1 and complete == set(cluster.views[0].storage)


def test_a_batch_that_comes_late_does_not_begin_a_mirror_anew() -> None:
    """Another engine's cut was heard of before its batch: pages are sent on meanwhile."""
    cluster = mirroring()
    cluster.loses = lambda _sender, to, message: to == "engine-1" and isinstance(message, IndexBatch | BatchesFetched)
    cluster.append("late", engine="engine-2")
    cluster.tick()
    assert not cluster.engine.is_ready
    cluster.loses = lambda *_: False
    assert is_mirrored_whole(cluster)
    assert "late" in cluster.texts()


def test_a_new_term_does_not_begin_a_mirror_anew() -> None:
    """What was saved in the term before still covers what it says."""
    cluster = mirroring()
    cluster.loses = lambda _sender, to, message: to == "engine-1" and isinstance(message, Metalog)
    cluster.change_term()
    cluster.tick()
    assert not cluster.engine.is_ready
    cluster.loses = lambda *_: False
    assert is_mirrored_whole(cluster)


def test_without_other_engines_known_nothing_is_mirrored() -> None:
    """One process keeps its index itself."""
    cluster = Cluster()
    cluster.until_ready()
    cluster.append("x")
    save(cluster)
    assert isinstance(cluster.cores[NodeId("engine-1")], EngineCore)
    assert not cluster.messages(StoreCheckpoint)
    assert not cluster.messages(FetchBatches)


def test_pages_that_come_later_than_they_are_asked_for_again_are_loaded() -> None:
    """The disk of a storage node may be slow for long: an answer to the same question is as good."""
    cluster = made()
    for number in range(5):
        cluster.append(f"{number}")
    save(cluster)
    before = cluster.read()
    wipe(cluster, "engine-2")
    cluster.start_engine("engine-2")
    cluster.tick_with_late(CheckpointFetched, 14, 100)
    core = cluster.cores[NodeId("engine-2")]
    assert isinstance(core, Bootstrap)
    assert core.engine is not None
    cluster.until_ready("engine-2")
    assert cluster.read(engine="engine-2") == before
