"""Rounds of several systems in turns, so that a machine that slows down does so for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from boki.bench.rows import Round, Row, median, summary
from boki.bench.system import Options
from boki.errors import ConfigError

Step = Callable[[str], None]
"""Is told what is measured now."""
Run = Callable[[], Round]


class Peer(Protocol):
    """A system beside Boki."""

    @property
    def name(self) -> str:
        """What people call it."""

    def lacks(self) -> str:
        """What is to be installed before it can be measured; "": nothing."""


P = TypeVar("P", bound=Peer)


def in_turns(options: Options, step: Step, what: str, runs: Mapping[str, Run]) -> dict[str, list[Round]]:
    """The measured rounds of each, one after another; the first one of each warms up."""
    rounds: dict[str, list[Round]] = {name: [] for name in runs}
    for number in range(options.rounds + 1):
        for name, run in runs.items():
            step(f"{what}: {name}, {f'round {number}' if number else 'warming up'}")
            one = run()
            if number:
                rounds[name].append(one)
    return rounds


def wanted_peers(options: Options, peers: Sequence[P], if_installed: Sequence[P] = ()) -> list[P]:
    """The peers that are measured in turns: none, or all of `peers` and those of `if_installed` that are.

    `ConfigError` names those of `peers` that are not installed.
    """
    if not options.with_peers:
        return []
    if lacking := [f"{peer.name}: {lacks}" for peer in peers if (lacks := peer.lacks())]:
        raise ConfigError(f"--peers needs {'; '.join(lacking)}")
    return [*peers, *(peer for peer in if_installed if not peer.lacks())]


def left_out(options: Options, bench: str, if_installed: Sequence[P]) -> Iterator[Row]:
    """A row without figures for each of them that is wanted and is not installed, with what installs it."""
    for peer in if_installed if options.with_peers else ():
        if needs := peer.lacks():
            yield row_of(options, bench, 0, None, {"left_out": f"needs {needs}"}, system=peer.name)


def ratio(ours: list[Round], others: list[Round], figure: Callable[[Round], float]) -> float | None:
    """The median of the ratios of rounds that followed each other."""
    pairs = [(figure(mine), figure(its)) for mine, its in zip(ours, others, strict=True)]
    return median([round(mine / its, 3) if its else None for mine, its in pairs])


def row_of(
    options: Options,
    bench: str,
    inflight: int,
    rounds: list[Round] | None,
    details: Mapping[str, Any],
    system: str = "",
) -> Row:
    """The row of these rounds. `system`: a peer's name; "": it is Boki's. None: only the details were measured."""
    fields = {"ops_per_s": None, "p50_ms": None, "p99_ms": None, "errors": 0} if rounds is None else summary(rounds)
    return Row(
        bench=bench,
        inflight=inflight,
        size_bytes=0,
        replicas=1 if system else options.replicas,
        durability=options.durability,
        system=system or ("cluster" if options.is_cluster else "one process"),
        details=dict(details),
        **fields,
    )
