"""Whether the code of a workflow still does what a recorded one did: a replay that carries out nothing."""

from __future__ import annotations

from collections import deque
from typing import Final

from boki.extending import Function, Payload
from boki.libs.bokiflow.body import Body
from boki.libs.bokiflow.inbox import Letter, is_forgotten, letter_of
from boki.libs.bokiflow.recorded import Recorded
from boki.libs.bokiflow.refusals import Diverged, diverged
from boki.libs.bokiflow.replaying import Runnable, between_tasks, prepared, replay

_NO_PAYLOAD: Final = Payload("bytes", b"")


async def check(workflow: Runnable, recorded: Recorded) -> Diverged | None:
    """How this code diverges from what is recorded; None: it does not.

    The code runs up to the end of the record, or to where it first reads a store or a LogBook, which are not in the
    file. Steps are not run, and their recorded outcomes are what the code gets.
    `InvalidArgument` if the payload that is recorded, or that none is, does not fit the code.
    """
    history = recorded.history()
    begun_with = history.continued.payload if history.continued is not None else recorded.payload
    arguments = Function.of(workflow).arguments(begun_with or _NO_PAYLOAD)  # type: ignore[arg-type]
    letters = _letters(recorded)
    body = Body(history.scopes(recorded.invocation), recorded.id, recorded.book, workflow.fn, arguments)
    machine, context = prepared(body, workflow.name, history)

    def run() -> Diverged | None:
        def hand_over(letter: Letter) -> None:
            machine.deliver(*letter)

        for _ in replay(machine, history, letters, 0, context, hand_over):
            return machine.diverged  # it reads the log, which is not here: so far it does what is recorded
        while letters and not machine.is_over and not machine.is_reading:
            hand_over(letters.popleft())  # behind the last record: nothing had to be recorded after them
        if machine.is_reading:
            return machine.diverged
        if machine.diverged is not None:
            return machine.diverged
        if recorded.has_ended and not machine.is_over:
            waits = ", ".join(map(str, machine.open_commands)) or "a timer or a message"
            return diverged(workflow.name, "the end of the workflow", f"waits for {waits}")
        return None

    try:
        return await between_tasks(run)
    finally:
        machine.put_away()


def _letters(recorded: Recorded) -> deque[Letter]:
    """The messages that the recorded workflow was given or has waiting."""
    history = recorded.history()
    taken = frozenset(history.continued.taken if history.continued is not None else ())
    letters: deque[Letter] = deque()
    for one in recorded.inbox:
        letter = letter_of(one.data, one.seqnum, one.time_us)
        if letter is None or letter.seqnum <= history.cursor or letter.seqnum in taken:
            continue
        if not is_forgotten(letter, history.forgotten):
            letters.append(letter)
    return letters
