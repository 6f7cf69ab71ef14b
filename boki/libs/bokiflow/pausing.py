"""`Handle.pause` and `Handle.resume`, as one execution obeys them. Pure.

A pause holds until a message ends it: a request to resume, or to cancel, also by a limit. While it holds no other
message is delivered, and a body that continues as new waits with that, so the next execution never begins in a pause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from boki.libs.bokiflow.gates.records import Admission, reason_of
from boki.libs.bokiflow.inbox import Letter
from boki.libs.bokiflow.records import CancelRequested, Note, Paused, Resumed


class Pause:
    """Whether a workflow is paused, by the messages that it was given. `requests`: what its limit calls it by."""

    def __init__(self, requests: Collection[str]) -> None:
        self._requests = requests
        self.reason = ""
        """Why it is paused; "": it is not."""

    def hear(self, note: Note) -> None:
        """The workflow is given this message."""
        if isinstance(note, Paused):
            self.reason = note.reason or "by request"
        elif self._is_ended_by(note):
            self.reason = ""

    def holds(self, letters: Iterable[Letter]) -> bool:
        """Whether these messages have to wait: it is paused, and none of them ends that. One that does ends it now."""
        if self.reason and any(self._is_ended_by(letter.note) for letter in letters):
            self.reason = ""
        return bool(self.reason)

    def _is_ended_by(self, note: Note) -> bool:
        if isinstance(note, Admission):
            return reason_of(note, self._requests) is not None
        return isinstance(note, Resumed | CancelRequested)
