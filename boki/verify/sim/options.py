"""What a seed draws: the cluster, its workload and its faults (swarm testing: Groce and others, 2012).

Each class of faults is on with probability one half, and its rate is drawn log-uniformly. 5 % of all seeds have no
fault at all, 5 % have a single one: what breaks there is easiest to understand. Everything that a run depends on stands
in `Options`, so a failure can be shrunk by changing it.
"""

from __future__ import annotations

from math import log
from random import Random
from typing import Final

import msgspec

NETWORK: Final = ("loss", "repeat", "reorder", "delay", "partition", "one_way", "hide")
NODES: Final = ("crash", "crash_primary", "stop", "save", "pause", "power_cut", "wipe", "swap", "clock", "seal_crash")
DISKS: Final = ("stall", "fsync_error", "rot", "full")
COORDINATION: Final = ("session", "doubt", "stale", "false_seal", "handover")
CHANGES: Final = ("logs", "sequencers", "drain")
FAULTS: Final = NETWORK + NODES + DISKS + COORDINATION + CHANGES
BESIDE: Final = ("no_space", "decay")
"""Classes that few seeds have, in addition. They are drawn apart, so the histories of all others stay as they were."""
_BESIDE_SHARE: Final = 0.1

_RATES: Final = {
    "loss": (0.001, 0.2),
    "repeat": (0.001, 0.2),
    "reorder": (0.001, 0.3),
    "delay": (0.0005, 0.05),
    "doubt": (0.1, 0.8),
    "stale": (0.05, 0.7),
    "seal_crash": (0.3, 0.95),
}
"""Of these a rate is a probability per message or request; of all others it is events per virtual second."""
_EVENT_RATE: Final = (0.15, 2.0)
_RARE: Final = {
    "power_cut": (0.15, 0.8),
    "wipe": (0.1, 0.6),
    "swap": (0.5, 2.0),
    "handover": (0.5, 2.0),
    "drain": (0.05, 0.3),
    "clock": (0.1, 1.0),
    "hide": (0.3, 1.5),
    "no_space": (0.2, 1.0),
    "decay": (0.5, 3.0),
}


_SCENARIO_RATES: Final = {"mistake": 1.0, "lost_index": 2.0, "echo": 10.0}
SCENARIOS: Final = tuple(_SCENARIO_RATES)
"""Orders of events that are brought about in a few seeds only: `boki.verify.sim.scenarios`, and the files beside it."""
_SCENARIO_SHARE: Final = 0.18
_FAULTS_BESIDE: Final = 3
_DECOMMISSION_SHARE: Final = 0.14
_HOSTED_SHARE: Final = 0.62
"""Of the seeds without a scenario that takes away single roles: half of all."""
_UP_SHARE: Final = 0.5
"""Of these, those that are laid out as `boki up` does it by itself."""
_UP_AHEAD_SHARE: Final = 0.5
"""Of these, those with the scenario for cuts that run ahead. In the others all faults come as often as drawn."""
_SHARED_LOG_SHARE: Final = 0.75
"""Of the other seeds with such nodes, those in which two roles share a log; of these, those with several replicas."""
_SPECULATION_SHARE: Final = 0.9
"""Of these, those in which cuts run ahead: an eighth of all seeds, besides those with the layout of `boki up`."""
_AHEAD_SHARE: Final = 0.75
"""Of these, those with the scenario for it."""
_SELDOM: Final = 0.1
"""How often faults come whose scenario they would spoil, of their usual rate."""
_SLOWS_AFTER_OPERATIONS: Final = 40
"""What a client of a fast cluster does for the hundredth time shows little that is new, and takes time."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times in virtual microseconds; `faults` maps a class of faults to its rate."""

    seed: int
    chaos_us: int = 8_000_000
    storage: int = 4
    sequencers: int = 3
    """How many a view has; `spare_sequencers` more run."""
    spare_sequencers: int = 1
    engines: int = 2
    relays: int = 0
    """Engines without the index."""
    controllers: int = 2
    gateways: int = 2
    logs: int = 1
    replicas: int = 3
    write_quorum: int = 2
    clients: int = 4
    books: int = 2
    tags: int = 3
    pause_us: int = 60_000
    """How long a client thinks between two operations, on average."""
    slows_after_operations: int = 1_000_000
    """After this many operations a client thinks twice as long, after as many again three times, and so on."""
    deadline_us: int = 3_000_000
    mix: dict[str, int] = {}
    """Weights of the operations; those of `boki.verify.sim.clients.OPERATIONS` that are missing have weight 1."""
    wide: int = 0
    """Weight of each of `boki.verify.sim.clients.WIDE`."""
    counted: int = 0
    """Weight of appends on condition of a count."""
    poll_us: int = 300_000
    """How long every third forward read may wait for a record."""
    buffer_bytes: int = 1 << 20
    batch_bytes: int = 64 << 10
    index_memory_bytes: int = 64 << 20
    cache_bytes: int = 4 << 20
    payload_bytes: int = 40
    link_us: int = 300
    sync_us: int = 400
    session_us: int = 4_000_000
    faults: dict[str, float] = {}
    checkpoint_us: int = 30_000_000
    checkpoint_page_bytes: int = 128 << 10
    has_decommission: bool = False
    """Whether, when all has been read, whole disks go, as many as may: see `boki.verify.sim.decommission`."""
    scenarios: dict[str, float] = {}
    """Which of `SCENARIOS` there are, and how often each is tried per virtual second."""
    calls: int = 0
    """How many ask for logged calls."""
    call_trouble: float = 0.0
    """Which part of those calls fail at first, and which part is cancelled: a probability each."""
    call_sleep: float = 0.0
    """Which part of those calls are suspended: a probability."""
    call_compute: float = 0.0
    """Which part of those calls only compute, so that engines try them before they accept them: a probability."""
    queues: int = 0
    """How many processes push to queues and take from them."""
    queue_shards: int = 1
    """Of the queue whose messages are leased."""
    queue_crashes: float = 0.0
    """How often each of those processes dies or stalls, per virtual second."""
    queue_trouble: float = 0.0
    """How often what goes between one of them and its gateway or engine is slow or lost: a probability."""
    stores: int = 0
    """How many processes read objects and change them."""
    store_crashes: float = 0.0
    """As `queue_crashes`, of those processes."""
    store_trouble: float = 0.0
    """As `queue_trouble`, of those processes."""
    store_work: int = 1
    """How many times as much as usual each of those processes does."""
    flows: int = 0
    """How many users run workflows."""
    tries: bool = False
    """Whether engines try workflows before they accept them."""
    is_hosted: bool = False
    """Whether roles of the same number are one process: they crash, stall and come back together."""
    shares_log: bool = False
    """Whether storage nodes and sequencers of the same number have one write-ahead log: for those that are hosted."""
    runs_ahead: bool = True
    """Whether these run ahead of its syncs. In production they do so only where one replica and one sequencer are all;
    of the seeds with more, half do."""
    speculates: bool = False
    """Whether cuts run ahead of reports where the layout allows it: for those that share a log."""

    @property
    def logs_calls(self) -> bool:
        """Whether engines have logged calls to run."""
        return self.calls > 0 or self.flows > 0

    @property
    def is_up_layout(self) -> bool:
        """Whether this is the cluster that `boki up` starts by itself."""
        return self == as_up(self)


def draw_objects(seed: int) -> Options:
    """The cluster and the faults of a seed, and little else than a long load of transactions."""
    options = draw_options(seed)
    rng = Random(f"{seed}:options:objects")
    return msgspec.structs.replace(
        options,
        chaos_us=_OBJECTS_US,
        clients=1,
        pause_us=_OBJECTS_PAUSE_US,
        calls=0,
        queues=0,
        flows=0,
        scenarios={},
        stores=rng.choice((3, 4)),
        store_crashes=rng.choice((0.0, 0.1, 0.3)),
        store_trouble=rng.choice((0.0, 0.02, 0.1)),
        store_work=_OBJECTS_WORK,
    )


def draw_options(seed: int, *, with_layout: bool = True) -> Options:
    """The options of a seed; without a layout, each role is a process."""
    rng = Random(f"{seed}:options")
    queue_rng = Random(f"{seed}:options:queues")
    store_rng = Random(f"{seed}:options:stores")
    wide_rng = Random(f"{seed}:options:wide")
    index_rng = Random(f"{seed}:options:checkpoints")
    replicas = rng.choice((1, 2, 3, 3, 3, 3, 5))
    options = Options(
        seed=seed,
        chaos_us=int(_log_uniform(rng, 2_500_000, 5_000_000)),
        storage=replicas + rng.choice((0, 1, 1, 2)),
        sequencers=rng.choice((1, 3, 3, 3, 3, 3, 5)),
        spare_sequencers=rng.choice((0, 1, 1, 2)),
        engines=rng.choice((1, 2, 2, 3)),
        controllers=rng.choice((1, 2, 2)),
        logs=rng.choice((1, 1, 2, 3)),
        replicas=replicas,
        write_quorum=rng.randint((replicas + 1) // 2, max(replicas - 1, (replicas + 1) // 2)),
        clients=rng.randint(4, 7),
        books=rng.randint(1, 4),
        tags=rng.randint(1, 4),
        pause_us=int(_log_uniform(rng, 8_000, 30_000)),
        slows_after_operations=_SLOWS_AFTER_OPERATIONS,
        deadline_us=int(_log_uniform(rng, 800_000, 5_000_000)),
        mix={name: rng.choice((0, 1, 1, 2, 4)) for name in ("append", "keyed", "conditional", "many")}
        | {name: rng.choice((0, 1, 1, 2)) for name in ("read", "tail", "get", "sync", "child", "poll")}
        | {"trim": rng.choice((0, 1, 1))},
        buffer_bytes=rng.choice((4_000, 1 << 20, 1 << 20)),
        batch_bytes=rng.choice((200, 2_000, 64 << 10)),
        index_memory_bytes=rng.choice((20_000, 64 << 20, 64 << 20)),
        cache_bytes=rng.choice((1 << 20, 4 << 20)),
        payload_bytes=rng.choice((12, 40, 400)),
        link_us=int(_log_uniform(rng, 50, 5_000)),
        sync_us=int(_log_uniform(rng, 100, 10_000)),
        session_us=rng.choice((2_000_000, 4_000_000, 8_000_000)),
        faults=_draw_faults(rng),
        calls=Random(f"{seed}:options:calls").choice((0, 0, 0, 1, 3)),
        call_trouble=Random(f"{seed}:options:call_trouble").choice((0.0, 0.3)),
        call_sleep=Random(f"{seed}:options:call_sleep").choice((0.0, 0.5, 0.8)),
        flows=Random(f"{seed}:options:flows").choice((0, 0, 0, 0, 0, 0, 1, 1, 2)),
        queues=queue_rng.choice((0, 0, 0, 0, 0, 2, 3)),
        queue_shards=queue_rng.choice((1, 1, 2, 3)),
        queue_crashes=queue_rng.choice((0.0, _log_uniform(queue_rng, 0.1, 1.0))),
        queue_trouble=queue_rng.choice((0.0, _log_uniform(queue_rng, 0.01, 0.3), 0.1)),
        stores=store_rng.choice((0, 0, 0, 0, 2, 3)),
        store_crashes=store_rng.choice((0.0, _log_uniform(store_rng, 0.1, 1.0))),
        store_trouble=store_rng.choice((0.0, _log_uniform(store_rng, 0.01, 0.3), 0.1)),
        wide=wide_rng.choice((0, 0, 1)),
        counted=Random(f"{seed}:options:counted").choice((0, 0, 0, 2)),
        relays=Random(f"{seed}:options:relays").choice((0, 0, 0, 1)),
        checkpoint_us=index_rng.choice((30_000_000, 30_000_000, int(_log_uniform(index_rng, 200_000, 3_000_000)))),
        checkpoint_page_bytes=index_rng.choice((4_000, 128 << 10)),
        has_decommission=index_rng.random() < _DECOMMISSION_SHARE,
    )
    if not options.faults:  # who waits must be woken then, however long the wait
        return msgspec.structs.replace(options, poll_us=3_000_000)
    options = _draw_beside(_draw_scenario(options)) if len(options.faults) > 1 else options
    return _draw_layout(options) if with_layout else options


def _draw_layout(options: Options) -> Options:
    """Half of the seeds, and none in which a scenario takes away single roles, are nodes that play several. With them
    is drawn whether workflows are tried, and which calls only compute: the safeguards that are switched off in tests
    were caught without.
    """
    tries = Random(f"{options.seed}:options:tries").random() < 0.5
    computes = Random(f"{options.seed}:options:call_compute").choice((0.0, 0.0, 0.5))
    options = msgspec.structs.replace(options, tries=tries, call_compute=computes)
    is_hosted = not options.scenarios and Random(f"{options.seed}:options:layout").random() < _HOSTED_SHARE
    if not is_hosted:
        return options
    options = msgspec.structs.replace(options, is_hosted=True)
    up_rng = Random(f"{options.seed}:options:up")
    if up_rng.random() < _UP_SHARE:
        return as_up(_draw_ahead(options, up_rng) if up_rng.random() < _UP_AHEAD_SHARE else options)
    rng = Random(f"{options.seed}:options:log")
    return _draw_shared_log(options, rng) if rng.random() < _SHARED_LOG_SHARE else options


def _draw_shared_log(options: Options, rng: Random) -> Options:
    """One log for two roles: on each of several nodes, or on the only one."""
    options = msgspec.structs.replace(options, shares_log=True)
    if rng.random() < _SHARED_LOG_SHARE:
        runs_ahead = Random(f"{options.seed}:options:ahead").random() < 0.5
        options = msgspec.structs.replace(options, runs_ahead=runs_ahead)
        speculates = Random(f"{options.seed}:options:speculates")
        return draw_speculation(options, speculates) if speculates.random() < _SPECULATION_SHARE else options
    return msgspec.structs.replace(
        options, storage=1, replicas=1, write_quorum=1, sequencers=1, spare_sequencers=0, logs=rng.choice((1, 2))
    )


def draw_speculation(options: Options, rng: Random) -> Options:
    """Cuts run ahead. Mostly every node has both roles; sometimes one of the shards' replicas has none, or changes."""
    count = rng.choice((3, 3, 3, 5))
    if rng.random() < _AHEAD_SHARE:
        options = _draw_ahead(options, rng)
    return msgspec.structs.replace(
        options,
        speculates=True,
        runs_ahead=False,
        shares_log=True,
        is_hosted=True,
        replicas=count,
        write_quorum=rng.randint(2, count // 2 + 1),
        sequencers=count,
        storage=count + rng.choice((0, 0, 0, 1)),
        spare_sequencers=rng.choice((0, 0, 0, 1)),
    )


def _draw_ahead(options: Options, rng: Random) -> Options:
    """The scenario for cuts that run ahead, and most faults seldom: else it hardly ever gets through."""
    often = rng.sample(sorted(options.faults), min(_FAULTS_BESIDE, len(options.faults)))
    return msgspec.structs.replace(
        options,
        scenarios={"ahead": 3.0},
        faults={fault: rate * (1 if fault in often else _SELDOM) for fault, rate in options.faults.items()},
        chaos_us=max(options.chaos_us, 4_000_000),
    )


def as_up(options: Options) -> Options:
    """The same load and faults for the cluster of `boki up` as it is by default (`boki.config.up`): three nodes with
    all roles, and one log.
    """
    return msgspec.structs.replace(
        options,
        storage=3,
        sequencers=3,
        spare_sequencers=0,
        engines=3,
        relays=0,
        controllers=3,
        gateways=3,
        logs=1,
        replicas=3,
        write_quorum=2,
        is_hosted=True,
        shares_log=True,
        runs_ahead=False,
        speculates=True,
    )


_OBJECTS_US: Final = 12_000_000
_OBJECTS_PAUSE_US: Final = 200_000
_OBJECTS_WORK: Final = 12


def _draw_beside(options: Options) -> Options:
    rng = Random(f"{options.seed}:options:rarer")
    more = {fault: _log_uniform(rng, *_RARE[fault]) for fault in BESIDE if rng.random() < _BESIDE_SHARE}
    return msgspec.structs.replace(options, faults=options.faults | more) if more else options


def _draw_scenario(options: Options) -> Options:
    """In a few seeds one scenario, with what it needs, and few faults beside it: else it hardly ever gets through."""
    rng = Random(f"{options.seed}:options:schemes")
    if rng.random() >= _SCENARIO_SHARE:
        return options
    name = rng.choice(SCENARIOS)
    chosen = sorted(rng.sample(sorted(options.faults), min(_FAULTS_BESIDE, len(options.faults))))
    options = msgspec.structs.replace(
        options,
        scenarios={name: _SCENARIO_RATES[name]},
        faults={fault: options.faults[fault] for fault in chosen},
        chaos_us=max(options.chaos_us, 4_000_000),
        calls=max(3, options.calls),
        engines=max(2, options.engines),
    )
    match name:
        case "lost_index":
            return msgspec.structs.replace(
                options, checkpoint_us=300_000, replicas=3, write_quorum=2, storage=max(3, options.storage)
            )
        case "echo":
            return msgspec.structs.replace(options, mix=options.mix | {"trim": 3})
    return options


def _draw_faults(rng: Random) -> dict[str, float]:
    kind = rng.random()
    on = [fault for fault in FAULTS if rng.random() < 0.5]
    if kind < 0.05:
        on = []
    elif kind < 0.1:
        on = [rng.choice(FAULTS)]
    return {fault: _log_uniform(rng, *_RATES.get(fault, _RARE.get(fault, _EVENT_RATE))) for fault in on}


def _log_uniform(rng: Random, low: float, high: float) -> float:
    return float(low * (high / low) ** rng.random())


def seconds_between(rate: float, rng: Random) -> float:
    """How long until the next of some events that come at `rate` per second."""
    return -log(1.0 - rng.random()) / rate
