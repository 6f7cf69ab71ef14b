"""Terms end while appends, reads and subscriptions are under way, and books move from one log to another."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from boki.errors import BokiError
from boki.log.ids import NodeId, split_seqnum
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Appended, Found, Read, Sync, TrimBook
from boki.log.record import Expect
from boki.protocol.messages import Metalog
from tests.engine.cluster import SECOND, Cluster, records_of

BOOKS = tuple(f"book-{number}" for number in range(6))


class Subscriber:
    """Reads a tag page by page with a position of its own, as `subscribe` does, and waits at the end."""

    def __init__(self, cluster: Cluster, book: str, *, hops: bool = False) -> None:
        self.cluster = cluster
        self.book = book
        self.hops = hops
        self.start = 0
        self.positions: Positions = {}
        self.found: list[tuple[int, str]] = []
        self.request: int | None = None
        self.engine = "engine-1"
        self.asked = cluster.cores[NodeId(self.engine)]

    def go_on(self) -> None:
        """Take what has come, and ask on: of another engine each time, if it hops."""
        while True:
            if self.request is not None and self.cluster.cores.get(NodeId(self.engine)) is self.asked:
                answered = self.cluster.answers.get(self.request)
                if answered is None:
                    return
                if isinstance(answered.answer, Found):
                    merge_positions(self.positions, answered.positions)
                    self.found += [(record.seqnum, record.data.decode()) for record in records_of(answered.answer)]
                    self.start = answered.answer.next_start
                is_end = not isinstance(answered.answer, Found) or not answered.answer.slabs
            else:
                is_end = False
            engines = self.cluster.engines
            self.engine = engines[len(self.found) % len(engines)] if self.hops else engines[0]
            read = Read(self.book, "tag", start=self.start, limit=3, wait_us=5 * SECOND)
            self.asked = self.cluster.cores[NodeId(self.engine)]
            self.request = self.cluster.submit(read, dict(self.positions), 10, engine=self.engine)
            if is_end:
                return


def made(**settings: object) -> Cluster:
    cluster = Cluster(is_registered=True, **({"engines": 2, "logs": 2} | settings))  # type: ignore[arg-type]
    cluster.until_ready()
    return cluster


def swarm(
    cluster: Cluster, dice: Random, rounds: int, change: Callable[[int], None], heal: Callable[[], None]
) -> dict[str, tuple[str, int]]:
    """Appends to all books by all engines while something changes each round. → text: (book, request)"""
    requests: dict[str, tuple[str, int]] = {}
    subscribers = [Subscriber(cluster, book, hops=number % 2 == 1) for number, book in enumerate(BOOKS)]
    for round_ in range(rounds):
        change(round_)
        for number in range(dice.randrange(1, 12)):
            text, book = f"{round_}-{number}", dice.choice(BOOKS)
            requests[text] = book, cluster.append(text, book=book, engine=dice.choice(cluster.engines))
        cluster.tick(dice.randrange(8))
        for subscriber in subscribers:
            subscriber.go_on()
    cluster.loses = lambda *_: False
    heal()
    cluster.tick(80)
    for subscriber in subscribers:
        for _ in range(200):
            subscriber.go_on()
            cluster.tick()
            if len(subscriber.found) == len(cluster.read(subscriber.book)):
                break
        assert subscriber.found == cluster.read(subscriber.book), "a hole, a repeat or a stall"
    return requests


def check(cluster: Cluster, requests: dict[str, tuple[str, int]], *, may_be_lost: bool = False) -> None:
    """All engines read the same; what was acknowledged is there, once, where its answer said; nothing else is."""
    for book in BOOKS:
        found = cluster.read(book)
        assert len({text for _, text in found}) == len(found), "doubled"
        for engine in cluster.engines:
            assert cluster.read(book, engine=engine) == found
        places = {text: seqnum for seqnum, text in found}
        for text, (owner, request) in requests.items():
            answered = cluster.answers.get(request)
            if owner != book or answered is None:
                assert owner != book or may_be_lost
            elif isinstance(answered.answer, Appended):
                assert places.pop(text) == answered.answer.first_seqnum
            else:
                assert may_be_lost
                assert isinstance(answered.answer, BokiError)
                assert answered.answer.outcome == "unknown" or text not in places
                places.pop(text, None)
        assert may_be_lost or not places


@pytest.mark.parametrize("seed", range(10))
def test_terms_that_end_under_load_lose_and_double_nothing(seed: int) -> None:
    """Appends in flight are ordered in the old term or again in the next; logs come and go, and messages are lost."""
    cluster = made()
    dice = Random(seed)

    def change(round_: int) -> None:
        cluster.loses = lambda sender, to, _message: dice.random() < 0.1 and "controller-1" not in (sender, to)
        if round_ % 4 == 3:
            cluster.seal(log_count=dice.choice([1, 2, 3]))
            told = [node for node in cluster.cores if dice.random() < 0.8]
            cluster.announce(*told)  # the others hear of it from somebody, or later
        elif round_ % 4 == 1:
            cluster.announce()

    requests = swarm(cluster, dice, 24, change, cluster.announce)
    assert len(cluster.views) > 5
    check(cluster, requests)


@pytest.mark.parametrize("seed", range(10))
def test_nodes_that_die_under_load_lose_and_double_nothing(seed: int) -> None:
    """Each role is killed and comes back, terms change, messages are lost: whatever was acknowledged stays."""
    cluster = made(storage=4)
    dice = Random(seed)
    away: list[str] = []

    def kill(round_: int) -> None:
        cluster.loses = lambda sender, to, _message: dice.random() < 0.05 and "controller-1" not in (sender, to)
        if away and dice.random() < 0.5:
            node = away.pop()
            cluster.start_engine(node) if node.startswith("engine") else cluster.start(node)
        elif not away and dice.random() < 0.6:
            away.append(dice.choice(["storage-1", "storage-3", "sequencer-1", "sequencer-2", "engine-2"]))
            cluster.lose(away[0])
        if dice.random() < 0.3:
            if dice.random() < 0.5:
                cluster.perform(NodeId("engine-1"), cluster.engine.checkpoint())
                cluster.run()
            cluster.change_term(primaries=tuple(dice.choice(cluster.views[0].sequencers) for _ in range(2)))

    def heal() -> None:
        for node in away:
            cluster.start_engine(node) if node.startswith("engine") else cluster.start(node)
        cluster.change_term()

    requests = swarm(cluster, dice, 30, kill, heal)
    check(cluster, requests, may_be_lost=True)


@pytest.mark.parametrize("seed", range(5))
def test_everything_at_once_loses_and_doubles_nothing(seed: int) -> None:
    """Disks wiped, engines fenced, indexes saved and begun from, nodes lost and told so, shards moved, terms ended."""
    cluster = made(storage=5, engines=3)
    dice = Random(seed)
    away: list[str] = []

    def come_back(node: str) -> None:
        is_wiped = dice.random() < 0.4
        if not node.startswith("engine"):
            cluster.start(node, is_wiped=is_wiped and node.startswith("storage"))
            return
        if is_wiped:
            cluster.disks.pop(NodeId(node))
        if dice.random() < 0.5:
            lost, until_us = cluster.incarnations[node], cluster.now_us + 30 * SECOND
            cluster.perform(NodeId("engine-1"), cluster.engine.fence(lost, until_us, f"fence-{lost}"))
            cluster.run()
        cluster.start_engine(node)

    def change(round_: int) -> None:
        cluster.loses = lambda sender, to, _message: dice.random() < 0.05 and "controller-1" not in (sender, to)
        if away and dice.random() < 0.5:
            come_back(away.pop())
            cluster.tick(40)  # a wiped disk is filled again before the next one goes
        elif not away and dice.random() < 0.6:
            nodes = [*cluster.views[0].storage, "engine-2", "engine-3", "sequencer-3"]
            away.append(dice.choice(nodes))
            cluster.lose(away[0])
        if dice.random() < 0.4:
            engine = dice.choice(cluster.engines)
            cluster.perform(NodeId(engine), cluster.core_of(engine).checkpoint())
            cluster.run()
        if dice.random() < 0.3:
            cluster.change_term(log_count=dice.choice([1, 2, 3]))

    def heal() -> None:
        cluster.loses = lambda *_: False
        for node in away:
            come_back(node)
        cluster.change_term()
        cluster.tick(100)
        cluster.until_ready()

    requests = swarm(cluster, dice, 30, change, heal)
    check(cluster, requests, may_be_lost=True)


def test_an_append_whose_deadline_passes_with_the_term_is_not_applied() -> None:
    """Its shard ended without it, so it never will be."""
    cluster = made(engines=1)
    cluster.holds_syncs |= {NodeId(f"storage-{n}") for n in (1, 2, 3)}
    request = cluster.append("late", timeout_s=2.2)
    cluster.tick(20)
    assert request not in cluster.answers
    cluster.seal()
    cluster.now_us += 2 * SECOND
    cluster.announce()
    answered = cluster.answers[request].answer
    assert isinstance(answered, BokiError)
    assert answered.outcome == "not_applied"
    cluster.holds_syncs.clear()
    cluster.tick(20)
    assert cluster.read() == []


def test_conditions_hold_across_terms_and_logs() -> None:
    """A tag's last record is known wherever its book lives now."""
    cluster = made(engines=2)
    last = dict.fromkeys(BOOKS, 0)
    for turn, logs in enumerate((3, 1, 2, 3)):
        for book in BOOKS:
            stale = cluster.wait(cluster.append("no", book=book, when=[Expect("tag", last[book] + 1)]))
            assert stale.rejected[0].actual_seqnum == last[book]
            kept = cluster.wait(cluster.append("yes", book=book, engine="engine-2", when=[Expect("tag", last[book])]))
            assert not kept.rejected
            last[book] = kept.first_seqnum
            assert cluster.wait(cluster.append("key", book=book, tags=(), key=f"k-{turn}")).rejected == ()
        cluster.change_term(log_count=logs)
        for book in BOOKS:
            used = cluster.wait(cluster.append("key", book=book, tags=(), key=f"k-{turn}", engine="engine-2"))
            assert used.rejected[0].seqnums
    assert len({split_seqnum(seqnum)[1] for seqnum in last.values()}) > 1
    for book in BOOKS:
        assert cluster.texts(book, "tag") == ["yes"] * 4


def test_a_waiting_read_wakes_in_the_next_term() -> None:
    """Its book moves to another log; it is answered by the first record there."""
    cluster = made(engines=1)
    waiting = {book: cluster.submit(Read(book, "tag", wait_us=20 * SECOND)) for book in BOOKS}
    cluster.change_term(log_count=3)
    cluster.tick(5)
    assert not set(waiting.values()) & cluster.answers.keys()
    for book, request in waiting.items():
        cluster.wait(cluster.append("here", book=book))
        assert [record.data for record in records_of(cluster.answer(request))] == [b"here"]


def test_a_read_that_waits_for_a_position_crosses_the_term() -> None:
    """The engine that hears nothing catches up over the end of the term, and then answers."""
    cluster = made()
    cluster.loses = lambda _sender, to, message: to == "engine-2" and isinstance(message, Metalog)
    request = cluster.append("a", book="book-0")
    read = cluster.submit(Read("book-0"), cluster.answers[request].positions, engine="engine-2")
    cluster.change_term(log_count=3)
    second = cluster.append("b", book="book-0")
    cluster.wait(second)
    later = cluster.submit(Read("book-0", limit=5), cluster.answers[second].positions, engine="engine-2")
    cluster.tick(3)
    assert not {read, later} & cluster.answers.keys()
    cluster.loses = lambda *_: False
    assert [record.data for record in records_of(cluster.wait(read))] == [b"a"]
    assert [record.data for record in records_of(cluster.wait(later))] == [b"a", b"b"]


def test_an_append_that_is_answered_while_its_term_ends_is_read_wherever_its_answer_leads() -> None:
    """In the next term its book is in another log, and its engine knows that already."""
    cluster = made()
    book = next(book for book in BOOKS if cluster.views[-1].log_of(book) == 1)
    other = next(book for book in BOOKS if cluster.views[-1].log_of(book) == 0)
    cluster.loses = lambda _sender, to, message: to.startswith("engine") and isinstance(message, Metalog)
    request = cluster.append("a", book=book)
    cluster.append("b", book=other)
    cluster.seal(log_count=1)
    cluster.loses = lambda _sender, to, message: (
        to == "engine-2" or (to == "engine-1" and isinstance(message, Metalog) and message.log == 0)
    )
    cluster.announce("sequencer-1", "sequencer-2", "sequencer-3", "engine-1")
    cluster.wait(request)
    assert cluster.engine.follower.term < cluster.views[-1].term
    found = cluster.submit(Read(book), cluster.answers[request].positions, engine="engine-2")
    cluster.tick(40)
    assert found not in cluster.answers
    cluster.loses = lambda *_: False
    cluster.announce()
    assert [record.data for record in records_of(cluster.wait(found))] == [b"a"]


def test_trims_and_syncs_cross_the_end_of_a_term() -> None:
    """What was asked of a sealed term is asked again of the next: a trim once, a tail of the new sequencers."""
    cluster = made(engines=1)
    seqnum = cluster.answer(cluster.append("a")).first_seqnum
    cluster.loses = lambda _sender, to, _message: to.startswith("sequencer") and to != "sequencer-3"
    trim = cluster.submit(TrimBook("book", seqnum + 1))
    sync = cluster.submit(Sync("book"))
    assert not {trim, sync} & cluster.answers.keys()
    cluster.loses = lambda *_: False
    cluster.change_term()
    cluster.wait(trim)
    cluster.wait(sync)
    cluster.wait(cluster.append("b"))
    assert cluster.texts() == ["b"]


def test_appends_go_on_soon_after_a_term_begins() -> None:
    """The new primary may learn of it later than the engine: nobody waits long for what was asked too early."""
    cluster = made(engines=1, logs=1)
    cluster.append("a")
    cluster.seal(primaries=(NodeId("sequencer-2"),))
    cluster.announce("engine-1", "storage-1", "storage-2", "storage-3", "sequencer-1", "sequencer-3")
    request = cluster.append("b")
    cluster.tick(2)
    assert request not in cluster.answers
    cluster.announce("sequencer-2")
    before_us = cluster.now_us
    cluster.wait(request)
    assert cluster.now_us - before_us <= 4 * 50_000


def test_the_end_of_a_term_whose_primary_is_dead_is_applied_soon() -> None:
    """Its last entries are fetched from those that live."""
    cluster = made(engines=1, logs=1)
    cluster.loses = lambda _sender, to, message: to == "engine-1" and isinstance(message, Metalog)
    request = cluster.append("a")
    assert request not in cluster.answers
    cluster.lose("sequencer-1")
    cluster.seal(primaries=(NodeId("sequencer-2"),))
    cluster.loses = lambda *_: False
    cluster.announce()
    before_us = cluster.now_us
    cluster.wait(request)
    assert cluster.now_us - before_us <= 4 * 50_000
    assert cluster.texts() == ["a"]
