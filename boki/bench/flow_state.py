"""`boki bench flow-state`: workflows on keyed state, Halfmoon's grid of 10 operations of 256 B over 10,000 keys.

All objects are made first. A row for each ratio of reads, and one for 10 reads and 1 write, with one caller and with
64. Then a row for each failure rate, as in Halfmoon's recovery: that share of the workflows loses its run once, and is
done by a second one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from boki.bench.load_functions.flow_state_load import KEYS, StateLoad
from boki.bench.rows import Round, Row
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
                load = StateLoad(reads, writes, callers, options.duration_s)
                yield _row(options, step, system, load)
            for rate in FAILURES:
                load = StateLoad(*HALF, callers, options.duration_s, rate)
                yield _row(options, step, system, load)


def _row(options: Options, step: Step, system: Target, load: StateLoad) -> Row:
    rounds: list[Round] = []
    for number in range(options.rounds + 1):
        what = f"{load.reads} reads and {load.writes} writes, {load.callers} callers, failures {load.failure_rate:g}"
        step(f"{what}, {f'round {number}' if number else 'warming up'}")
        rounds.append(system.run("flow_state_load", load, Round))
    details = {"reads": load.reads, "writes": load.writes, "keys": KEYS, "failure_rate": load.failure_rate}
    return row_of(options, f"flow-{load.reads}-reads-{load.writes}-writes", load.callers, rounds[1:], details)
