"""`boki bench idle`: whose processor time and memory it counts."""

from __future__ import annotations

import os
import subprocess
import sys

from boki.bench.idle import Usage, family, figures, usage_of


def test_all_descendants_of_a_process_are_counted() -> None:
    """Nodes, zygotes, workers and ZooKeeper are children of children of what was started."""
    program = "import subprocess, sys; print(subprocess.Popen(['cat'], stdin=0, stdout=2).pid, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        found = family(os.getpid())
        usages = usage_of(found)
        parent.communicate(b"\n", 15)
    assert {os.getpid(), parent.pid, grandchild} <= set(found)
    assert usages[parent.pid].resident_bytes >= usages[parent.pid].proportional_bytes > 0
    assert not usages[parent.pid].is_java
    assert parent.pid not in usage_of([parent.pid])


def test_processor_time_is_a_share_of_one_core_and_memory_a_sum() -> None:
    """Medians over rounds; a process that has begun in a round counts from its start."""

    def used(processor_s: float) -> Usage:
        return Usage(False, processor_s, 3_000_000, 2_000_000)

    quiet = (2.0, {1: used(5.0)}, {1: used(5.02), 2: used(0.02)})
    busy = (2.0, {1: used(5.0)}, {1: used(7.0), 2: used(2.0)})
    assert figures([quiet, busy, quiet]) == {
        "core_percent": 2.0,
        "resident_mb": 6.0,
        "proportional_mb": 4.0,
        "processes": 2,
    }
