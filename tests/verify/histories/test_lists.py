"""The checker of lists, compared with Elle's published cases: each history, and the anomalies by Elle's names.

The notation is Elle's: "ax1ry12" appends 1 to x and reads y as [1, 2]. A leading "!" is a transaction that was aborted,
"?" one of which nobody knows. Where time matters, a transaction is (text, process, asked, told).
"""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from boki.verify.histories.lists import Lists, find_anomalies
from boki.verify.histories.txns import Anomaly, Read, Txn, Wrote, parse

Spec = str | tuple[str, int, float, float]


def history(specs: list[Spec]) -> list[Txn]:
    txns = []
    for number, spec in enumerate(specs, 1):
        text, process, asked, told_at = spec if isinstance(spec, tuple) else (spec, None, None, None)
        told = {"!": "fail", "?": "info"}.get(text[:1], "ok")
        txns.append(Txn(number, parse(text.lstrip("!?")), told, process, asked, told_at))  # type: ignore[arg-type]
    return txns


def names(specs: list[Spec]) -> set[str]:
    return {anomaly.name for anomaly in find_anomalies(history(specs))}


def in_turns(*texts: str) -> list[Spec]:
    """One process, one after the other."""
    return [(text, 0, 2.0 * number, 2.0 * number + 1) for number, text in enumerate(texts)]


OF_ONE_TRANSACTION = {"internal", "future-read"}
CASES: list[tuple[str, list[Spec], set[str]]] = [
    ("empty", [], set()),
    ("one append", ["ax1"], set()),
    ("empty read", ["rx"], set()),
    ("append, read", ["ax1", "rx1"], set()),
    ("read empty, append, read", ["rx", "ax1", "rx1"], set()),
    ("append, append, read", ["ax2", "ax1", "rx12"], set()),
    ("serializable figure 3 of Adya, Liskov, O'Neil", ["az1ax1ay1", "rx1ay2", "ry12az3", "rz13"], set()),
    ("G0: write cycle", ["ax1ay1", "ax2ay2", "rx12ry21"], {"G0"}),
    ("G1a: read of an aborted append", ["!ax1", "rx1"], {"G1a"}),
    ("G1a: valid and invalid reads", ["rx1ax2", "rx12ay3", "!ax1"], {"G1a", "dirty-update"}),
    ("G1b: intermediate read", in_turns("ax1ax2", "rx1"), {"G1b", "G-single-item"}),
    ("G1b: only the last element counts", ["rx12", "ax1ax2", "rx12"], set()),
    ("G1b: reads of what others overwrote", ["rx1", "rx12", "ax1ax2"], {"G1b", "G-single-item"}),
    ("G1b: own intermediate reads are fine", ["ax1rx1ax2"], set()),
    ("G1c: circular information flow", ["ax1ry1", "ax2ay1", "rx12ry1"], {"G1c"}),
    ("G1c: by reads alone", ["ax1ry1", "ay1rx1"], {"G1c"}),
    ("G1c: three transactions", ["ax1rz1", "ay1rx1", "az1ry1"], {"G1c"}),
    ("G-single: read skew", ["ax1ay1", "ax2ry", "rx12"], {"G-single-item"}),
    ("G-single: half of a transaction", ["ax1ay1", "rx1ry"], {"G-single-item"}),
    ("G-single: over a third", ["rxry1", "ax1", "rx1ay1"], {"G-single-item"}),
    ("G2: anti-dependency cycle", ["ax1ry", "ay1rx"], {"G2-item"}),
    ("G2: with a witness", ["rxay1", "ryax1", "rx1ry1"], {"G2-item"}),
    ("G2: repeatable read test", ["rxay1", "ryax1"], {"G2-item"}),
    ("G2: three transactions in a circle", ["rxay1", "ryaz1", "rzax1"], {"G2-item"}),
    ("G2: read-only anomaly of Fekete and O'Neil", ["rxryax1", "ryay1", "ry1rx"], {"G2-item"}),
    ("info reads tell nothing", ["?ax2ry", "ax1ay1", "rx12ry1"], set()),
    ("info appends that were seen have happened", ["?ax1ay1", "rx1ry"], {"G-single-item"}),
    ("info appends that were not seen may not have", ["?ax1", "rx", "ax2", "rx2"], set()),
    ("single appends without reads", ["rx", "ax1"], set()),
    ("several appends without reads", ["rx", "ax1", "ax2"], set()),
    ("duplicate appends", ["ax1ry", "ay2ax1"], {"duplicate-appends"}),
    (
        "strong SI violation",
        [("ax1", 0, 0, 1), ("ax2", 1, 2, 3), ("rx1", 2, 4, 5), ("rx12", 3, 6, 7)],
        {"G-single-item-realtime"},
    ),
    (
        "strong SI: concurrent reads may be either",
        [("ax1", 0, 0, 1), ("ax2", 1, 2, 5), ("rx1", 2, 4, 6), ("rx12", 3, 3, 7)],
        set(),
    ),
    (
        "strong session SI violation",
        [("ax1", 0, 0, 1), ("ax2", 1, 2, 3), ("rx1", 1, 4, 5), ("rx12", 2, 6, 7)],
        {"G-single-item-process"},
    ),
    (
        "G-nonadjacent-process, by Tsunaou",
        [("rxrz1", 0, 0, 1), ("ax1", 1, 2, 3), ("rz", 1, 4, 5), ("az1", 2, 6, 7)],
        {"G-nonadjacent-item-process"},
    ),
    ("G-nonadjacent", ["ax1", "rx1ry", "ay1", "ry1rx"], {"G-nonadjacent-item"}),
    ("rw edges that make no circle", ["rx5ay1", "ryaz2", "rzat3", "rt3au4", "ruax5"], set()),
    ("two rw edges in a row are G2 alone", ["rxrt1", "ax1ry", "ay1az1", "rz1ru", "au1at1"], {"G2-item"}),
    ("wr and process", [("rx1ay1", 1, 0, 1), ("ry1", 2, 2, 3), ("ax1", 2, 4, 5)], {"G1c-process"}),
    ("wr and time", [("rx1", 1, 0, 1), ("ax1", 2, 2, 3)], {"G1c-realtime"}),
    ("ww and time", [("ax2", 1, 0, 1), ("ax1", 2, 2, 3), ("rx12", 3, 4, 5)], {"G0-realtime"}),
    ("ww and process", [("ax2", 1, 0, 1), ("ax1", 1, 2, 3), ("rx12", 3, 4, 5)], {"G0-process"}),
    ("stale read in one process", in_turns("ax1", "rx", "rx1"), {"G-single-item-process"}),
    ("an info append may happen after what its process did next", in_turns("?ax1", "rx", "rx1"), set()),
    ("an info append has not happened before its process asked", in_turns("rx1", "?ax1"), {"G1c-process"}),
    ("nor before what its process had been told", in_turns("ax1", "?ax2", "rx21"), {"G0-process"}),
    ("time of those who never heard is open", [("?ax1", 1, 0, 1), ("rx", 2, 2, 3), ("rx1", 3, 4, 5)], set()),
    ("contradictory read orders", ["ax1ry1", "ax2", "ax3ay1", "rx13", "rx123"], {"incompatible-order", "G1c"}),
    ("reads that are no prefix", ["ax1", "ax2", "rx12", "rx2"], {"incompatible-order"}),
    ("dirty update: none", ["!ax1"], set()),
    ("dirty update: direct", ["!ax1", "ax2", "rx12"], {"dirty-update", "G1a"}),
    ("dirty update: indirect", ["!ax1", "?ax2", "ax3", "rx123"], {"dirty-update", "G1a"}),
    ("dirty update: nobody stands on it", ["ax2", "!ax1", "rx21"], {"G1a"}),
    ("duplicated elements", ["ax1ry1", "ax2ay1", "rx121"], {"duplicate-elements", "G1c"}),
    ("internal: what was appended in between", ["ax1ax2ax4", "ax3rx1234"], {"internal"}),
    ("internal: good", ["ay5ay6", "ax1ax2", "ry56ax3rx123ax4rx1234"], set()),
    ("internal: stale", ["ax1ax2", "rx12ax3rx12"], {"internal"}),
    ("internal: bad prefix", ["ax1ax2", "ax0", "rx12ax3rx023"], {"internal"}),
    ("internal: extension", ["ax1ax2", "ax4", "rx12ax3rx1234"], {"internal"}),
    ("internal: short read", ["ax1", "ax2", "rx12ax3rx1"], {"internal"}),
    ("internal: append, then a longer read", ["ax1ax2", "ax4", "ax3rx1234"], {"internal"}),
    ("internal: append, then nothing (FaunaDB)", ["ax6rx"], {"internal"}),
    ("internal: two reads differ", ["ax1", "rxrx1"], {"internal"}),
    ("future read: external", ["ax0", "ax2", "rx012ax1"], {"future-read"}),
    ("future read: internal", ["ax1rx01ax0ax3"], {"future-read"}),
    (
        "unobserved writes come after the observed",
        ["ax1ay1", "ax2ay2", "ax3ay3", "rx12", "ry2"],
        {"G0", "G-single-item"},
    ),
    ("lost update", ["ax0", "rx0ax1", "rx0ax2"], {"lost-update", "G2-item"}),
    ("lost update: of the empty list", ["rxax1", "rxax2"], {"lost-update", "G2-item"}),
    ("lost update: one transaction may write twice", ["rxax1ax2", "rx12"], set()),
    ("lost update: an aborted one is none", ["ax0", "rx0ax1", "!rx0ax2", "rx01"], set()),
    ("garbage read", ["ax1", "rx17"], {"garbage-read"}),
    ("long fork", ["ax1", "ay1", "rx1ry", "rxry1"], {"G-nonadjacent-item"}),
    ("write skew", ["rxryax1", "rxryay1"], {"G2-item"}),
]


@pytest.mark.parametrize(("specs", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_published_case(specs: list[Spec], expected: set[str]) -> None:
    """It has these anomalies, and no others."""
    found = names(specs)
    if expected & OF_ONE_TRANSACTION:
        found &= (
            OF_ONE_TRANSACTION  # Elle, too, looks for nothing else there: what follows from such a read says little
        )
    assert found == expected


def test_there_are_enough_cases() -> None:
    """At least sixty, each of a name of its own."""
    assert len({case[0] for case in CASES}) == len(CASES) >= 60


def _run(count: int, seed: int, *, is_serial: bool) -> list[Txn]:
    """Transactions over three lists: one after the other, or each with the reads of an earlier moment."""
    rng = random.Random(seed)
    lists: dict[str, list[int]] = {key: [] for key in "xyz"}
    past = [{key: tuple(values) for key, values in lists.items()}]
    txns = []
    for number in range(count):
        at = past[-1] if is_serial else rng.choice(past[-4:])
        text, own = [], dict(at)
        for step in range(rng.randint(1, 4)):
            key = rng.choice("xyz")
            if rng.random() < 0.5:
                text.append(("r", key, own[key]))
            else:
                value = number * 10 + step
                own[key] += (value,)
                lists[key].append(value)
                text.append(("a", key, (value,)))
        past.append({key: tuple(values) for key, values in lists.items()})
        ops = tuple(Read(key, values) if verb == "r" else Wrote(key, values[0]) for verb, key, values in text)
        txns.append(Txn(number + 1, ops, "ok", number % 3, float(number * 2), float(number * 2 + 1)))
    return txns


@pytest.mark.parametrize("seed", range(20))
def test_serial_histories_are_clean_and_stale_ones_are_not(seed: int) -> None:
    """Of a hundred transactions; and in any order in which they are listed."""
    assert find_anomalies(_run(100, seed, is_serial=True)) == []
    assert find_anomalies(_run(100, seed, is_serial=False)) != []


@pytest.mark.parametrize("seed", range(3))
def test_small_histories_are_judged_as_by_trying_all_orders(seed: int) -> None:
    """A history has no anomaly if and only if some serial order explains it."""
    rng = random.Random(seed)
    verdicts = set()
    for _ in range(400):
        txns = _drawn(rng)
        expected = any(_explains(order) for order in permutations(txns))
        found = find_anomalies(txns)
        assert (not found) == expected or _is_only_about_versions(txns, found), (txns, found)
        verdicts.add(expected)
    assert verdicts == {True, False}


def _is_only_about_versions(txns: list[Txn], found: list[Anomaly]) -> bool:
    """Nothing was found although there is no order: appends that nobody has read may hide a cycle."""
    lists = Lists(txns)
    return not found and any(value not in lists.orders.get(key, ()) for key, value in lists.writers)


def _drawn(rng: random.Random) -> list[Txn]:
    """Three or four transactions of two lists whose reads are mostly possible."""
    count, value = rng.randint(2, 4), 0
    order: dict[str, list[int]] = {"x": [], "y": []}
    plans: list[list[tuple[str, str, int]]] = []
    for _ in range(count):
        plan = []
        for _ in range(rng.randint(1, 3)):
            key = rng.choice("xy")
            if rng.random() < 0.5:
                value += 1
                plan.append(("a", key, value))
                order[key].append(value)
            else:
                plan.append(("r", key, 0))
        plans.append(plan)
    for values in order.values():
        rng.shuffle(values)
    txns = []
    for number, plan in enumerate(plans, 1):
        ops = [
            Wrote(key, written) if verb == "a" else Read(key, tuple(order[key][: rng.randint(0, len(order[key]))]))
            for verb, key, written in plan
        ]
        txns.append(Txn(number, tuple(ops)))
    return txns


def _explains(order: tuple[Txn, ...]) -> bool:
    lists: dict[str, tuple[int, ...]] = {"x": (), "y": ()}
    for txn in order:
        for op in txn.ops:
            if isinstance(op, Wrote):
                lists[op.key] += (op.value,)
            elif isinstance(op, Read) and lists[op.key] != op.values:
                return False
    return True
