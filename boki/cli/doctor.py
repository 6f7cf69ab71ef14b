"""`boki doctor`: one screen that says whether this machine can run Boki, and what to do where it cannot."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from boki.cli.connection import AsJson, check_file, data_directory, running_here
from boki.cli.help import examples
from boki.cli.terminal import print_json, results
from boki.config.loading import Address, DevConfig, load
from boki.doctor.findings import Finding
from boki.errors import BokiError, ConfigError
from boki.host.address import check_address

_MARKS: Final = {"ok": ("ok", "green"), "note": ("note", "yellow"), "bad": ("bad", "bold red")}
_FOUND_AT: Final = 20
"""Columns before what was found."""


@examples("boki doctor", "boki doctor --data volume/boki", "boki doctor --json")
def command(
    data: Annotated[
        Path | None, typer.Option("--data", metavar="PATH", help="Measure the disk of this data directory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: Python, Java, disk, clock, ports.

    The disk is measured by real syncs. Exit code 1 if something is bad; a note says what only some commands need.
    """
    is_good = True
    for finding in _findings(data):
        is_good &= finding.state != "bad"
        if as_json:
            print_json(msgspec.to_builtins(finding))
        else:
            _show(finding)
    if not is_good:
        raise typer.Exit(1)


def _findings(data: Path | None) -> Iterator[Finding]:
    from boki.doctor.facts import Subject, examine

    try:
        check_file(os.environ)
        address = load(Address, flags={}, environment=os.environ, allow_others=True)
        folder = data_directory(data, os.environ)
        running_url = running_here(os.environ)
    except ConfigError as error:
        yield Finding(
            "boki.toml", "bad", "; ".join(error.details["problems"]), "correct it: `boki dev -h` lists the settings"
        )
        address, folder, running_url = Address(), data or DevConfig().data, ""
    defaults = DevConfig()

    def refusal() -> str:
        try:
            check_address(address.host, address.port)
        except BokiError as error:
            return str(error.details.get("why", error.message))
        return ""

    yield from examine(
        Subject(
            data=folder,
            host=address.host,
            port=address.port,
            reserve_bytes=defaults.disk_reserve_bytes,
            budget_bytes=defaults.index_memory_bytes + defaults.cache_bytes,
            port_refusal=refusal,
            running_url=running_url,
        )
    )


def _show(finding: Finding) -> None:
    """One line for what was found, and below it what to do; both wrapped under their beginning."""
    mark, style = _MARKS[finding.state]
    console = results()
    lines = textwrap.wrap(
        finding.found, max(console.width - _FOUND_AT, 20), break_long_words=False, break_on_hyphens=False
    )
    console.print(f"[{style}]{mark:<4}[/]  {finding.check:<{_FOUND_AT - 8}}  ", end="")
    console.print(f"\n{'':{_FOUND_AT}}".join(lines), markup=False)
    if finding.remedy:
        for line in textwrap.wrap(f"-> {finding.remedy}", max(console.width - _FOUND_AT, 20), subsequent_indent="   "):
            console.print(f"{'':{_FOUND_AT}}{line}", style=style, markup=False)
