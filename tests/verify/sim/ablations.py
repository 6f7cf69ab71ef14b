"""Safeguards, each switched off by a patch that only tests apply: the checkers must notice what follows.

Run as a program it tells how many seeds of the ordinary swarm each needs: `python -m tests.verify.sim.ablations
[NAME…]`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import msgspec

from boki.controller import repair, term_change
from boki.controller.plans import Plan
from boki.controller.repair import Repair
from boki.engine.checkpoint.mirror import Mirror
from boki.engine.core import EngineCore
from boki.engine.index import index
from boki.engine.index.book import BookState
from boki.engine.server.remote_requests import EngineService
from boki.engine.stamps import Stamps
from boki.engine.tails import Tails
from boki.gateway.server import cluster
from boki.gateway.server.cluster import ClusterBackend
from boki.libs.bokiqueue import appending, sessions
from boki.libs.bokiqueue.groups import LEASED, Group
from boki.libs.bokiqueue.records import Credit, Take
from boki.libs.bokiqueue.sessions import StandingTakes
from boki.libs.bokiqueue.state import ShardState
from boki.log.batch import Batch
from boki.log.ids import ShardId, shard_incarnation
from boki.log.metalog import CloseShard, Trim
from boki.log.quorum import majority
from boki.log.record import Expect
from boki.protocol import asking
from boki.protocol.call_messages import LogRequest
from boki.protocol.effects import Effect, Send, Store
from boki.protocol.follower import MetalogFollower
from boki.protocol.messages import CheckpointStored, Completed, EntriesStored, ShardProgress
from boki.sequencer import metalog_store
from boki.sequencer.core import SequencerCore
from boki.sequencer.metalog_store import Phase
from boki.sequencer.primary import Primary
from boki.verify.sim.disks import SimulatedDisk, Then
from boki.verify.sim.options import Options, draw_objects, draw_options
from boki.verify.sim.simulation import simulate
from tests.verify.sim import ahead_ablations, index_ablations, log_ablations, store_ablations
from tests.verify.sim import call_ablations as calls
from tests.verify.sim import flow_ablations as flows
from tests.verify.sim.without import without

LIMIT = 400
CAUGHT_BY = {**flows.CAUGHT_BY, **calls.CAUGHT_BY}
"""The promise whose checker must notice that this safeguard is off; of those that are missing any may."""


def no_fsync_before_the_report() -> Any:
    """Reports and acknowledgements leave before the sync."""
    return _hasty(ShardProgress, EntriesStored)


def no_durable_seal() -> Any:
    """A seal is in memory only: it is forgotten by a restart."""
    seal = SequencerCore._seal

    def forgetful(self: SequencerCore, sender: Any, term: int) -> Iterable[Effect]:
        for effect in seal(self, sender, term):
            yield from effect.then if isinstance(effect, Store) else (effect,)

    return without(SequencerCore, "_seal", forgetful)


def no_term_check() -> Any:
    """A backup that was sealed takes entries of its primary all the same."""
    return patch.dict(metalog_store.NEXT, {(Phase.SEALED, "append"): Phase.SEALED})


def no_incarnation_check() -> Any:
    """What a wiped disk once said still counts."""

    def trusting(self: Primary, storage: Any, shard_id: int, incarnation: int, stored_until: int) -> None:
        shard = self._shards.get(shard_id)
        if shard is not None and storage in shard.replicas:
            _, stored = shard.stored.get(storage, (0, 0))
            shard.stored[storage] = (incarnation, max(stored, stored_until))
            self.moved = True

    return without(Primary, "report", trusting)


def no_write_quorum() -> Any:
    """One replica is enough for a cut."""

    def of_one(self: Primary, number: ShardId) -> int:
        shard = self._shards.get(number)
        return max((stored for _, stored in shard.stored.values()), default=0) if shard else 0

    return without(Primary, "_reported", of_one)


def no_position_wait() -> Any:
    """A read is answered from whatever the index has."""
    return without(Stamps, "is_caught_up", lambda self, read: True)


def no_completion_on_a_majority() -> Any:
    """The next term begins when one sequencer has the whole metalog."""
    try_install = term_change.TermChange._try_install

    def hasty(self: term_change.TermChange) -> Iterable[Effect]:
        with patch.object(term_change, "majority", lambda count: 1):
            return list(try_install(self))

    return without(term_change.TermChange, "_try_install", hasty)


def no_majority_of_seals() -> Any:
    """The next term begins when one sequencer is sealed."""

    def one(count: int) -> int:
        return min(1, majority(count))

    return without(term_change, "majority", one)


def no_silence_after_a_restart() -> Any:
    """A primary that has restarted appends on."""
    install = SequencerCore._install

    class Blank:
        """A disk on which nobody has led."""

        def __init__(self, disk: Any) -> None:
            self.disk = disk

        def get(self, key: bytes) -> bytes | None:
            return None if key[:1] == b"l" else self.disk.get(key)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.disk, name)

    def eager(self: SequencerCore, *given: Any) -> Iterable[Effect]:
        disk, self._disk = self._disk, Blank(self._disk)
        try:
            return list(install(self, *given))
        finally:
            self._disk = disk

    return without(SequencerCore, "_install", eager)


def no_durable_trim_floors() -> Any:
    """Saved indexes have no floors."""
    encode = BookState.encode

    def floorless(self: BookState) -> bytes:
        return encode(self._replace(floor=0, deleted_below=0))

    return without(BookState, "encode", floorless)


def no_key_deduplication() -> Any:
    """A key is a tag like any other."""
    judge = index.Index._judge

    def blind(self: Any, book: Any, span: Any, first: int, time_us: int) -> Any:
        return judge(self, book, span._replace(key_tag=None), first, time_us)

    return without(index.Index, "_judge", blind)


def no_key_before_conditions() -> Any:
    """What stands under a key is refused when its conditions hold no more."""
    judge = index.Index._judge

    def late(self: Any, book: Any, span: Any, first: int, time_us: int) -> Any:
        return judge(self, book, span._replace(key_tag=None), first, time_us) or judge(self, book, span, first, time_us)

    return without(index.Index, "_judge", late)


def no_conditions() -> Any:
    """Every condition holds."""
    judge = index.Index._judge

    def blind(self: Any, book: Any, span: Any, first: int, time_us: int) -> Any:
        return judge(self, book, span._replace(when=()), first, time_us)

    return without(index.Index, "_judge", blind)


def no_end_of_silent_consumers() -> Any:
    """Standing takes of a process that is gone last forever, and with them what it was given."""
    return without(sessions, "SILENT_POP_US", 1 << 60)


def no_running_total_of_credit() -> Any:
    """Credit that was granted comes on top of what was granted before."""
    heard = StandingTakes.heard

    def adding(self: StandingTakes, taker: bytes, kept_from: int, granted: Iterable[Credit], *rest: int) -> None:
        more = []
        for credit in granted:
            known = self.find(credit.group, taker, credit.lease_us)
            total = credit.granted + (known.granted if known is not None else 0)
            more.append(msgspec.structs.replace(credit, granted=total))
        heard(self, taker, kept_from, more, *rest)

    return without(StandingTakes, "heard", adding)


def no_order_of_terms() -> Any:
    """A term is over for an engine when one of its logs is."""

    def next_term(self: MetalogFollower) -> Any:
        if not self._logs or not any(self.is_at_end(log) for log in self._logs):
            return None
        self._applied = {}
        self._begin(self.term + 1)
        return self.view

    return without(MetalogFollower, "next_term", next_term)


def no_fresh_tails() -> Any:
    """Whatever the sequencers say of the tail, a fresh read waits for nothing."""
    tell = Tails.tell

    def deaf(self: Tails, view: Any, sender: Any, message: Any) -> Any:
        return tell(self, view, sender, msgspec.structs.replace(message, stored_until=0))

    return without(Tails, "tell", deaf)


def no_end_of_the_fenced() -> Any:
    """An engine that finds itself fenced takes that for the end of its shards."""
    note = EngineCore._note

    def deaf(self: EngineCore, log: Any, entry: Any, now_us: int) -> list[Effect]:
        is_mine = isinstance(entry, CloseShard) and entry.is_lost and shard_incarnation(entry.shard) == self.incarnation
        if not is_mine:
            return note(self, log, entry, now_us)
        shards = [each.shard for each in self.appends._writers[log].shards()]
        closed = [effect for shard in shards for effect in note(self, log, CloseShard(shard), now_us)]
        return [*closed, *self.requests.note(log, entry, self.follower.view)]

    return without(EngineCore, "_note", deaf)


def no_memory_of_trims() -> Any:
    """A trim that is asked for again is carried out again."""
    is_news = Primary._is_news
    return without(Primary, "_is_news", lambda self, entry: isinstance(entry, Trim) or is_news(self, entry))


def no_copies_before_the_move() -> Any:
    """A node that a shard was moved to has all of it at once."""
    return without(repair, "_missing", lambda *_: 0)


def no_waiting_for_drains() -> Any:
    """A drain is complete when nothing is being moved."""
    status = Repair.status

    def hasty(self: Repair, *seen: Any) -> dict[str, Any]:
        told = status(self, *seen)
        for node in told["draining"].values():
            node["is_complete"] = not told["shards_moving"]
        return told

    return without(Repair, "status", hasty)


def no_quorum_of_checkpoints() -> Any:
    """Metalog entries go when one storage node has the checkpoint that covers them."""
    finish = Mirror._finish

    def hasty(self: Mirror, view: Any) -> list[Effect]:
        if self._build is None or not any(keeper.is_complete for keeper in self._keepers.values()):
            return []
        for keeper in self._keepers.values():
            keeper.is_complete = True
        return finish(self, msgspec.structs.replace(view, write_quorum=1))

    return without(Mirror, "_finish", hasty)


def no_fsync_before_a_checkpoint_counts() -> Any:
    """Storage nodes confirm checkpoints of the index before the sync."""
    return _hasty(CheckpointStored)


def no_fsync_before_a_completion_counts() -> Any:
    """Sequencers confirm that a term is complete before the sync."""
    return _hasty(Completed)


def _hasty(*early_types: type) -> Any:
    """Messages of these types leave before the sync."""
    store = SimulatedDisk.store

    def hasty(self: SimulatedDisk, what: Store, then: Then) -> None:
        early = [each for each in what.then if isinstance(each, Send) and isinstance(each.message, early_types)]
        if early:
            then(early)
        store(self, Store(what.writes, then=[each for each in what.then if each not in early]), then)

    return without(SimulatedDisk, "store", hasty)


def no_checksums() -> Any:
    """Whatever the disk gives is given out."""
    return without(Batch, "verify", lambda self: None)


def no_fence_under_a_commit() -> Any:
    """Effects are appended with an ack on no other condition than that the process believes in its lease."""

    def anything(tag: str, last_seqnum: int) -> Expect:
        return Expect("!never used", 0)

    return without(appending, "Expect", anything)


def no_memory_of_ops() -> Any:
    """A pop that is repeated under its op is another pop."""
    take = ShardState._take

    def forgetful(self: ShardState, seqnum: int, time_us: int, what: Take) -> Any:
        return take(self, seqnum, time_us, msgspec.structs.replace(what, op=""))

    return without(ShardState, "_take", forgetful)


def no_token_of_leases() -> Any:
    """Whoever was given a message once can settle it, also when its lease is another's by now."""

    def trusting(self: Group, pos: int, token: int) -> Any:
        aside = self.aside.get(pos)
        return aside if aside is not None and aside.status == LEASED else None

    return without(Group, "leased", trusting)


def no_order_of_keys() -> Any:
    """A group key holds nothing back."""
    return without(Group, "keeps_back", lambda self, spot: False)


def no_limit_to_repeating() -> Any:
    """A gateway or a relay asks a second engine for anything, when the first one is lost."""
    return without(asking, "is_repeatable", lambda operation: True)


def no_time_of_the_term_before() -> Any:
    """A term begins at whatever time its primary's clock shows."""
    next_view = Plan.next_view
    return without(Plan, "next_view", lambda self, last, ends, _start_time_us: next_view(self, last, ends, 0))


def no_numbers_of_an_incarnation() -> Any:
    """A gateway that has restarted numbers its requests from the beginning."""
    init = ClusterBackend.__init__

    def forgetful(self: ClusterBackend, *arguments: Any, incarnation: int, **rest: Any) -> None:
        init(self, *arguments, incarnation=0 * incarnation, **rest)

    return without(ClusterBackend, "__init__", forgetful)


def no_memory_of_requests() -> Any:
    """An engine takes a request in as often as it comes."""
    deliver = EngineService.deliver

    def forgetful(self: EngineService, sender: Any, message: Any) -> None:
        if isinstance(message, LogRequest):
            for remembered in (self._under_way, self._ended_set):
                remembered.discard((sender, message.request))
        deliver(self, sender, message)

    return without(EngineService, "deliver", forgetful)


def no_positions_for_clients() -> Any:
    """A gateway does not hand out what was seen."""
    return without(cluster, "merge_positions", lambda positions, seen: None)


ABLATIONS: dict[str, Callable[[], Any]] = {
    **flows.ABLATIONS,
    "fsync before the report": no_fsync_before_the_report,
    "durable seal": no_durable_seal,
    "term check": no_term_check,
    "incarnation check": no_incarnation_check,
    "write quorum": no_write_quorum,
    "position wait on reads": no_position_wait,
    "completion on a majority": no_completion_on_a_majority,
    "a majority of seals": no_majority_of_seals,
    "restarted primary silent": no_silence_after_a_restart,
    "durable trim floors": no_durable_trim_floors,
    "key de-duplication": no_key_deduplication,
    "key before conditions": no_key_before_conditions,
    "conditions": no_conditions,
    **index_ablations.ABLATIONS,
    "end of silent consumers": no_end_of_silent_consumers,
    "terms applied in order": no_order_of_terms,
    "fresh tails": no_fresh_tails,
    **calls.ABLATIONS,
    "end of the fenced": no_end_of_the_fenced,
    "trims carried out once": no_memory_of_trims,
    "copies before a move": no_copies_before_the_move,
    "waiting for drains": no_waiting_for_drains,
    "a quorum of checkpoints": no_quorum_of_checkpoints,
    "fsync before a checkpoint counts": no_fsync_before_a_checkpoint_counts,
    "fsync before a completion counts": no_fsync_before_a_completion_counts,
    "checksums": no_checksums,
    "fence under a commit": no_fence_under_a_commit,
    "running total of credit": no_running_total_of_credit,
    "memory of ops": no_memory_of_ops,
    "tokens of leases": no_token_of_leases,
    "order of keys": no_order_of_keys,
    "what may be repeated": no_limit_to_repeating,
    "time of the term before": no_time_of_the_term_before,
    "numbers of an incarnation": no_numbers_of_an_incarnation,
    "memory of requests": no_memory_of_requests,
    "positions for clients": no_positions_for_clients,
    **store_ablations.ABLATIONS,
    **log_ablations.ABLATIONS,
    **ahead_ablations.ABLATIONS,
}


# A delivery to a session that is gone takes longer silences than the swarm draws: `test_hand_outs` scripts it, and the
# watch over hand-outs accuses the fold with either safeguard off.

NEED_LAYOUT = {*log_ablations.ABLATIONS, "first use of a call's key"}  # others were found without
NEEDS: dict[str, Callable[[Options], bool]] = {
    "checksums": lambda options: "rot" in options.faults,
    "key before conditions": lambda options: options.wide > 0,
    **dict.fromkeys(index_ablations.ABLATIONS, index_ablations.counts),
    "fence before a takeover": lambda options: "mistake" in options.scenarios,
    "first use of a call's key": lambda options: options.calls > 0 and options.call_compute > 0 and options.tries,
    "conditions on the ends of calls": lambda options: options.calls > 0 and options.call_trouble > 0,
    "conditions on the runs of calls": lambda options: options.calls > 0 < options.call_trouble,
    "numbers of runs": lambda options: options.calls > 0 < options.call_trouble,
    "wake-ups that came first": lambda options: options.flows > 0 or options.calls > 0 < options.call_sleep,
    "one wake-up for a sleep": lambda options: options.calls > 0 < options.call_sleep,
    "inheritance of suspended calls": lambda options: options.calls > 0 < options.call_sleep,
    "end of the fenced": lambda options: "mistake" in options.scenarios,
    "trims carried out once": lambda options: "echo" in options.scenarios,
    "copies before a move": lambda options: options.has_decommission,
    "waiting for drains": lambda options: options.has_decommission,
    "a quorum of checkpoints": lambda options: "lost_index" in options.scenarios,
    "fsync before a checkpoint counts": lambda options: "lost_index" in options.scenarios,
    "fsync before a completion counts": lambda options: "handover" in options.faults,
    "count of the journal": lambda options: options.flows > 0,
    "order of a workflow's messages": lambda options: options.flows > 0,
    "wake-ups of workflows": lambda options: options.flows > 0,
    "scope of step keys": lambda options: options.flows > 0,
    **dict.fromkeys(flows.NEED_FLOWS, lambda options: options.flows > 0),
    "end of silent consumers": lambda options: options.queues > 0 and options.queue_crashes > 0,
    **dict.fromkeys(store_ablations.ABLATIONS, store_ablations.has_objects),
    **dict.fromkeys(log_ablations.ABLATIONS, log_ablations.shares_log),
    **dict.fromkeys(ahead_ablations.ABLATIONS, lambda options: bool(options.faults)),
    "running total of credit": lambda options: options.queues > 0,
    "fence under a commit": lambda options: options.queues > 0,
    "tokens of leases": lambda options: options.queues > 0,
}
"""What a seed must have drawn to show that a safeguard is off: others are passed over, which takes less time."""


def seeds_needed(name: str, seeds: Iterable[int] = range(LIMIT)) -> tuple[int, int, str] | None:
    """(how many seeds it took, the last of them, what its checker said); None if that noticed nothing."""
    with ABLATIONS[name]():
        for count, seed in enumerate(seeds, 1):
            options = draw_options(seed, with_layout=name in NEED_LAYOUT)
            if name in store_ablations.NEED_LONG_LOADS:
                options = draw_objects(seed)
            if name in calls.NEED_SLEEPERS:
                options = calls.draw_sleepers(seed)
            if name in NEEDS and not NEEDS[name](options):
                continue
            if name in ahead_ablations.ABLATIONS:
                options = ahead_ablations.speculates(options)
            # a core's own assertion ends a run and counts for nothing: the checkers outside must notice
            for each in simulate(options).violations:
                if each.promise == CAUGHT_BY.get(name, each.promise) != "no core raises":
                    return count, seed, str(each)
    return None


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ABLATIONS:
        print(f"{wanted}: {seeds_needed(wanted)}", flush=True)
