"""`boki bench append --trace`: where the time of one append goes, hop by hop; with one in flight unless told otherwise.

Two systems of the same kind run, and only one of them is traced. They are measured in turns: the first two rows of each
number in flight say what tracing costs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from boki.bench.load_functions.load import Load
from boki.bench.rows import Round, Row, rate
from boki.bench.system import Options, Target, target
from boki.bench.tracing.budget import budget
from boki.bench.tracing.marks import read_marks, traced
from boki.bench.turns import Step, in_turns, ratio, row_of
from boki.errors import Unavailable

_PLAIN = "append"
_TRACED = "append-traced"


def traced_appends(options: Options, step: Step) -> Iterator[Row]:
    """The append without and with tracing, then a row a hop: its p50 and p99, and its share of the mean append."""
    for inflight in options.inflight or (1,):
        yield from _traced(options, step, inflight)


def _traced(options: Options, step: Step, inflight: int) -> Iterator[Row]:
    load = Load(inflight, options.size_bytes, options.duration_s)
    row = partial(_row, options, inflight)
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(target(options))
        with traced(options.folder) as folder:
            watched = stack.enter_context(target(options))
            systems: dict[str, Target] = {_PLAIN: plain, _TRACED: watched}
            runs = {name: partial(system.run, "append_load", load, Round) for name, system in systems.items()}
            rounds = in_turns(options, step, f"append, {inflight} in flight", runs)
            marks = read_marks(folder)
        slower = ratio(rounds[_TRACED], rounds[_PLAIN], lambda one: one.p50_ms or 0.0)
        yield row(_PLAIN, rounds[_PLAIN], {})
        details: dict[str, Any] = {"p50_to_untraced": slower, "rate": ratio(rounds[_TRACED], rounds[_PLAIN], rate)}
        yield row(_TRACED, rounds[_TRACED], details)
    hops = budget(marks, options.replicas // 2 + 1, inflight)
    if not hops:
        raise Unavailable(
            f"no batch of {inflight} appends was seen on its whole way: make the rounds longer with --duration-s"
        )
    for hop in hops:
        told = row("append-hop", None, {"share": hop.share, "hop": hop.name})
        yield msgspec.structs.replace(told, p50_ms=round(hop.p50_us / 1e3, 4), p99_ms=round(hop.p99_us / 1e3, 4))


def _row(options: Options, inflight: int, bench: str, rounds: list[Round] | None, details: dict[str, Any]) -> Row:
    return msgspec.structs.replace(row_of(options, bench, inflight, rounds, details), size_bytes=options.size_bytes)
