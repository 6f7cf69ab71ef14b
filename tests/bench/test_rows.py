"""What a benchmark prints: the fields that every row has, and the arithmetic behind them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.bench.rows import Round, Row, measured, median, quantile, rate, summary

FIELDS = {
    *("bench", "system", "inflight", "size_bytes", "replicas", "durability"),
    *("ops_per_s", "p50_ms", "p99_ms", "errors"),
}


def test_a_row_is_one_flat_object_with_all_fields() -> None:
    """Programs find every field in every row, also where a benchmark has no figure for it."""
    row = Row(
        bench="restart",
        inflight=1,
        size_bytes=100,
        replicas=3,
        durability="fsync",
        ops_per_s=None,
        p50_ms=1.5,
        p99_ms=None,
        errors=0,
        details={"records": 1000},
    )
    flat = json.loads(json.dumps(row.flat()))
    assert flat.keys() == FIELDS | {"records"}
    assert flat["ops_per_s"] is None


@given(st.lists(st.floats(0, 1e6), min_size=1).map(sorted), st.floats(0.001, 1))
def test_a_quantile_is_the_smallest_value_that_enough_values_do_not_exceed(ordered: list[float], share: float) -> None:
    """The definition, by counting."""
    value = quantile(ordered, share)
    assert value is not None
    covered = sum(1 for other in ordered if other <= value)
    assert covered >= share * len(ordered) - 1e-6
    smaller = [other for other in ordered if other < value]
    assert len(smaller) < share * len(ordered)


def test_a_round_counts_only_what_worked_in_its_latencies() -> None:
    """Failed operations are counted, and are no operations a second."""
    one = measured([0.003, 0.001, 0.002], error_count=2, elapsed_s=0.5)
    assert one == Round(3, 2, 0.5, 2.0, 3.0, 2.0)
    assert rate(one) == 6
    assert measured([], error_count=1, elapsed_s=1) == Round(0, 1, 1, None, None)


def test_a_summary_takes_medians_of_rates_and_quantiles_and_the_sum_of_errors() -> None:
    """One slow round moves nothing; one error is never lost."""
    rounds = [Round(100, 0, 1, 1, 2), Round(10, 1, 1, 9, 90), Round(110, 0, 1, 1.2, 3)]
    assert summary(rounds) == {"ops_per_s": 100, "p50_ms": 1.2, "p99_ms": 3, "errors": 1}


def test_the_median_of_nothing_is_unknown() -> None:
    """A figure that was not measured does not become 0."""
    assert median([None, None]) is None


def test_a_round_travels_through_json() -> None:
    """A load function returns it as its result."""
    import msgspec

    one = Round(3, 0, 0.5, None, 3.0)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Round) == one
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"op_count": "3"}', type=Round)
