"""Safeguards of a write-ahead log that two roles share, switched off: see `boki.protocol.output_commit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from boki.verify.sim import disks, nodes
from boki.verify.sim.options import Options
from tests.verify.sim.without import without


def no_order_in_the_log() -> Any:
    """Cuts stand in front of the records that they name."""

    def cuts_first(waiting: Iterable[Any]) -> list[Any]:
        return sorted(waiting, key=lambda item: not item[2].name.startswith("sequencer"))

    return without(disks, "in_log_order", cuts_first)


def no_wait_for_the_sync() -> Any:
    """What follows from writes that are not durable yet leaves at once."""
    return without(nodes, "holds", lambda effect: False)


def shares_log(options: Options) -> bool:
    return options.shares_log


ABLATIONS: dict[str, Callable[[], Any]] = {
    "order in a shared log": no_order_in_the_log,
    "wait for the shared sync": no_wait_for_the_sync,
}
