"""A core that says that it rests has nothing to do at a tick: shells may leave that out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from boki.engine.core import EngineCore
from boki.protocol.beats import EARLY_US
from boki.protocol.effects import Effect, Resting, Send, Store, Trace
from boki.protocol.messages import AppendEntry, Metalog, StoreCheckpoint
from boki.sequencer.core import SequencerCore
from boki.storage.core import StorageCore
from boki.verify.sim.options import draw_options
from boki.verify.sim.simulation import simulate

SEEDS = (0, 1, 2, 7, 8, 12)
"""In the last three of them a backup lacks entries while its primary has nothing else to do."""


def is_of_a_checkpoint(effect: Effect) -> bool:
    """An engine begins one when members have changed, and that is in no hurry."""
    is_sent = isinstance(effect, Send) and isinstance(effect.message, StoreCheckpoint)
    return is_sent or isinstance(effect, Store | Trace)


def is_of_an_idle_primary(effect: Effect) -> bool:
    """It repeats how far it is at any tick, from a quarter of a second on."""
    return isinstance(effect, Send) and isinstance(effect.message, AppendEntry | Metalog) and not effect.message.entries


NOT_NEEDED = {EngineCore: is_of_a_checkpoint, SequencerCore: is_of_an_idle_primary}


def watched(kind: type[Any], rested: Counter[str]) -> Callable[[Any, int], Iterable[Effect]]:
    original = kind.tick

    def tick(core: Any, now_us: int) -> Iterable[Effect]:
        assert isinstance(core, Resting)
        rests = core.rests_until(now_us) > now_us + EARLY_US
        rested[kind.__name__] += rests
        effects = list(original(core, now_us))
        needed = [effect for effect in effects if kind not in NOT_NEEDED or not NOT_NEEDED[kind](effect)]
        assert not rests or not needed, f"{kind.__name__} rests, and wants {needed}"
        return effects

    return tick


def test_whoever_rests_does_nothing_at_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole clusters with faults: what raises in a core is a violation of its run."""
    rested: Counter[str] = Counter()
    for kind in (StorageCore, SequencerCore, EngineCore):
        monkeypatch.setattr(kind, "tick", watched(kind, rested))
    for seed in SEEDS:
        assert not simulate(draw_options(seed)).violations
    assert min(rested[kind.__name__] for kind in (StorageCore, SequencerCore, EngineCore)) > 20, rested
