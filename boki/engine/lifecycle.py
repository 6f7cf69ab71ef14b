"""The life cycle of an engine that holds the index, as a table."""

from __future__ import annotations

from enum import Enum
from typing import Final

from boki.protocol.effects import Announce, EngineNews


class Stage(Enum):
    """How far one incarnation of an engine has come."""

    STARTING = "starting"
    """It catches up with the metalogs, and opens its shards."""
    READY = "ready"
    CLOSING = "closing"
    """It takes no more appends; those that it has are still ordered."""
    CLOSED = "closed"
    FENCED = "fenced"
    """It was presumed lost, and takes part in nothing any more."""


NEXT: Final[dict[Stage, frozenset[Stage]]] = {
    Stage.STARTING: frozenset({Stage.READY, Stage.CLOSING, Stage.FENCED}),
    Stage.READY: frozenset({Stage.CLOSING, Stage.FENCED}),
    Stage.CLOSING: frozenset({Stage.CLOSED, Stage.FENCED}),
    Stage.CLOSED: frozenset({Stage.FENCED}),
    Stage.FENCED: frozenset(),
}
_NEWS: Final = {
    Stage.READY: EngineNews.READY,
    Stage.CLOSED: EngineNews.CLOSED,
    Stage.FENCED: EngineNews.FENCED,
}


class Lifecycle:
    """One incarnation. Each stage is reached once at most."""

    def __init__(self) -> None:
        self.stage = Stage.STARTING

    @property
    def takes_appends(self) -> bool:
        """Whether it is neither closing nor fenced."""
        return self.stage in (Stage.STARTING, Stage.READY)

    @property
    def is_fenced(self) -> bool:
        """Whether it takes part in nothing any more."""
        return self.stage is Stage.FENCED

    @property
    def awaits(self) -> bool:
        """Whether `settle` may have news: it starts or closes."""
        return self.stage is Stage.STARTING or self.stage is Stage.CLOSING

    def move(self, stage: Stage) -> None:
        """Go to a stage that the table allows."""
        assert stage in NEXT[self.stage], f"an engine that is {self.stage.value} cannot become {stage.value}"
        self.stage = stage

    def close(self) -> None:
        """Take no more appends. Repeatable."""
        if self.takes_appends:
            self.move(Stage.CLOSING)

    def settle(self, *, is_current: bool, is_closed: bool) -> Announce | None:
        """What the shell is to hear: the engine has caught up, or all that it had taken is ordered."""
        if self.stage is Stage.STARTING and is_current:
            self.move(Stage.READY)
        elif self.stage is Stage.CLOSING and is_closed:
            self.move(Stage.CLOSED)
        else:
            return None
        return Announce(_NEWS[self.stage])
