"""The flights of the package, and what its table says: two ways to the same figures."""

import zipfile
from collections import defaultdict
from pathlib import Path

import pytest

from boki.demo import flights as demo
from boki.demo.flights import FLIGHT_COUNT, Summary, flights, summaries, table_path
from boki.errors import ConfigError

HEADER = "carrier,flight,tailnum,origin,dest,arr_delay,time_hour"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv.zip"
    rows = ["UA,1,N1,EWR,IAH,10,t", "UA,2,NA,EWR,SFO,-4,t", "AA,3,N3,JFK,IAH,NA,t"]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "\n".join([HEADER, *rows, ""]))
    return path


def test_missing_values_are_none_and_numbers_are_numbers(table: Path) -> None:
    """A delay that is not known is not a delay of 0, and a tail number stays text."""
    first, second, third = flights(table)
    assert (first["flight"], first["arr_delay"], first["tailnum"]) == (1, 10, "N1")
    assert second["tailnum"] is None
    assert third["arr_delay"] is None


def test_a_summary_counts_all_flights_and_averages_those_that_arrived(table: Path) -> None:
    """Cancelled flights count as flights; a tag on which nothing arrived has no mean."""
    found = summaries(table)
    assert found["carrier:UA"] == Summary(2, 2, 3.0)
    assert found["carrier:AA"] == Summary(1, 0, None)
    assert found["dest:IAH"] == Summary(2, 1, 10.0)
    assert found.keys() == {"carrier:UA", "carrier:AA", "origin:EWR", "origin:JFK", "dest:IAH", "dest:SFO"}


def test_the_package_has_the_flights_that_the_demo_speaks_of() -> None:
    """All of them, by the plain reader, and pandas finds as many under each carrier."""
    counts: dict[str, int] = defaultdict(int)
    for flight in flights(table_path()):
        counts[f"carrier:{flight['carrier']}"] += 1
    assert sum(counts.values()) == FLIGHT_COUNT
    of_pandas = {tag: one.flight_count for tag, one in summaries(table_path()).items() if tag.startswith("carrier:")}
    assert counts == of_pandas


def test_summaries_agree_up_to_rounding_only() -> None:
    """A mean that is off by a flight's minute is found."""
    one = Summary(1000, 900, 3.5)
    assert one.agrees_with(Summary(1000, 900, 3.5 + 1e-12))
    for other in (
        Summary(1000, 900, 3.5 + 1 / 900),
        Summary(999, 900, 3.5),
        Summary(1000, 899, 3.5),
        Summary(1000, 900, None),
    ):
        assert not one.agrees_with(other)
    assert Summary(1, 0, None).agrees_with(Summary(1, 0, None))


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named."""
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"boki\[demo\]"):
        table_path()
