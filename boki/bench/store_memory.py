"""Memory of an object: in the index of an engine, and in a process that has read it. Each in a process of its own.

The figures are the growth of resident memory, so they count what the allocator and Python add.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from boki.bench import index_memory
from boki.errors import Unavailable
from boki.libs.bokistore.records import row_tag
from boki.libs.bokistore.views import Row, Rows, View

_KINDS: Final = ("engine", "worker")


def measure(object_count: int) -> dict[str, float]:
    """Bytes of each object that has one version, `{"name": …, "age": …}`."""
    found: dict[str, float] = {"objects": object_count}
    for kind in _KINDS:
        arguments = [sys.executable, "-P", "-m", __name__, str(object_count), kind]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"the process that keeps objects in memory failed:\n{done.stderr}")
        found[f"{kind}_bytes_per_object"] = json.loads(done.stdout)
    return found


def _in_engine(object_count: int) -> float:
    return index_memory.fill(object_count, lambda number: (row_tag(f"user:{number}"),))["bytes_per_record"]


def _in_worker(object_count: int) -> float:
    before_bytes = index_memory.resident_bytes()
    rows = Rows(most_bytes=1 << 40)
    for number in range(1, object_count + 1):
        value = {"name": f"user number {number}", "age": number % 100}
        rows.put(Row(f"user:{number}", View(value, 40, number, number, number), number + 1))
    return round((index_memory.resident_bytes() - before_bytes) / object_count, 1)


_MEASURES: Final[dict[str, Callable[[int], float]]] = {"engine": _in_engine, "worker": _in_worker}

if __name__ == "__main__":
    print(json.dumps(_MEASURES[sys.argv[2]](int(sys.argv[1]))))
