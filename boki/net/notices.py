"""What a node's links have to say: in the log once, and counted each time."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

_MAX_KEPT: Final = 1024
_MAX_CHARACTERS: Final = 500
_log = logging.getLogger("boki.net")


@dataclass(slots=True)
class LaneCounts:
    """What one lane of a node has done since it was opened, in messages (`_count`) and bytes."""

    sent_count: int = 0
    sent_bytes: int = 0
    received_count: int = 0
    received_bytes: int = 0
    dropped_count: int = 0
    """Messages that were given up: too many wait for that peer, or there is no such peer."""
    refused_count: int = 0
    """Packs of others that were not taken."""


class Notices:
    """Writes each text to the log once, however often it is said: a peer that is refused continues trying."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._said: set[str] = set()

    def say(self, level: int, text: str) -> None:
        """Log `text`, unless it was logged before. It may hold what a stranger wrote."""
        if text in self._said:
            return
        if len(self._said) >= _MAX_KEPT:
            self._said.clear()
        self._said.add(text)
        _log.log(level, "%s: %s", self._node, text.encode("unicode_escape").decode()[:_MAX_CHARACTERS])
