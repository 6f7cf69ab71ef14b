"""`boki bench flow-takeover --cluster`: the node is killed on which workflows run; when do they continue elsewhere?

Each workflow records the machine's time in one short step after the other. The longest time between two of them in
which the kill lies is its stall. A part of that is the detection: until the node has left the membership.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from boki.bench.cluster import Cluster
from boki.bench.load_functions.flow_load import Many
from boki.bench.rows import Round, Row, median
from boki.bench.system import Options, target
from boki.bench.turns import Step, row_of
from boki.log.membership import Role

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
            names = next(row.names for row in cluster.state.processes if row.pid == pid)
            time.sleep(_BEFORE_S)
            at_us = cluster.kill(names[0])
            engine = next(name for name in names if name.startswith(Role.ENGINE))
            incarnation = _incarnation(healthy, engine)
            cluster.wait_for("aware of the loss", lambda status: is_gone(status, engine, incarnation))  # noqa: B023
            detected_s = time.time() - at_us / 1e6
            times: list[list[int]] = system.run("end_beating", many, list[list[int]], key=f"{many.prefix}end")
            yield _row(options, engine, times, at_us, detected_s)


def _incarnation(status: Mapping[str, Any], engine: str) -> int:
    return next(int(member["incarnation"]) for member in status["members"] if member["node"] == engine)


def is_gone(status: Mapping[str, Any], engine: str, incarnation: int) -> bool:
    """Whether that incarnation is not in the membership that the status tells; not known: False."""
    members = status.get("members")
    return members is not None and all(
        member["node"] != engine or int(member["incarnation"]) != incarnation for member in members
    )


def stall_s(times_us: Sequence[int], at_us: int) -> float:
    """The time between the last beat before that moment and the first one after it."""
    before = max((each for each in times_us if each <= at_us), default=at_us)
    after = min((each for each in times_us if each > at_us), default=before)
    return (after - before) / 1e6


def _row(options: Options, engine: str, times: Sequence[Sequence[int]], at_us: int, detected_s: float) -> Row:
    stalls_s = sorted(stall_s(each, at_us) for each in times if each)
    longest_s = stalls_s[-1]
    details = {
        "killed": engine,
        "detected_s": round(detected_s, 2),
        "stall_p50_s": median([round(each, 3) for each in stalls_s]),
        "stall_longest_s": round(longest_s, 2),
        "longest_after_detection_s": round(longest_s - detected_s, 2),
    }
    ended = sum(bool(each) for each in times)
    return row_of(
        options, "flow-takeover", len(times), [Round(ended, len(times) - ended, longest_s, None, None)], details
    )
