"""What the next term should look like, and how it is chosen from what the operator wants and who is alive.

**Sequencers.** Those of the last view stay while they answer, and for a while when they do not: a dead one may stay
named, it counts in the size of the quorum. One that has been gone for long gives its place to a spare one that lives.

**Primaries.** A log keeps its primary if that one answers, leads, and has not more than its share of the logs, so that
one lost sequencer moves its own logs only. A log most of whose records come from one node has its primary there, if
that can be (`Sight.near`): an append at that node waits for two hops less. A term is ended for that alone only in a
calm, and seldom; one that ends for another reason costs nothing more. No primary is in the process of the controller
that leads, if others can be it: else one fault would take both, and appends would wait until that controller's session
has run out, for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from boki.log.ids import MAX_LOG, LogId, NodeId
from boki.log.membership import ClusterPlan
from boki.log.quorum import majority
from boki.log.view import View

NEAR: Final = "most records come from another node than the primary's"
"""Why a term is ended for speed alone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next term should look like. Everything else of its view follows from how the last one ended."""

    log_count: int
    sequencers: tuple[NodeId, ...]
    incarnations: dict[NodeId, int]
    storage: tuple[NodeId, ...]
    replicas: int
    write_quorum: int
    primaries: tuple[NodeId, ...] = ()
    """Per log; none: the logs are spread over the sequencers in their order."""
    beside: tuple[NodeId, ...] = ()
    """Per sequencer, the storage node of its process, if cuts are to run ahead."""

    def first_view(self) -> View:
        """The view of term 1."""
        return self._view(1, (), 0)

    def next_view(self, last: View, ends: tuple[int, ...], start_time_us: int) -> View:
        """The view after `last`, whose logs ended at `ends`."""
        return self._view(last.term + 1, ends, start_time_us)

    def _view(self, term: int, ends: tuple[int, ...], start_time_us: int) -> View:
        spread = tuple(self.sequencers[log % len(self.sequencers)] for log in range(self.log_count))
        return View(
            term=term,
            log_count=self.log_count,
            sequencers=self.sequencers,
            primaries=self.primaries or spread,
            incarnations=self.incarnations,
            storage=self.storage,
            replicas=self.replicas,
            write_quorum=self.write_quorum,
            previous_ends=ends,
            start_time_us=start_time_us,
            beside=self.beside,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a controller sees of the cluster when it makes a plan."""

    wanted: ClusterPlan
    sequencers: dict[NodeId, int]
    """Those that answer, with their incarnations."""
    unfit: frozenset[NodeId] = frozenset()
    """Those that answer and yet should not be primaries."""
    mates: frozenset[NodeId] = frozenset()
    """Roles in the process of the controller itself."""
    near: dict[LogId, NodeId] = field(default_factory=dict)
    """The sequencer of the node that most records of a log come from, of logs that have such a node."""
    lost: frozenset[NodeId] = frozenset()
    """Nodes that have not answered for so long that a spare one may take their place."""
    storage: tuple[NodeId, ...] = ()
    """Those that are registered."""
    beside: dict[NodeId, NodeId | None] = field(default_factory=dict)
    """Of each registered sequencer, the storage node of its process behind whose records it can keep cuts, if any."""

    def has_majority(self, sequencers: tuple[NodeId, ...], incarnations: dict[NodeId, int]) -> bool:
        """Whether most of the sequencers answer, in the incarnations named."""
        live = [node for node in sequencers if self.sequencers.get(node, -1) == incarnations[node]]
        return len(live) >= majority(len(sequencers))


def by_name(nodes: Iterable[NodeId]) -> list[NodeId]:
    """Nodes in the order of their names, "node-2" before "node-10"."""
    return sorted(nodes, key=lambda node: (len(node), node))


def refusal(wanted: ClusterPlan) -> str:
    """Why a plan can never be carried out; empty if it can."""
    count = len(wanted.sequencer_names) or wanted.sequencers
    problems = []
    if not 1 <= wanted.logs <= MAX_LOG:
        problems.append(f"there can be 1 to {MAX_LOG} logs, not {wanted.logs}")
    if count % 2 == 0 or count < 1 or len(set(wanted.sequencer_names)) != len(wanted.sequencer_names):
        problems.append(f"sequencers must be different ones, and an odd number, not {count}")
    if not 1 <= wanted.write_quorum <= wanted.replicas:
        problems.append(f"write_quorum {wanted.write_quorum} must be in 1..replicas ({wanted.replicas})")
    return "; ".join(problems)


def first_plan(sight: Sight) -> Plan | None:
    """The plan of the first view; None while too few nodes answer, or if what is wanted can never be."""
    wanted = sight.wanted
    names = wanted.sequencer_names or tuple(by_name(sight.sequencers)[: wanted.sequencers])
    is_short = not wanted.sequencer_names and len(names) < wanted.sequencers
    if refusal(wanted) or is_short or not sight.sequencers.keys() >= set(names):
        return None
    storage = tuple(by_name(node for node in sight.storage if node not in wanted.draining))
    if len(storage) < wanted.replicas:
        return None
    return Plan(
        log_count=wanted.logs,
        sequencers=names,
        incarnations={node: sight.sequencers[node] for node in names},
        storage=storage,
        replicas=wanted.replicas,
        write_quorum=wanted.write_quorum,
        primaries=_choose_primaries((), wanted.logs, names, sight),
        beside=_choose_beside({}, names, sight),
    )


def next_plan(last: View, sight: Sight) -> tuple[Plan, str]:
    """The plan of the view after `last`, and in words what of the operator's wishes must wait."""
    wanted = sight.wanted
    problems = [problem] if (problem := refusal(wanted)) else []
    sequencers = last.sequencers if problems else _choose_sequencers(last, sight, problems)
    storage = _choose_storage(last, sight)
    log_count, replicas, write_quorum = wanted.logs, wanted.replicas, wanted.write_quorum
    if refusal(wanted):
        log_count, replicas, write_quorum = last.log_count, last.replicas, last.write_quorum
    elif replicas > len(storage):
        problems.append(f"{replicas} replicas need as many storage nodes, and there are {len(storage)}")
        replicas, write_quorum = last.replicas, last.write_quorum
    plan = Plan(
        log_count=log_count,
        sequencers=sequencers,
        incarnations={node: sight.sequencers.get(node) or last.incarnations[node] for node in sequencers},
        storage=storage,
        replicas=replicas,
        write_quorum=write_quorum,
        primaries=_choose_primaries(last.primaries, log_count, sequencers, sight),
        beside=_choose_beside(dict(zip(last.sequencers, last.beside, strict=False)), sequencers, sight),
    )
    return plan, "; ".join(problems)


def differs(last: View, plan: Plan, mates: frozenset[NodeId] = frozenset()) -> str:
    """What a plan would change besides storage nodes, and primaries other than `mates`, in words; empty: nothing."""
    changes = []
    if mates.intersection(last.primaries) and mates.isdisjoint(plan.primaries):
        changes.append("no primary in the process of the leading controller")
    if plan.log_count != last.log_count:
        changes.append(f"{plan.log_count} logs instead of {last.log_count}")
    gone, come = set(last.sequencers) - set(plan.sequencers), set(plan.sequencers) - set(last.sequencers)
    if gone or come:
        changes.append(f"sequencers: {', '.join(by_name(come)) or 'none'} for {', '.join(by_name(gone)) or 'none'}")
    wiped = [n for n in plan.sequencers if n in last.sequencers and last.incarnations[n] != plan.incarnations[n]]
    if wiped:
        changes.append(f"{', '.join(wiped)} has another disk")
    if plan.beside != last.beside and not changes:
        changes.append("cuts are to run ahead of reports" if plan.beside else "cuts are to wait for reports")
    if (plan.replicas, plan.write_quorum) != (last.replicas, last.write_quorum):
        changes.append(f"write quorum {plan.write_quorum} of {plan.replicas} replicas")
    return "; ".join(changes)


def moves_near(last: View, plan: Plan, near: Mapping[LogId, NodeId]) -> str:
    """Which primaries a plan moves to the node that most of their log's records come from, in words; empty: none."""
    moved = [
        f"log {log} to {primary}"
        for log, (primary, before) in enumerate(zip(plan.primaries, last.primaries, strict=False))
        if primary != before and primary == near.get(log)
    ]
    return f"{NEAR}: {', '.join(moved)}" if moved else ""


def _choose_sequencers(last: View, sight: Sight, problems: list[str]) -> tuple[NodeId, ...]:
    wanted = sight.wanted
    if wanted.sequencer_names:
        unknown = [n for n in wanted.sequencer_names if n not in sight.sequencers and n not in last.incarnations]
        if not unknown:
            return wanted.sequencer_names
        problems.append(f"{', '.join(unknown)} must answer before a term can name it")
        return last.sequencers
    present = [node for node in last.sequencers if node in sight.sequencers]
    absent = [node for node in last.sequencers if node not in sight.sequencers and node not in sight.lost]
    spare = by_name(node for node in sight.sequencers if node not in last.sequencers)
    lost = [node for node in last.sequencers if node not in sight.sequencers and node in sight.lost]
    ranked = [*present, *absent, *spare, *lost]
    count = wanted.sequencers
    if len(ranked) < count:
        problems.append(f"{count} sequencers are wanted, and there are {len(ranked)}")
        count = len(last.sequencers)
    chosen = set(ranked[:count])
    return tuple([n for n in last.sequencers if n in chosen] + [n for n in spare if n in chosen])


def _choose_storage(last: View, sight: Sight) -> tuple[NodeId, ...]:
    """All that are here or may come back. Nodes that are drained, or gone for long, only while they are needed."""
    known = by_name({*sight.storage, *last.storage})
    avoided = {*sight.wanted.draining, *(node for node in sight.lost if node not in sight.storage)}
    chosen = [node for node in known if node not in avoided]
    lacking = max(0, max(sight.wanted.replicas, last.replicas) - len(chosen))
    return tuple(by_name(chosen + [node for node in known if node in avoided][:lacking]))


def _choose_beside(known: Mapping[NodeId, NodeId], sequencers: tuple[NodeId, ...], sight: Sight) -> tuple[NodeId, ...]:
    """Per sequencer, the storage node of its process, if wanted and all have one. One that is away counts as before."""
    found = [sight.beside.get(node, known.get(node)) for node in sequencers]
    pairs = tuple(node for node in found if node is not None)
    is_possible = len(sequencers) > 1 and len(set(pairs)) == len(sequencers)
    return pairs if sight.wanted.speculative_cuts and is_possible else ()


def _choose_primaries(
    last: tuple[NodeId, ...], log_count: int, sequencers: tuple[NodeId, ...], sight: Sight
) -> tuple[NodeId, ...]:
    live = [node for node in sequencers if node in sight.sequencers]
    able = [node for node in live if node not in sight.unfit] or live or list(sequencers)
    fit = [node for node in able if node not in sight.mates] or able
    share = -(-log_count // len(fit))
    load = dict.fromkeys(fit, 0)
    primaries: dict[int, NodeId] = {}
    there = [(log, node) for log, node in enumerate(last) if sight.near.get(log) == node]
    for log, node in (*there, *sorted(sight.near.items()), *enumerate(last)):
        if log < log_count and log not in primaries and load.get(node, share) < share:
            primaries[log] = node
            load[node] += 1
    for log in range(log_count):
        if log not in primaries:
            primaries[log] = min(fit, key=lambda node: (load[node], fit.index(node)))
            load[primaries[log]] += 1
    return tuple(primaries[log] for log in range(log_count))
