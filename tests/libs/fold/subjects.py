"""The folds that stand, as subjects of `boki.testing.folds`, with histories that are drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

import msgspec

from boki.books.calls import ledger
from boki.books.calls.ledger import Accepted, Finished, Ledger, Retrying, Started, Suspended, TakenOver
from boki.books.calls.runs import Runs
from boki.books.calls.waiting import Owner
from boki.books.functions import versions
from boki.books.functions.versions import Deployed, Used, Versions
from boki.books.retention_rules import Rule, Rules
from boki.errors import CallLost, FunctionFailed
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.records import Continued, Done, Entry, Fired, Marked, Result, encode_entry
from boki.libs.bokiqueue.records import belongs, sound
from boki.libs.bokiqueue.state import ShardState, Snapshot
from boki.libs.bokistore.records import Checkpoint
from boki.libs.bokistore.records import codec as store_codec
from boki.libs.bokistore.views import View, checkpoint_of, step, view_of
from boki.log.operations import Failure
from boki.log.record import Record
from boki.protocol.calls import Call, Outcome, Payload, Suspension
from boki.spark import ledger as sinks
from boki.testing.folds import Subject, whole_state

HERE: Final = "tests.libs.fold.subjects"
SECOND_US: Final = 1_000_000


def numbered(datas: Iterator[bytes] | list[bytes]) -> list[Record]:
    """Records of these data, with room between their seqnums, a second apart."""
    return [
        Record(10 * number, ("t",), data, None, (1_000 + number) * SECOND_US) for number, data in enumerate(datas, 1)
    ]


# Deployed versions


def _apply_version(state: Versions, record: Record) -> None:
    state.apply(record.seqnum, record.time, versions.CODEC.decode(record.data))


VERSIONS: Final = Subject(f"{HERE}:VERSIONS", Versions, _apply_version)


def version_records(seed: int, count: int = 60) -> list[Record]:
    """Deployments, and going back and forth between them."""
    rng = Random(seed)
    kept: list[int] = []

    def draw() -> Iterator[bytes]:
        for _ in range(count):
            if not kept or rng.random() < 0.6:
                kept.append(len(kept) + 1)
                yield versions.CODEC.encode(Deployed(kept[-1], f"hash-{kept[-1]}", 10, f"bundle:{kept[-1]}", 7, ("f",)))
            else:
                yield versions.CODEC.encode(Used(rng.choice(kept)))

    return numbered(draw())


# Retention rules


def _apply_rule(state: Rules, record: Record) -> None:
    state.apply(record.seqnum, record.time, msgspec.json.decode(record.data, type=Rule))


RETENTION: Final = Subject(f"{HERE}:RETENTION", Rules, _apply_rule)


def rule_records(seed: int, count: int = 60) -> list[Record]:
    """Rules that are set, changed and lifted."""
    rng = Random(seed)
    rules = [
        Rule(f"book-{rng.randrange(8)}", rng.choice([None, 5.0, 60.0]), rng.choice([None, 1000])) for _ in range(count)
    ]
    return numbered([msgspec.json.encode(rule) for rule in rules])


# Logged calls


def _apply_call(state: Ledger, record: Record) -> None:
    state.apply(record.seqnum, record.time, ledger.CODEC.decode(record.data))


def _ledger_view(state: Ledger) -> Any:
    return whole_state((state.fold_from, list(state.waiting.values()), sorted(state.owners())))


def _ledger_snapshot(state: Ledger) -> bytes:
    return ledger.CODEC.encode(ledger.Checkpoint(state.fold_from, tuple(state.waiting.values())))


def _ledger_restored(data: bytes) -> tuple[Ledger, int]:
    checkpoint = ledger.CODEC.decode(data)
    assert isinstance(checkpoint, ledger.Checkpoint)
    return Ledger(checkpoint), checkpoint.fold_from


CALLS: Final = Subject(f"{HERE}:CALLS", Ledger, _apply_call, _ledger_view, _ledger_snapshot, _ledger_restored)


def call_records(seed: int, count: int = 120) -> list[Record]:
    """Lives of calls that overlap, of three engines, one of which is lost."""
    rng = Random(seed)
    owners = [Owner("a", 1), Owner("b", 2), Owner("c", 3)]
    lives: dict[str, tuple[int, int, Owner]] = {}
    """By call: where its acceptance stands, how often it was started, and its owner."""

    def entry(seqnum: int) -> Any:
        kind = rng.choice(["accept", "start", "start", "retry", "suspend", "finish", "take over", "checkpoint"])
        if kind == "take over" and rng.random() < 0.2:
            return TakenOver(*rng.sample(owners, 2))
        if kind == "accept" or not lives:
            call = Call(f"{len(lives):032x}", "f", Payload("json", b"1"), "b", 5)
            lives[call.id] = (seqnum, 0, rng.choice(owners))
            return Accepted(call, b"h", rng.choice([0, 7]), owner=lives[call.id][2])
        name = rng.choice(list(lives))
        accepted, starts, owner = lives[name]
        runs = Runs(starts + 1, 5, 6, {"call_lost": 1}, Failure.of(CallLost("gone")))
        match kind:
            case "start":
                lives[name] = (accepted, starts + 1, owner)
                return Started(name, accepted, 7, owner, starts + 1, runs)
            case "retry":
                return Retrying(name, accepted, seqnum + 50, owner, starts, runs)
            case "suspend":
                return Suspended(name, accepted, owner, runs, Suspension(seqnum + 70, note="it waits"))
            case "checkpoint":
                return ledger.Checkpoint(0, ())
        outcome = rng.choice([Outcome(Payload("json", b"2"), None), Outcome(None, Failure.of(FunctionFailed("no")))])
        return Finished(name, "f", "b", outcome, 1, 2, 3, starts, accepted, runs)

    return numbered([ledger.CODEC.encode(entry(10 * number)) for number in range(1, count + 1)])


# A shard of a queue


class Shard:
    """The fold of a shard, and how far a process has read its stream: it passes each record once."""

    def __init__(self, state: ShardState | None = None, next_start: int = 0) -> None:
        self.state = ShardState() if state is None else state
        self.next_start = next_start

    def apply(self, record: Record) -> None:
        """Fold the next record."""
        if record.seqnum < self.next_start:
            return
        self.next_start = record.next_seqnum
        kind = sound(record)
        if kind is not None and belongs(kind, record.tags, "q", 1):
            assert self.state.history_for(kind) is None, "this history begins no group in the past"
            self.state.apply(record.seqnum, record.time, kind)
        else:
            self.state.pass_by(record.seqnum)

    def view(self) -> Any:
        """What a checkpoint says."""
        return whole_state(self.state.snapshot())

    def snapshot(self) -> bytes:
        """A checkpoint."""
        return msgspec.msgpack.encode(self.state.snapshot())


def _shard_restored(data: bytes) -> tuple[Shard, int]:
    snapshot = msgspec.msgpack.decode(data, type=Snapshot)
    return Shard(ShardState.restored(0, snapshot), snapshot.resume), snapshot.resume


SHARD: Final = Subject(f"{HERE}:SHARD", Shard, Shard.apply, Shard.view, Shard.snapshot, _shard_restored)


def shard_effects(shard: Shard) -> Any:
    """What consumers have of the queue."""
    snapshot = shard.state.snapshot()
    return whole_state((snapshot.groups, snapshot.settings, snapshot.popped, shard.state.backlog.next_pos))


# An object of a store


class Object:
    """The fold of the row of object `x`."""

    def __init__(self, view: View | None = None) -> None:
        self.view = View() if view is None else view

    def apply(self, record: Record) -> None:
        """Fold the next record."""
        if record.seqnum > self.view.last:
            self.view = step(self.view, "x", record)[0]

    def state(self) -> Any:
        """The object, and since when it is so."""
        return whole_state((self.view.value, self.view.last, self.view.since, self.view.version))

    def snapshot(self) -> bytes:
        """A checkpoint."""
        return store_codec.encode(checkpoint_of("x", self.view))


def _object_restored(data: bytes) -> tuple[Object, int]:
    checkpoint = store_codec.decode(data)
    assert isinstance(checkpoint, Checkpoint)
    view = view_of(checkpoint)
    assert view is not None
    return Object(view), view.last + 1


OBJECT: Final = Subject(f"{HERE}:OBJECT", Object, Object.apply, Object.state, Object.snapshot, _object_restored)


# The journal of a workflow's run


def _apply_to_journal(history: History, record: Record) -> None:
    if record.seqnum >= history.next_start:
        history.fold(record.data, record.seqnum)


JOURNAL: Final = Subject(f"{HERE}:JOURNAL", History, _apply_to_journal)


def journal_records(seed: int, count: int = 60) -> list[Record]:
    """Two executions of one run that overlap, and strangers' records among theirs."""
    rng = Random(seed)
    nothing = Payload("json", b"1")

    def draw() -> Iterator[bytes]:
        bases = {1: 0, 2: 0}
        for place in range(count):
            writer = rng.choice([1, 1, 1, 2])
            if rng.random() < 0.2:
                bases[writer] = place  # it has read the journal, and begins again
            facts = [Done(place, "step", b"d", Result(nothing)), Fired(place), Marked("code", nothing)]
            if rng.random() < 0.05:
                facts = [Continued(nothing, place, 1)]
            entry = Entry(writer, bases[writer], 0, 1_000 * place, rng.choice(facts), 0)
            yield b"a stranger's" if rng.random() < 0.1 else encode_entry(entry)

    return numbered(draw())


# A write of a sink


def _sink_view(state: sinks.Ledger) -> Any:
    return whole_state(
        (state.complete, state.lanes, state.under_way, state.bases, state.owner, state.is_failed, state.fence)
    )


def _begin_sink() -> sinks.Ledger:
    return sinks.Ledger("w")


SINK: Final = Subject(f"{HERE}:SINK", _begin_sink, sinks.Ledger.add, _sink_view)


def sink_records(seed: int, count: int = 60) -> list[Record]:
    """Batches that begin, are given up, and are complete, in one part and in several."""
    rng = Random(seed)
    batch = 0

    def draw() -> Iterator[bytes]:
        nonlocal batch
        for _ in range(count):
            place: dict[str, Any] = {"partition": rng.randrange(3), "book": rng.choice("ab")}
            match rng.choice(["open", "begin", "begin", "fail", "complete"]):
                case "open":
                    yield msgspec.json.encode(sinks.Opened(batch=batch, owner=rng.choice("xyz")))
                case "begin":
                    yield msgspec.json.encode(sinks.Begun(batch=batch, base=rng.randrange(100), **place))
                case "fail":
                    yield msgspec.json.encode(sinks.Failed(batch=batch))
                case "complete":
                    lanes = [sinks.LaneNote(last_seqnum=5, runs=((1, 7),), **place) for _ in range(3)]
                    parts = rng.choice([1, 2, 3])
                    for part in range(parts):
                        note = sinks.Complete(
                            batch=batch, part=part, is_last=part + 1 == parts, lanes=tuple(lanes[part::parts])
                        )
                        yield msgspec.json.encode(note)
                    batch += 1

    return numbered(draw())
