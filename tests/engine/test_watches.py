"""Watches of an engine: each row that is waited for costs an entry, and is answered once, by a record that counts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from boki.log.ids import NodeId
from boki.log.operations import TrimBook
from boki.log.record import Expect
from tests.engine.cluster import ENGINE, Cluster


@dataclass(eq=False)
class Token:
    """Whoever waits; it is compared by identity."""

    name: str

    def __hash__(self) -> int:
        return hash(self.name)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(logs=2)
    made.until_ready()
    return made


def watch(cluster: Cluster, tag: str = "tag", min_seqnum: int = 1, book: str = "book") -> Token:
    """Watch a row from outside."""
    token = Token(f"{book}/{tag}/{min_seqnum}")
    cluster.perform(NodeId(ENGINE), cluster.engine.watch(book, tag, min_seqnum, token))
    return token


def test_a_record_that_was_there_answers_at_once(cluster: Cluster) -> None:
    """Unless it stands below what is waited for, or was trimmed: then there is nothing to look at."""
    seqnum = cluster.answer(cluster.append("a")).first_seqnum
    assert watch(cluster, min_seqnum=seqnum) in cluster.answers
    later = watch(cluster, min_seqnum=seqnum + 1)
    assert later not in cluster.answers
    cluster.do(TrimBook("book", seqnum + 1))
    assert watch(cluster, min_seqnum=seqnum) not in cluster.answers
    cluster.append("b")
    assert later in cluster.answers


def test_only_the_rows_that_got_a_record_are_answered_and_each_once(cluster: Cluster) -> None:
    """Not other tags, nor other books; several may wait for one row; nothing is left of those that were answered."""
    first, second = watch(cluster), watch(cluster, min_seqnum=2)
    others = [watch(cluster, "other"), watch(cluster, book="other")]
    cluster.append("a", "b", tags=("tag", "more"))
    assert {first, second} <= cluster.answers.keys()
    assert not cluster.answers.keys() & set(others)
    assert cluster.engine.watches.count == 2
    cluster.append("c", book="other")
    cluster.append("d", tags=("other",))
    assert set(others) <= cluster.answers.keys()
    assert cluster.engine.watches.count == 0
    assert not any(cluster.engine.index.watched)


def test_a_record_that_is_refused_wakes_nobody(cluster: Cluster) -> None:
    """It does not exist: its condition did not hold."""
    token = watch(cluster)
    cluster.append("a", when=[Expect("tag", 7)])
    assert token not in cluster.answers
    assert cluster.engine.watches.count == 1


def test_a_watch_that_is_removed_is_not_answered(cluster: Cluster) -> None:
    """Repeatable; others of the same row stay."""
    first, second = watch(cluster), watch(cluster, min_seqnum=2)
    for _ in range(2):
        cluster.engine.watches.remove("book", "tag", first)
        cluster.engine.watches.remove("never", "tag", first)
    cluster.append("a")
    assert first not in cluster.answers
    assert second in cluster.answers


def test_watches_outlive_a_change_of_terms(cluster: Cluster) -> None:
    """Whichever log their book lives in then."""
    tokens = [watch(cluster, book=f"book-{number}") for number in range(8)]
    cluster.change_term(log_count=3)
    for number in range(8):
        cluster.wait(cluster.append("a", book=f"book-{number}"))
    assert set(tokens) <= cluster.answers.keys()


def test_of_a_watch_for_any_record_only_the_token_is_kept(cluster: Cluster) -> None:
    """A hundred thousand workflows sleep: of each it is one entry of a table. With others it answers the same."""
    tokens = [watch(cluster, f"inbox:{number}", min_seqnum=number % 2) for number in range(3)]
    assert list(cluster.engine.watches._rows["book"].values()) == tokens
    other = watch(cluster, "inbox:0", min_seqnum=2)
    assert cluster.engine.watches.count == 4
    cluster.engine.watches.remove("book", "inbox:1", tokens[1])
    cluster.append("a", tags=("inbox:0", "inbox:1"))
    assert {tokens[0], other} <= cluster.answers.keys()
    cluster.append("b", tags=("inbox:2",))
    assert tokens[2] in cluster.answers
    assert tokens[1] not in cluster.answers
    assert not any(cluster.engine.index.watched)
