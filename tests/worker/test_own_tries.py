"""Which of the calls that its functions start a worker tries by itself, and with what."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from boki.api.function import Function
from boki.libs.bokiflow import Workflow, workflow
from boki.protocol.calls import ATTENDS, PINNED, Call, ChosenId, Payload
from boki.worker.frames import Accepted, is_try_of, ticket_of_try
from boki.worker.own_tries import OwnTries

WORKER = 3
CALLER = Call("1" * 32, "calls", Payload("json", b""), "mine", 60_000_000, run=1, attempt=1)


HAS_HELPED = Accepted(1, "0" * 32, None, Payload("json", b"3"), True)
OF_ANOTHER = msgspec.structs.replace(HAS_HELPED, has_taken_try=False)
NO_RESULT = msgspec.structs.replace(HAS_HELPED, result=None)
"""What the engine answers to a start."""


@workflow(book="b", run_timeout_s=2)
async def computes(n: int) -> int:
    return n


@workflow(concurrency=1)
async def narrow(n: int) -> int:
    return n


def known(*workflows: Workflow[int, int]) -> dict[str, Function]:
    return {one.name: Function.of(one) for one in workflows}


def a_start(function: str, **chosen: object) -> Call:
    how = ChosenId("s", **({"attributes": {PINNED: 0}} | chosen))  # type: ignore[arg-type]
    return Call("0" * 32, function, Payload("json", b"3"), "", 60_000_000, caller_book="mine", chosen=how)


def begin(own: OwnTries, request: int, call: Call, caller: Call = CALLER) -> int:
    """Try the call, if it is worth that; the ticket."""
    if ticket := own.ticket_for(caller, request, call):
        own.begin(ticket, call)
    return ticket


def tries(begun: dict[int, Call], clock: Callable[[], float] = lambda: 0.0) -> OwnTries:
    found = OwnTries(WORKER, begun.__setitem__, clock)
    found.functions = known(computes, narrow)
    return found


def test_a_start_is_tried_as_the_engine_would_have_it_tried() -> None:
    """With the book, the time and the run that the call would have; under a ticket of this worker."""
    begun: dict[int, Call] = {}
    own = tries(begun)
    ticket = own.ticket_for(CALLER, 7, a_start("computes"))
    assert not begun, "it is not known yet whether the request can be sent"
    own.begin(ticket, a_start("computes"))
    assert ticket == ticket_of_try(WORKER, 7) and is_try_of(WORKER, ticket) and not is_try_of(WORKER + 1, ticket)
    assert begun == {
        ticket: msgspec.structs.replace(
            a_start("computes"), book="b", caller_book="", timeout_us=2_000_000, run=1, attempt=1, is_tried=True
        )
    }


@pytest.mark.parametrize(
    "call",
    [
        a_start("elsewhere"),
        a_start("narrow"),
        a_start("computes", attributes={}),
        a_start("computes", attributes={PINNED: 0, ATTENDS: "query"}),
        a_start("computes", copies="1" * 32),
        msgspec.structs.replace(a_start("computes"), chosen=None),
    ],
)
def test_what_is_left_to_the_engine(call: Call) -> None:
    """Functions of other workers, or whose concurrency it counts; calls that run no body, or with another's payload."""
    begun: dict[int, Call] = {}
    assert tries(begun).ticket_for(CALLER, 1, call) == 0
    assert not begun


def test_a_worker_has_few_tries_at_once() -> None:
    """The engine has other workers for the rest. One whose body is over makes room."""
    begun: dict[int, Call] = {}
    own = tries(begun)
    tickets = [begin(own, request, a_start("computes")) for request in range(10)]
    assert all(tickets[:8]) and tickets[8:] == [0, 0]
    own.answered("computes", HAS_HELPED)
    assert not begin(own, 11, a_start("computes"))
    own.ended()
    assert begin(own, 12, a_start("computes"))


@pytest.mark.parametrize(("run", "attempt", "is_tried"), [(0, 0, True), (9, 1, True), (1, 2, False), (9, 2, False)])
def test_a_caller_whose_last_run_was_lost_tries_nothing(run: int, attempt: int, is_tried: bool) -> None:
    """Maybe a try has ended the process: it must not end every run of the caller. Runs after a suspension are new."""
    caller = msgspec.structs.replace(CALLER, run=run, attempt=attempt)
    assert bool(begin(tries({}), 1, a_start("computes"), caller)) == is_tried


def test_a_function_whose_tries_did_not_help_rests_for_a_while() -> None:
    """After three in a row, for ten seconds; one that helped makes good for those before it. A result helps if it is
    that of this try: a call of another version is always tried elsewhere.
    """
    begun: dict[int, Call] = {}
    now_s = 100.0
    own = tries(begun, lambda: now_s)
    for number, answer in enumerate((NO_RESULT, OF_ANOTHER, HAS_HELPED, NO_RESULT, OF_ANOTHER, OF_ANOTHER)):
        assert begin(own, number, a_start("computes"))
        own.ended()
        own.answered("computes", answer)
    assert not begin(own, 7, a_start("computes"))
    now_s = 109.9
    assert not begin(own, 7, a_start("computes"))
    now_s = 110.0
    assert begin(own, 7, a_start("computes"))
