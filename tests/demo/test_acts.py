"""What the demo calls a match: nothing missing, nothing changed, nothing torn, nothing twice."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from boki.demo.acts import CameBack, Compared, judged
from boki.demo.flights import Summary

BATCHES: list[list[dict[str, Any]]] = [[{"flight": 10 * batch + i} for i in range(3)] for batch in range(4)]


def encoded(batch: int) -> list[bytes]:
    return [msgspec.json.encode(flight) for flight in BATCHES[batch]]


def numbered(first: int, records: list[bytes]) -> dict[int, bytes]:
    return dict(enumerate(records, first))


ACKNOWLEDGED = numbered(100, encoded(0)) | numbered(103, encoded(1))


def verdict(found: dict[int, bytes]) -> CameBack:
    return judged(ACKNOWLEDGED, found, BATCHES, restart_s=1.0)


def test_all_acknowledged_records_are_enough() -> None:
    """What was on its way may be lost."""
    one = verdict(dict(ACKNOWLEDGED))
    assert one.all_found
    assert (one.acknowledged_count, one.found_count, one.unacknowledged_count) == (6, 6, 0)


def test_whole_batches_that_were_on_their_way_may_be_kept() -> None:
    """They were not refused either."""
    one = verdict(ACKNOWLEDGED | numbered(200, encoded(2)))
    assert one.all_found
    assert one.unacknowledged_count == 3


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({seqnum: data for seqnum, data in ACKNOWLEDGED.items() if seqnum != 104}, "one is missing"),
        (ACKNOWLEDGED | {104: b"other"}, "one has other bytes"),
        ({seqnum + 1: data for seqnum, data in ACKNOWLEDGED.items()}, "all have other seqnums"),
        (ACKNOWLEDGED | numbered(200, encoded(2)[:2]), "a batch is there in part"),
        (ACKNOWLEDGED | numbered(200, encoded(0)), "an acknowledged batch is there twice"),
        (ACKNOWLEDGED | {300: b"from nowhere"}, "a record that nobody sent"),
        ({}, "nothing is there"),
    ],
)
def test_every_broken_promise_fails_the_demo(found: dict[int, bytes], why: str) -> None:
    """A demo that cannot fail shows nothing."""
    assert not verdict(found).all_found, why


def test_nothing_acknowledged_proves_nothing() -> None:
    """A kill that came too early is no success."""
    assert not judged({}, {}, BATCHES, restart_s=1.0).all_found


def test_a_tag_matches_only_if_counts_and_mean_do() -> None:
    """The comparison is of the log's figures with the table's."""
    assert Compared("carrier:UA", Summary(2, 2, 3.0), Summary(2, 2, 3.0)).matches
    assert not Compared("carrier:UA", Summary(2, 2, 3.0), Summary(2, 1, 3.0)).matches


@pytest.mark.xdist_group("the whole machine")
def test_the_demo_succeeds() -> None:
    """`boki demo` as the README has it: all flights, the comparison, the kill; exit code 0, and figures to look at."""
    done = subprocess.run(
        [sys.executable, "-m", "boki", "demo"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("336,776 flights", "UA", "SIGKILL", "All of it matches", "Where to look next"):
        assert text in done.stdout
    assert "NO" not in done.stdout.split()
