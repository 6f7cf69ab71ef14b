"""`Handle.pause` and `Handle.resume`, as one execution obeys them. Pure.

A pause holds until a message ends it: a request to resume, or to cancel. While it holds no other message is delivered,
and a body that continues as new waits with that, so the next execution never begins in a pause.
"""

from __future__ import annotations

from collections.abc import Iterable

from boki.libs.bokiflow.inbox import Letter
from boki.libs.bokiflow.records import CancelRequested, Note, Paused, Resumed


class Pause:
    """Whether a workflow is paused, by the messages that it was given."""

    def __init__(self) -> None:
        self.reason = ""
        """Why it is paused; "": it is not."""

    def hear(self, note: Note) -> None:
        """The workflow is given this message."""
        if isinstance(note, Paused):
            self.reason = note.reason or "by request"
        elif isinstance(note, Resumed | CancelRequested):
            self.reason = ""

    def holds(self, letters: Iterable[Letter]) -> bool:
        """Whether these messages have to wait: it is paused, and none of them ends that. One that does ends it now."""
        if self.reason and any(isinstance(letter.note, Resumed | CancelRequested) for letter in letters):
            self.reason = ""
        return bool(self.reason)
