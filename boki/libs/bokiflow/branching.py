"""Where a workflow can be rewound to or forked from, and what of its history goes with it. Pure.

A step is named by the number of its command, as `boki flow show` prints it. That command and all with higher numbers
are forgotten, and what was recorded before them is kept. So a step is refused beside which others ran that began before
it and ended after it: they would be forgotten, too, and the user has not named them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from boki import InvalidArgument
from boki.libs.bokiflow.digests import digest_of
from boki.libs.bokiflow.gates.records import Admission, reason_of
from boki.libs.bokiflow.history import History, cut_at, number_of
from boki.libs.bokiflow.inbox import Letter
from boki.libs.bokiflow.records import (
    CancelRequested,
    Done,
    Entry,
    Fired,
    Paused,
    Resumed,
    Rewound,
    encode_entry,
    encode_note,
)

_SHOWN = 12


class Branch(NamedTuple):
    """A point of a history."""

    n: int
    """The first command that is done again."""
    cut: int
    """How many entries are kept."""
    scopes: tuple[tuple[int, str], ...]
    opens: tuple[tuple[str, tuple[int, ...]], ...]
    """See `boki.libs.bokiflow.records.Rewound`."""


def branch_at(history: History, wanted: int | None, run: str, scope: str, *, is_fork: bool) -> Branch:
    """The point in front of command `wanted`; None: in front of the last one that failed, else at the end.

    `run` has the history, and `scope` is that of the commands which are to be done again.
    """
    ended = {entry.fact.n: entry for entry in history.entries if isinstance(entry.fact, Done | Fired)}
    end = max(ended, default=-1) + 1
    failed = [n for n, entry in ended.items() if isinstance(entry.fact, Done) and entry.fact.result.failure is not None]
    n = wanted if wanted is not None else max(failed, default=end)
    if n != end and n not in ended:
        raise InvalidArgument(_unknown(n, sorted(ended), end), field="step", steps=sorted(ended))
    cut = cut_at(history.entries, n)
    numbers = [number for entry in history.entries[cut:] if (number := number_of(entry.fact)) is not None]
    beside = sorted({number for number in numbers if number < n})
    if beside:
        raise InvalidArgument(
            f"step {n} ran at the same time as {_listed(beside)}, which ended after it: name step {beside[0]}, so that "
            "all of them are done again",
            field="step",
            beside=beside,
        )
    _check_locks(history.entries[:cut], n)
    old = history.scopes(run)
    scopes = (*(part for part in old.parts if part[0] < n or not part[0]), (n, scope))
    if is_fork:  # what has no end on record the first workflow runs, or may run again: its keys are not for two
        opens = [(scope, tuple(number for number in range(n) if number not in ended))]
    else:
        opens = [(known, tuple(number for number in those if number < n)) for known, those in old.opens]
    return Branch(n, cut, scopes, tuple(one for one in opens if one[1]))


def _check_locks(kept: Sequence[Entry], n: int) -> None:
    """Refuse a point at which a lock is held: nothing says that it is still held, or by whom."""
    held: dict[str, int] = {}
    for entry in kept:
        if isinstance(entry.fact, Done):
            verb, _, key = entry.fact.name.partition(" ")
            if verb not in ("lock", "unlock") or entry.fact.digest != digest_of((key,), {}, entry.fact.name):
                continue  # a step or a call may have such a name
            if verb == "lock":
                held[key] = entry.fact.n
            else:
                held.pop(key, None)
    for key, taken in held.items():
        raise InvalidArgument(
            f"step {n} is inside of the lock {key}, which step {taken} has taken: name step {taken}, so that it is "
            "taken again",
            field="step",
            lock=key,
        )


def _unknown(n: int, steps: Sequence[int], end: int) -> str:
    if not steps:
        return f"there is no step {n}: nothing has ended yet, or not since the workflow was continued as new"
    return f"there is no step {n} that has ended: there are {_listed(steps)}, and {end} is behind the last one"


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return shown if len(numbers) <= _SHOWN else f"{shown} … {numbers[-1]}"


def rewound(branch: Branch, *, history: History, writer: int, life: int, at_us: int) -> bytes:
    """The record that has a journal continue from the point; it goes to the journal's next place."""
    kept = history.entries[: branch.cut]
    seen = kept[-1].seen if kept else history.cursor
    fact = Rewound(branch.n, branch.scopes, branch.opens)
    began_us = 0 if history.has_begun else at_us
    return encode_entry(Entry(writer, history.place, seen, at_us, fact, began_us, life))


def keeps_step(history: History, branch: Branch) -> bool:
    """Whether a fork at the point is under way: it keeps a step, a timer or a call. Else it asks its limit to begin."""
    return any(number_of(entry.fact) is not None for entry in history.entries[: branch.cut])


def letters_for(history: History, branch: Branch, letters: Sequence[Letter]) -> list[Letter]:
    """The messages that the kept part of the history was given, or has waiting. A pause is no part of it: it was for
    the workflow that it was sent to.
    """
    seen = history.entries[branch.cut - 1].seen if branch.cut else 0
    return [one for one in letters if one.seqnum <= seen and not isinstance(one.note, Paused | Resumed)]


def copied_letter(letter: Letter, requests: Collection[str]) -> bytes:
    """The record of a message in the inbox of a fork: it reads as it did where it came from.

    `requests`: under what names a limit knew the workflow there. The fork has another name, so a decision that has
    cancelled the workflow becomes a request to cancel.
    """
    note = letter.note
    if isinstance(note, Admission) and (why := reason_of(note, requests)) is not None:
        note = CancelRequested(why)
    elif isinstance(note, CancelRequested):
        note = CancelRequested(note.reason)  # it names a life of the workflow there
    return encode_note(note, letter.time_us, letter.stood_at or letter.seqnum)


def copied_journal(
    history: History,
    branch: Branch,
    moved: Sequence[tuple[int, int]],
    *,
    writer: int,
    place: int,
    life: int,
    at_us: int,
) -> list[bytes]:
    """The journal of a fork, to stand from that place on. `moved`: where each of the messages stood and stands now."""
    found: list[bytes] = []
    ordered = sorted(moved)
    stood, stands = [then for then, _ in ordered], [0, *accumulate((now for _, now in ordered), max)]
    for number, entry in enumerate(history.entries[: branch.cut]):
        seen = stands[bisect_right(stood, entry.seen)]
        read_at = entry.read_at
        if not number and history.continued is not None:
            read_at = read_at or history.trimmed_to
        copy = msgspec.structs.replace(
            entry,
            writer=writer,
            base=place,
            seen=seen,
            began_us=history.began_us if not number else 0,
            life=life,
            read_at=read_at,
            stood_at=history.seqnums[number],
        )
        found.append(encode_entry(copy))
    fact = Rewound(branch.n, branch.scopes, branch.opens)
    began_us = 0 if keeps_step(history, branch) else at_us
    found.append(encode_entry(Entry(writer, place, stands[-1], at_us, fact, began_us, life)))
    return found


def new_scope(run: str, life: int, place: int) -> str:
    """The scope of the commands that come after a point: no other one is named so."""
    return f"{run}:{life:x}.r{place}"
