"""`boki bench flow-takeover --cluster`: the node is killed on which workflows run; when do they continue elsewhere?

Each workflow runs one short step after the other, each of which sleeps and returns the machine's time (a beat). Its
stall is the time from the kill to the next beat, without the sleep of that beat. A part of the stall is the detection:
until the node has left the membership. Workflows that had ended before the kill have no stall; their number is in the
row, and a workflow that lacks beats is an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from boki.bench.cluster import Cluster
from boki.bench.load_functions.flow_load import BEAT_S, Many
from boki.bench.rows import Row, median
from boki.bench.system import Options, target
from boki.bench.turns import Step, row_of

WORKFLOWS: Final = 100
_BEFORE_S: Final = 3.0


def flow_takeover(options: Options, step: Step) -> Iterator[Row]:
    """A row for each kill."""
    with target(options) as system, Cluster(system) as cluster:
        for number in range(options.rounds):
            step(f"killing the node of {WORKFLOWS} workflows, round {number + 1}")
            healthy = cluster.wait_healthy()
            many = Many(f"takeover {number}-{os.urandom(4).hex()}:", WORKFLOWS)
            pid = int(system.run("start_beating", many, str, key=many.prefix))
            engine = cluster.engine_of(pid)
            time.sleep(_BEFORE_S)
            at_us = cluster.kill(engine)
            incarnation = _incarnation(healthy, engine)
            cluster.wait_for("aware of the loss", partial(is_gone, engine=engine, incarnation=incarnation))
            detected_s = time.time() - at_us / 1e6
            times: list[list[int]] = system.run("end_beating", many, list[list[int]], key=f"{many.prefix}end")
            yield row_of_kill(options, engine, times, at_us, detected_s)


def _incarnation(status: Mapping[str, Any], engine: str) -> int:
    return next(int(member["incarnation"]) for member in status["members"] if member["node"] == engine)


def is_gone(status: Mapping[str, Any], engine: str, incarnation: int) -> bool:
    """Whether that incarnation is not in the membership that the status tells; not known: False."""
    members = status.get("members")
    return members is not None and all(
        member["node"] != engine or int(member["incarnation"]) != incarnation for member in members
    )


def stall_s(times_us: Sequence[int], at_us: int) -> float | None:
    """From that moment to the first beat after it, without its sleep; None: there is none after it."""
    after_us = min((each for each in times_us if each > at_us), default=None)
    return None if after_us is None else max(0.0, (after_us - at_us) / 1e6 - BEAT_S)


def row_of_kill(options: Options, engine: str, times: Sequence[Sequence[int]], at_us: int, detected_s: float) -> Row:
    """The row of one kill. `times`: the beats of each workflow; empty if some are missing."""
    whole = [each for each in times if each]
    stalls_s = [round(stall, 3) for each in whole if (stall := stall_s(each, at_us)) is not None]
    longest_s = max(stalls_s, default=None)
    details = {
        "killed": engine,
        "detected_s": round(detected_s, 2),
        "stall_p50_s": median(stalls_s),
        "stall_longest_s": longest_s,
        "longest_after_detection_s": None if longest_s is None else round(max(0.0, longest_s - detected_s), 2),
        "ended_before": len(whole) - len(stalls_s),
    }
    row = row_of(options, "flow-takeover", len(times), None, details)
    return msgspec.structs.replace(row, errors=len(times) - len(whole))
