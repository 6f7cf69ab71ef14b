"""Whether the code of a workflow still does what a recorded one did: a replay that carries out nothing.

What the code reads of a store or of the log is not in the journal. If it was recorded beside that, the replay continues
behind the read. Else it ends there, and what was recorded after it is not checked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from boki.extending import Function
from boki.libs.bokiflow.body import Body
from boki.libs.bokiflow.gates.records import Admission
from boki.libs.bokiflow.inbox import Letter, heard_of, letter_of
from boki.libs.bokiflow.joins import JoinRecord
from boki.libs.bokiflow.loop import FlowFuture
from boki.libs.bokiflow.machine import Machine
from boki.libs.bokiflow.reads import KnownWay, NotRecordedError, Reads
from boki.libs.bokiflow.recorded import NO_PAYLOAD, Recorded
from boki.libs.bokiflow.records import CODEC, CancelRequested
from boki.libs.bokiflow.refusals import Diverged, NoThread, diverged
from boki.libs.bokiflow.replaying import Runnable, between_tasks, join, prepared, replay


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What a check has found."""

    diverged: Diverged | None
    """How the code diverges from what is recorded; None: it does not, as far as that was checked."""
    replayed: int
    """Records of the journal that were replayed."""
    recorded: int
    """Records of the journal."""
    unread: str
    """What the code reads at the point where the check ended, because the file does not hold it; "": it did not."""

    @property
    def is_whole(self) -> bool:
        """Whether all was checked, or a divergence was found before."""
        return self.diverged is not None or not self.unread


async def check(workflow: Runnable, recorded: Recorded) -> Checked:
    """Replay what is recorded with this code.

    Steps are not run, and their recorded outcomes are what the code gets. `InvalidArgument` if the payload that is
    recorded, or that none is, does not fit the code.
    """
    history = recorded.history()
    begun_with = history.continued.payload if history.continued is not None else recorded.payload
    arguments = Function.of(workflow).arguments(begun_with or NO_PAYLOAD)
    letters = _letters(recorded)
    requests = history.requests(recorded.invocation)
    if not history.has_begun and _never_began(letters, requests, has_ended=history.has_ended):
        return Checked(diverged=None, replayed=0, recorded=0, unread="")
    body = Body(history.scopes(recorded.invocation), recorded.id, recorded.book, workflow.fn, arguments)
    _join(body, recorded)
    machine, context = prepared(body, workflow.name, history, recorded.invocation)
    reads = recorded.reads or Reads(end=0)
    way = KnownWay(recorded.book, reads)

    def hand_over(letter: Letter) -> None:
        machine.deliver(*letter)

    def all_of_it() -> Iterator[None]:
        yield from replay(machine, history, letters, 0, context, hand_over)
        while letters and not machine.is_over:  # behind the last record: nothing had to be recorded after them
            hand_over(letters.popleft())
            while machine.is_reading:
                yield

    def run() -> Checked:
        unread = ""
        for _ in all_of_it():
            unread = _answer(machine, way, reads.end)
            if unread:
                break
        if isinstance(machine.halted, NoThread):
            raise machine.halted
        found = machine.diverged
        if found is None and not unread and recorded.has_ended and not machine.is_over:
            waits = ", ".join(map(str, machine.open_commands)) or "a timer or a message"
            found = diverged(workflow.name, "the end of the workflow", f"waits for {waits}")
        return Checked(diverged=found, replayed=machine.replayed, recorded=len(history.entries), unread=unread)

    try:
        return await between_tasks(run)
    finally:
        machine.put_away()


def _answer(machine: Machine, way: KnownWay, end: int) -> str:
    """Answer what the body asks, as its execution would; what it reads if the file does not hold it."""
    position, questions = machine.position, machine.take_questions()
    if not (position.recorded or position.seqnum):
        if not end:
            return str(questions[0][0].subject)
        position.choose(end)
    at = max(position.recorded or position.seqnum, machine.seen_at)
    answers: list[tuple[FlowFuture[Any], Any, Exception | None]] = []
    for question, future in questions:
        try:
            answers.append((future, *way.answer(question, at)))
        except NotRecordedError:
            return str(question.subject)
    machine.answer(answers)
    return ""


def _never_began(letters: Iterable[Letter], requests: frozenset[str], *, has_ended: bool) -> bool:
    """Whether a limit did not let it begin, or it was cancelled while it waited for its turn: its journal says then
    that it has ended.
    """
    notes = [letter.note for letter in letters]
    decided = [note for note in notes if isinstance(note, Admission)]
    if any(not requests.isdisjoint(dict(note.refused)) for note in decided):
        return True
    is_cancelled = has_ended and any(isinstance(note, CancelRequested) for note in notes)
    return is_cancelled and all(requests.isdisjoint(note.admitted) for note in decided)


def _join(body: Body, recorded: Recorded) -> None:
    """Have it work in the transaction of its parent, if it has joined that."""
    first = CODEC.own(recorded.inbox[0].data) if recorded.inbox else None
    if isinstance(first, JoinRecord):
        join(body, first.base)


def _letters(recorded: Recorded) -> deque[Letter]:
    """The messages that the recorded workflow was given or has waiting."""
    history = recorded.history()
    letters: deque[Letter] = deque()
    for one in recorded.inbox:
        letter = letter_of(one.data, one.seqnum, one.time_us)
        if letter is None or letter.seqnum <= history.cursor or letter.seqnum in history.taken:
            continue
        if (heard := heard_of(letter, history.forgotten, history.lives)) is not None:
            letters.append(heard)
    return letters
