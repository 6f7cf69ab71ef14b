"""Closing and fencing: nothing of a shard is ordered after its close, and nothing at all of a fenced incarnation."""

from __future__ import annotations

from itertools import permutations

import pytest

from boki.log.ids import make_shard, shard_incarnation
from boki.log.metalog import CloseShard, Cut, MetalogEntry, OpenShard
from boki.protocol.messages import InstallView, RequestEntry, ShardProgress
from boki.sequencer.primary import Primary
from tests.members import ENGINE, SHARD, view
from tests.sequencer.test_core import BACKUP, PRIMARY, REPLICAS, THIRD, cluster, published, report
from tests.world import World

NEXT_SHARD = make_shard(shard_incarnation(SHARD), 1)
OTHERS_SHARD = make_shard(shard_incarnation(SHARD) + 1, 0)


def request(world: World, *entries: MetalogEntry) -> None:
    for entry in entries:
        world.tell(PRIMARY, RequestEntry(1, 0, entry), "engine-1")
    world.run()


def open_(shard: int) -> OpenShard:
    return OpenShard(shard, ENGINE, REPLICAS)


def store(world: World, shard: int, until: int) -> None:
    for storage in (1, 2):
        world.tell(PRIMARY, ShardProgress(1, 0, shard, 1, until, True), f"storage-{storage}")
    world.run()


def ordered_after(entries: list[object], closed: object) -> set[int]:
    """The shards that are ordered or opened behind that entry."""
    rest = entries[entries.index(closed) + 1 :]
    moved = {shard for entry in rest if isinstance(entry, Cut) for shard, _ in entry.until}
    return moved | {entry.shard for entry in rest if isinstance(entry, OpenShard)}


def test_a_close_is_final() -> None:
    """Reports and an open that come late order nothing more; a second close is dropped."""
    world = cluster()
    report(world, 1, 2)
    report(world, 2, 2)
    close = CloseShard(SHARD)
    request(world, close)
    report(world, 1, 5)
    report(world, 2, 5)
    request(world, open_(SHARD), close)
    report(world, 3, 5)
    assert published(world) == [open_(SHARD), Cut(world.now_us, ((SHARD, 2),)), close]


def test_a_close_in_the_same_proposal_as_a_cut_stands_first_and_the_cut_spares_the_shard() -> None:
    """What was stored and not ordered when the close came is given up, not ordered behind it."""
    world = cluster()
    world.holds_syncs |= {BACKUP, THIRD}
    report(world, 1, 1)
    report(world, 2, 1)  # in flight: the next proposal gathers
    store(world, SHARD, 4)
    close = CloseShard(SHARD)
    request(world, close, open_(OTHERS_SHARD))
    world.holds_syncs.clear()
    world.sync(BACKUP)
    world.run()
    store(world, OTHERS_SHARD, 3)
    entries = published(world)
    assert entries[2:] == [close, open_(OTHERS_SHARD), Cut(world.now_us, ((OTHERS_SHARD, 3),))]


def test_a_fence_ends_all_shards_of_an_incarnation_also_those_it_would_open() -> None:
    """The zombie's reports and requests have no effect; another engine does not notice."""
    world = cluster()
    request(world, open_(NEXT_SHARD), open_(OTHERS_SHARD))
    fence = CloseShard(SHARD, is_lost=True)
    request(world, fence)
    for shard in (SHARD, NEXT_SHARD, OTHERS_SHARD):
        store(world, shard, 7)
    request(world, open_(make_shard(shard_incarnation(SHARD), 2)), open_(SHARD))
    assert ordered_after(published(world), fence) == {OTHERS_SHARD}


def test_an_incarnation_without_a_shard_is_fenced_once() -> None:
    """The fence must stand in the log before anybody takes over; asking again, by any shard, adds nothing."""
    world = cluster()
    fence = CloseShard(OTHERS_SHARD, is_lost=True)
    request(world, fence, fence)
    request(world, fence, CloseShard(OTHERS_SHARD + 3, is_lost=True))
    request(world, open_(OTHERS_SHARD))
    assert published(world)[1:] == [fence]


def test_a_close_of_a_fenced_shard_adds_nothing_and_a_fence_after_a_close_does() -> None:
    """A fence says more than a close."""
    world = cluster()
    request(world, CloseShard(SHARD))
    request(world, CloseShard(SHARD, is_lost=True))
    request(world, CloseShard(SHARD))
    assert published(world)[1:] == [CloseShard(SHARD), CloseShard(SHARD, is_lost=True)]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_fences_opens_and_cuts_of_one_proposal_in_every_order(order: tuple[int, ...]) -> None:
    """Whatever gathers in whatever order: behind the fence nothing of that incarnation is opened or ordered."""
    primary = Primary(view(), lambda _shard, lid: lid)
    primary.request(open_(SHARD))
    primary.take_proposal(1)
    fence = CloseShard(NEXT_SHARD, is_lost=True)
    for number in order:
        match number:
            case 0:
                primary.request(fence)
            case 1:
                primary.request(open_(NEXT_SHARD))
            case 2:
                for storage in REPLICAS:
                    primary.report(storage, SHARD, 1, 5)
            case 3:
                primary.request(CloseShard(SHARD, is_lost=True))
    entries = list(primary.take_proposal(2))
    for storage in REPLICAS:
        primary.report(storage, NEXT_SHARD, 1, 5)
    entries += primary.take_proposal(3)
    fences = [entry for entry in entries if isinstance(entry, CloseShard)]
    assert len(fences) == 1
    assert ordered_after(list(entries), fences[0]) == set()


def test_a_fence_ends_with_the_term() -> None:
    """A new term's primary knows nothing of it; an engine that lives has found its fence on the way there."""
    world = cluster()
    request(world, CloseShard(SHARD, is_lost=True))
    for node in (PRIMARY, BACKUP, THIRD):
        world.tell(node, InstallView((view(2, previous_ends=(2,)),)))
    world.run()
    world.tell(PRIMARY, RequestEntry(2, 0, open_(OTHERS_SHARD)), "engine-1")
    world.run()
    core = world.cores[PRIMARY]
    assert core._stores[2, 0].length == 1  # type: ignore[attr-defined]


def test_a_log_never_orders_beyond_its_last_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cut stops at the last position, and the log has asked for a new term long before."""
    monkeypatch.setattr("boki.sequencer.primary.MAX_POSITION", 10)
    monkeypatch.setattr("boki.sequencer.primary.NEARLY_FULL", 8)
    world = cluster()
    store(world, SHARD, 8)
    assert world.cores[PRIMARY]._primaries[0].is_nearly_full  # type: ignore[attr-defined]
    store(world, SHARD, 20)
    assert [entry.until for entry in published(world) if isinstance(entry, Cut)] == [((SHARD, 8),), ((SHARD, 10),)]
