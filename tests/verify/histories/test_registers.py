"""The checker of registers, compared with Elle's published cases. The notation: "wx1ry_" writes 1 to x and reads y as
never written; "!" was aborted, and of "?" nobody knows.
"""

from __future__ import annotations

import pytest

from boki.verify.histories.registers import find_anomalies
from boki.verify.histories.txns import Txn, parse

Spec = str | tuple[str, int, float, float]
Orders = dict[str, list[int]]

CASES: list[tuple[str, list[Spec], Orders, set[str]]] = [
    ("empty", [], {}, set()),
    ("write, read", ["wx1", "rx1"], {}, set()),
    ("internal: good", ["wy2", "ry2wx2rx2wx1rx1"], {}, set()),
    ("internal: stale", ["wx1", "rx1wx2rx1"], {}, {"internal"}),
    ("internal: two reads differ", ["wx1", "wx2", "rx1rx2"], {"x": [1, 2]}, {"internal"}),
    ("G0: not to be seen without an order", ["wx1wy2", "wx2wy1"], {}, set()),
    ("G0: with the orders", ["wx1wy2", "wx2wy1"], {"x": [1, 2], "y": [1, 2]}, {"G0"}),
    ("G1a", ["!wx1", "rx1"], {}, {"G1a"}),
    ("G1b", ["wx1wx2", "rx1"], {}, {"G1b"}),
    ("G1b: the last value is fine", ["wx1wx2", "rx2"], {}, set()),
    ("G1c: by reads alone", ["wx1ry1", "wy1rx1"], {}, {"G1c"}),
    ("G1c: a write in between", ["rx1wx2ry1", "wx1", "rx2wy1"], {}, {"G1c"}),
    ("G-single: follows from a read and a write", ["wx1wy1", "rx1wx2wy2", "rx1ry2"], {}, {"G-single-item"}),
    ("G-single: before the first value", ["wx1wy1", "rx1ry_"], {}, {"G-single-item"}),
    ("G2: write skew", ["rx_ry_wx1", "rx_ry_wy1"], {}, {"G2-item"}),
    ("lost update", ["wx1", "rx1wx2", "rx1wx3"], {}, {"lost-update", "G2-item"}),
    ("lost update: with the order", ["wx1", "rx1wx2", "rx1wx3"], {"x": [1, 2, 3]}, {"lost-update", "G-single-item"}),
    ("cyclic versions", ["rx1wx2", "rx2wx1"], {}, {"cyclic-versions"}),
    ("an order against a read", ["wx1", "rx1wx2"], {"x": [2, 1]}, {"cyclic-versions"}),
    ("garbage read", ["wx1", "rx7"], {}, {"garbage-read"}),
    ("info reads tell nothing", ["?rx_wy1", "wx1", "ry1rx1"], {}, set()),
    ("stale read on the clock", [("wx1", 0, 0, 1), ("rx_", 1, 2, 3)], {}, {"G-single-item-realtime"}),
    ("stale read in a process", [("wx1", 0, 0, 1), ("rx_", 0, 2, 3)], {}, {"G-single-item-process"}),
    ("concurrent reads may be either", [("wx1", 0, 0, 3), ("rx_", 1, 1, 2), ("rx1", 2, 1, 2)], {}, set()),
    ("long fork", ["wx1", "wy1", "rx1ry_", "rx_ry1"], {}, {"G-nonadjacent-item"}),
]


@pytest.mark.parametrize(("specs", "orders", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_published_case(specs: list[Spec], orders: Orders, expected: set[str]) -> None:
    """It has these anomalies, and no others."""
    txns = []
    for number, spec in enumerate(specs, 1):
        text, process, asked, told_at = spec if isinstance(spec, tuple) else (spec, None, None, None)
        told = {"!": "fail", "?": "info"}.get(text[:1], "ok")
        ops = parse(text.lstrip("!?"), registers=True)
        txns.append(Txn(number, ops, told, process, asked, told_at))  # type: ignore[arg-type]
    assert {anomaly.name for anomaly in find_anomalies(txns, orders)} == expected
