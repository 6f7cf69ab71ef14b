"""Links between nodes: delay, loss, repetition, reordering, and partitions in one direction or both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import log
from typing import Any

from msgspec import Struct

from boki.verify.sim.clockwork import Clockwork


class Network:
    """Directed links by pairs of names. Messages of one pair keep their order unless `reorder` is drawn."""

    def __init__(self, clock: Clockwork, link_us: int, rates: Mapping[str, float]) -> None:
        self._clock = clock
        self._rng = clock.network_rng
        self._link_us = link_us
        self._loss = rates.get("loss", 0.0)
        self._repeat = rates.get("repeat", 0.0)
        self._reorder = rates.get("reorder", 0.0)
        self._delay = rates.get("delay", 0.0)
        self._cuts: dict[tuple[str, str], int] = {}
        self._last_us: dict[tuple[str, str], int] = {}
        self.sent_count = 0
        self.withheld: dict[tuple[str, str], type] = {}
        """Per link, messages of what type do not come through."""

    def cut(self, sources: Iterable[str], targets: Iterable[str]) -> list[tuple[str, str]]:
        """Let nothing through in this direction until `mend` is given what this returns."""
        targets = list(targets)
        pairs = [(source, target) for source in sources for target in targets if source != target]
        for pair in pairs:
            self._cuts[pair] = self._cuts.get(pair, 0) + 1
        return pairs

    def mend(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Take a cut back."""
        for pair in pairs:
            if self._cuts.get(pair, 0) > 1:
                self._cuts[pair] -= 1
            else:
                self._cuts.pop(pair, None)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing goes through now."""
        return (source, target) in self._cuts

    def heal(self) -> None:
        """All links are good from now on."""
        self._loss = self._repeat = self._reorder = self._delay = 0.0
        self._cuts.clear()
        self.withheld.clear()

    def send(self, source: str, target: str, deliver: Callable[..., None], *arguments: Any) -> None:
        """Bring something to its target, or not."""
        self.sent_count += 1
        pair = (source, target)
        if pair in self._cuts:
            self._tell(pair, arguments, "meets a cut")
            return
        if self.withheld and any(isinstance(each, self.withheld.get(pair, ())) for each in arguments):
            self._tell(pair, arguments, "is withheld")
            return
        if self._loss and self._rng.random() < self._loss:
            self._tell(pair, arguments, "is lost")
            return
        self._bring(pair, deliver, arguments)
        if self._repeat and self._rng.random() < self._repeat:
            self._tell(pair, arguments, "is sent twice")
            self._bring(pair, deliver, arguments)

    def _bring(self, pair: tuple[str, str], deliver: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        random, clock = self._rng.random, self._clock
        delay_us = int(self._link_us * (0.3 - log(1.0 - random())))
        if self._delay and random() < self._delay:
            delay_us += int(random() ** 3 * 2_000_000)
            self._tell(pair, arguments, "is delayed")
        if not (self._reorder and random() < self._reorder):
            arrives_us = clock.now_us + delay_us
            last_us = self._last_us.get(pair, 0)
            if arrives_us < last_us:
                delay_us += last_us - arrives_us
            else:
                self._last_us[pair] = arrives_us
        clock.after(delay_us, self._arrive, pair, deliver, arguments)

    def _arrive(self, pair: tuple[str, str], deliver: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if pair not in self._cuts:
            deliver(*arguments)
        else:
            self._tell(pair, arguments, "is cut off on its way")

    def _tell(self, pair: tuple[str, str], arguments: tuple[Any, ...], what: str) -> None:
        message = next((each for each in arguments if isinstance(each, Struct)), None)
        self._clock.note(f"{pair[0]} > {pair[1]}: {type(message).__name__} {what}", message)
