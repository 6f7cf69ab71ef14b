"""`boki bench flow-state`: workflows on keyed state, Halfmoon's grid of 10 operations of 256 B over 10,000 keys.

All objects are made first. Two rows for each ratio of reads, and for 10 reads and 1 write, with one caller and with 64:
of cold objects, which the worker of a workflow does not know, and of warm ones, all of which it knows. Then a row for
each failure rate, of cold objects, as in Halfmoon's recovery: that share of the workflows loses its run once, and is
done by a second one. Both kinds of a mix draw the same keys, and each round other ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from boki.bench.load_functions.flow_state_load import KEYS, StateLoad
from boki.bench.rows import Round, Row, median
from boki.bench.system import Options, Target, target
from boki.bench.turns import Step, row_of

CALLERS: Final = (1, 64)
MIXES: Final = ((1, 9), (5, 5), (9, 1), (10, 1))
"""Reads and writes of a workflow."""
HALF: Final = (5, 5)
FAILURES: Final = (0.1, 0.2, 0.3, 0.4)


def flow_state(options: Options, step: Step) -> Iterator[Row]:
    """Each mix for each number of callers."""
    with target(options) as system:
        step(f"making {KEYS:,} objects")
        system.run("fill_state", None, int)
        for callers in options.inflight or CALLERS:
            for reads, writes in MIXES:
                for is_cold in (True, False):
                    load = StateLoad(reads, writes, callers, options.duration_s, is_cold=is_cold)
                    yield _row(options, step, system, load)
            for rate in FAILURES:
                load = StateLoad(*HALF, callers, options.duration_s, rate)
                yield _row(options, step, system, load)


def _row(options: Options, step: Step, system: Target, load: StateLoad) -> Row:
    rounds: list[Round] = []
    kind = "cold" if load.is_cold else "warm"
    what = f"{load.reads} reads and {load.writes} writes, {kind}, {load.callers} callers"
    what += f", failures {load.failure_rate:g}" if load.failure_rate else ""
    for number in range(options.rounds + 1):
        step(f"{what}, {f'round {number}' if number else 'warming up'}")
        rounds.append(system.run("flow_state_load", msgspec.structs.replace(load, round=number), Round))
    details: dict[str, Any] = {
        "reads": load.reads,
        "writes": load.writes,
        "keys": KEYS,
        "failure_rate": load.failure_rate,
    }
    details |= {"objects": kind, "mean_ms": median([one.mean_ms for one in rounds[1:]])}
    return row_of(options, f"flow-{load.reads}-reads-{load.writes}-writes", load.callers, rounds[1:], details)
