"""The rows of `boki bench peers` as a picture, drawn by pygal (in the extra `peers`)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boki.bench.rows import Row
from boki.errors import ConfigError


def check_plot(path: Path) -> None:
    """`ConfigError` if no picture can be drawn there, before anything is measured."""
    if importlib.util.find_spec("pygal") is None:
        raise ConfigError("--plot draws with pygal: pip install 'boki[peers]'")
    if path.suffix != ".svg" or not path.resolve().parent.is_dir():
        raise ConfigError(f"--plot {path}: give the path of an .svg file in a folder that exists")


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write an SVG with appends a second on a logarithmic scale: a group of bars a window, a bar a system."""
    import pygal

    # An importer for plug-ins, of a kind that Python 3.11 warns of at every later import.
    sys.meta_path[:] = [one for one in sys.meta_path if type(one).__module__ != "pygal"]
    windows = list(dict.fromkeys((row.details["clients"], row.inflight) for row in rows))
    rates = {(row.system, row.details["clients"], row.inflight): row.ops_per_s for row in rows}
    chart = pygal.Bar(
        logarithmic=True,
        no_prefix=True,  # the same rows are the same file
        width=1100,
        height=600,
        legend_at_bottom=True,
        legend_at_bottom_columns=3,
        title=f"Appends of {rows[0].size_bytes:,} bytes a second, by system and appends in flight",
        x_labels=[f"{clients} x {inflight // clients:,}" for clients, inflight in windows],
    )
    for system in dict.fromkeys(row.system for row in rows):
        chart.add(system, [rates[system, *window] or None for window in windows])
    chart.add_xml_filter(_without_scripts)
    chart.render_to_file(str(path))


def _without_scripts(root: Any) -> Any:
    """A picture in a page runs no code, and pygal's loads some from the network."""
    for parent in list(root.iter()):
        for child in [node for node in parent if str(node.tag).endswith("script")]:
            parent.remove(child)
    return root
