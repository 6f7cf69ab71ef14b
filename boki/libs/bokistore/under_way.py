"""Commits of one process that are under way: its transactions line up behind them instead of meeting them as conflicts.

What a transaction is about to change is known here before the log has it. Another one of the process that would read
that waits for the commit, since the value that it can see now would be wrong at its own place in the log. One that
would commit on top of it waits, too, and continues from its result. All of this is advice: what a transaction that did
not wait has seen is still decided by the conditions of its append. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from boki.libs.bokistore.drafts import Draft, is_same_outcome
from boki.libs.bokistore.views import Outcome, View

Action = Callable[[View], Any]
"""The answer of a query, or the result of an update, on a version of an object."""
LONGEST_LINE: Final = 2
"""Maximum number of commits that a transaction waits for; behind more it takes its chance at once."""


class Commit:
    """One commit under way. `drafts` are those of its transaction, also after they were moved to newer versions."""

    def __init__(self, drafts: Mapping[str, Draft], nonce: bytes, awaited: Mapping[bytes, Outcome | None]) -> None:
        self.drafts = drafts
        self.nonce = nonce
        self._awaited = awaited

    @property
    def is_over(self) -> bool:
        """Whether it was given up, or its record was read: by any reader of the process, maybe before its answer."""
        return self._awaited.get(self.nonce, self) is not None

    def changes(self, name: str, action: Action) -> bool:
        """Whether an action on the object comes to something else once this is committed."""
        draft = self.drafts[name]
        after = View(draft.value, draft.size_bytes)
        return not is_same_outcome(action(draft.base), action(after))


Behind = Sequence[tuple[str, Commit]]
"""Commits to wait for, each with the object that it changes."""


class UnderWay:
    """The commits under way in one book, by the objects that they change, in the order in which they began."""

    def __init__(self, awaited: dict[bytes, Outcome | None]) -> None:
        """`awaited` is that of the rows: what has become of writes of this process, by nonce."""
        self._awaited = awaited
        self._commits: dict[str, list[Commit]] = {}

    def enter(self, drafts: Mapping[str, Draft], nonce: bytes) -> tuple[Commit, Behind]:
        """Begin a commit; those that it should wait for, because they change what it has read or written."""
        behind = _short([(name, commit) for name in drafts for commit in self._commits.get(name, ())])
        self._awaited[nonce] = None
        own = Commit(drafts, nonce, self._awaited)
        for name, draft in drafts.items():
            if draft.updates:
                self._commits.setdefault(name, []).append(own)
        return own, behind

    def leave(self, commit: Commit) -> None:
        """It is decided, or was given up."""
        self._awaited.pop(commit.nonce, None)
        for name in commit.drafts:
            others = self._commits.get(name, [])
            if commit in others:
                others.remove(commit)
                if not others:
                    del self._commits[name]

    def changing(self, name: str, action: Action) -> Behind:
        """Those after which an action on the object would come to something else."""
        return _short([(name, commit) for commit in self._commits.get(name, ()) if commit.changes(name, action)])


def _short(behind: Behind) -> Behind:
    """What to wait for: nothing where many want the same, since most of them end without a record that would wake."""
    return behind if len(behind) <= LONGEST_LINE else []
