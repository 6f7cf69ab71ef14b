"""Making a failure small: faults off, fewer nodes and clients, less time, as long as the same promise breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from boki.verify.sim.options import Options
from boki.verify.sim.simulation import simulate

_BUDGET: Final = 300
RAISED: Final = "the simulator raised"

Fails = Callable[[Options], str | None]
"""The first promise that the run breaks; None if it keeps all."""


def first_broken(options: Options) -> str | None:
    """The promise that a run breaks first; `RAISED` if it ends in an error that is none of a core's."""
    try:
        violations = simulate(options).violations
    except Exception:  # noqa: BLE001 - a bug of ours, which is to be made small like any other
        return RAISED
    return violations[0].promise if violations else None


def shrink(options: Options, fails: Fails = first_broken, budget: int = _BUDGET) -> tuple[Options, str]:
    """The smallest options found that break the same promise, and that promise. `ValueError` if these break none."""
    promise = fails(options)
    if promise is None:
        raise ValueError(f"seed {options.seed} breaks no promise")
    has_shrunk = True
    while has_shrunk and budget > 0:
        has_shrunk = False
        for smaller in _smaller(options):
            budget -= 1
            if fails(smaller) == promise:
                options, has_shrunk = smaller, True
                break
            if budget <= 0:
                break
    return options, promise


def _smaller(options: Options) -> Iterator[Options]:
    """Options that are a step simpler, the boldest first."""

    def but(**changes: Any) -> Options:
        return msgspec.structs.replace(options, **changes)

    faults = options.faults
    if len(faults) > 3:
        names = sorted(faults)
        half = len(names) // 2
        yield but(faults={name: faults[name] for name in names[:half]})
        yield but(faults={name: faults[name] for name in names[half:]})
    for fault in sorted(faults):
        yield but(faults={name: rate for name, rate in faults.items() if name != fault})
    for scenario in sorted(options.scenarios):
        yield but(scenarios={name: rate for name, rate in options.scenarios.items() if name != scenario})
    if options.chaos_us > 500_000:
        yield but(chaos_us=options.chaos_us // 2)
        yield but(chaos_us=options.chaos_us * 3 // 4)
    for name, least in (
        ("clients", 1),
        ("books", 1),
        ("tags", 1),
        ("engines", 1),
        ("controllers", 1),
        ("logs", 1),
        ("wide", 0),
        ("counted", 0),
        ("calls", 0),
        ("flows", 0),
        ("queues", 0),
        ("stores", 0),
        ("store_work", 1),
        ("queue_shards", 1),
    ):
        if getattr(options, name) > least:
            yield but(**{name: least})
            yield but(**{name: getattr(options, name) - 1})
    if options.queue_crashes:
        yield but(queue_crashes=0.0)
    if options.queue_trouble:
        yield but(queue_trouble=0.0)
    if options.store_crashes:
        yield but(store_crashes=0.0)
    if options.store_trouble:
        yield but(store_trouble=0.0)
    if options.has_decommission:
        yield but(has_decommission=False)
    if options.spare_sequencers:
        yield but(spare_sequencers=0)
    if options.storage > options.replicas:
        yield but(storage=options.replicas)
    for name, weight in sorted(options.mix.items()):
        if weight and sum(options.mix.values()) > weight:
            yield but(mix=options.mix | {name: 0})


def regression(options: Options, promise: str) -> str:
    """A test that runs these options, as the text of a file."""
    fields = msgspec.structs.asdict(options)
    default = msgspec.structs.asdict(Options(seed=options.seed))
    lines = [
        line
        for name, value in fields.items()
        if name == "seed" or value != default[name]
        for line in _argument(name, value)
    ]
    return "\n".join(
        (
            f'"""Seed {options.seed}, shrunk: it broke "{promise}"."""',
            "",
            "from __future__ import annotations",
            "",
            "from boki.verify.sim.options import Options",
            "from boki.verify.sim.simulation import simulate",
            "",
            "OPTIONS = Options(",
            *lines,
            ")",
            "",
            "",
            f"def test_seed_{options.seed}_keeps_every_promise() -> None:",
            f'    """It broke "{promise}" once."""',
            "    assert simulate(OPTIONS).violations == []",
            "",
        )
    )


def _argument(name: str, value: object) -> list[str]:
    """A keyword argument as the formatter would have it, with one entry a line."""
    if not isinstance(value, dict) or not value:
        return [f"    {name}={value!r},"]
    return [f"    {name}={{", *(f'        "{key}": {each!r},' for key, each in value.items()), "    },"]
