"""`boki bench flow-state`: workflows on keyed state, Halfmoon's grid of 10 operations of 256 B over 10,000 keys.

A row for each ratio of reads, and one for 10 reads and 1 write, with one caller and with 64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from boki.bench.load_functions.flow_state_load import KEYS, StateLoad
from boki.bench.rows import Round, Row
from boki.bench.system import Options, target
from boki.bench.turns import Step, row_of

CALLERS: Final = (1, 64)
MIXES: Final = ((1, 9), (5, 5), (9, 1), (10, 1))
"""Reads and writes of a workflow."""


def flow_state(options: Options, step: Step) -> Iterator[Row]:
    """Each mix for each number of callers."""
    with target(options) as system:
        for callers in options.inflight or CALLERS:
            for reads, writes in MIXES:
                load = StateLoad(reads, writes, callers, options.duration_s)
                rounds: list[Round] = []
                for number in range(options.rounds + 1):
                    what = f"{reads} reads and {writes} writes, {callers} callers"
                    step(f"{what}, {f'round {number}' if number else 'warming up'}")
                    rounds.append(system.run("flow_state_load", load, Round))
                details = {"reads": reads, "writes": writes, "keys": KEYS}
                yield row_of(options, f"flow-{reads}-reads-{writes}-writes", callers, rounds[1:], details)
