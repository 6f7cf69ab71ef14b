"""Points of the check-list of a promise machine (C1 to C3, C6, C11, C12), each with its safeguard switched off.

In small simulated runs first, and then where no simulated run comes: promises that are settled from outside, and a
gateway with sockets. See docs/simulation.md; the other points have their ablations in `tests.verify.sim`.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from boki.engine.watches import Watches
from boki.errors import BokiError
from boki.gateway.server import listener
from boki.libs.bokiflow.loop import FlowFuture
from boki.libs.bokiflow.mailbox import Mailbox
from boki.libs.bokiflow.records import Resolved
from boki.verify.sim.call_promises import THE_DEAD_SLEEP
from boki.verify.sim.options import Options
from boki.verify.sim.simulation import simulate
from boki.verify.sim.stranded import CALLERS_ARE_TOLD, SLEEPERS_WAKE
from boki.verify.sim.strangers import NOT_TOLD, strangers_of
from boki.verify.sim.stray_alarms import ONLY_SLEEPERS
from boki.verify.sim.subscriptions import SETTLED
from tests.gateway.test_server import test_without_the_token_nothing_but_the_probes_answers as check_token
from tests.libs.bokiflow.classes import Case, messages
from tests.libs.bokiflow.modes import MODES
from tests.verify.sim.ablations import ABLATIONS
from tests.verify.sim.call_ablations import draw_sleepers
from tests.verify.sim.without import without


def _forgetful_promise(self: Mailbox, name: str) -> FlowFuture[Any]:
    """The promise of that name, to which whoever asks subscribes, though it may have been kept before."""
    return self._promises.setdefault(name, self._loop.create_future())


def _offer_again(self: Mailbox, seqnum: int, note: Any) -> None:
    """A promise that has a value takes another one."""
    if isinstance(note, Resolved) and note.name in self._promises:
        self._promises[note.name] = self._loop.create_future()
    _offer(self, seqnum, note)


_offer = Mailbox._offer
SLEEPY = Options(seed=2, clients=1, engines=2, chaos_us=2_000_000, calls=3, call_sleep=1.0)
"""A run in which what some calls wait for is there before they are suspended."""
TROUBLED = draw_sleepers(1)
"""A run in which some calls are cancelled while they are suspended."""
CALM = Options(seed=4, clients=1, engines=2, chaos_us=2_000_000, flows=2)


@pytest.mark.parametrize(
    ("options", "safeguard", "promise"),
    [
        (TROUBLED, "end of alarms", ONLY_SLEEPERS),
        (TROUBLED, "subscriptions beside a time", SLEEPERS_WAKE),
        (TROUBLED, "word of ends", CALLERS_ARE_TOLD),
        (TROUBLED, "resumption of the living", THE_DEAD_SLEEP),
        (SLEEPY, "wake-ups that came first", SETTLED),
        (CALM, "the token", NOT_TOLD),
    ],
    ids=["C1", "C2", "C3", "C6", "C11", "C12"],
)
def test_in_simulated_runs_its_own_checker_notices(options: Options, safeguard: str, promise: str) -> None:
    """Nothing with the safeguard, and this promise without."""
    assert simulate(options).violations == []
    with ABLATIONS[safeguard]():
        assert promise in {each.promise for each in simulate(options).violations}


def test_c12_over_the_seeds_each_route_meets_each_stranger() -> None:
    """In the same order with each seed a route was always asked by the same one of them."""
    met = [set(askers) for askers in zip(*(islice(strangers_of(seed), 20) for seed in range(3)), strict=True)]
    assert met == [set(islice(strangers_of(0), 3))] * 20
    assert len(met[0]) == 3


def test_c11_a_subscription_that_is_never_ended_is_noticed() -> None:
    """Also one that was taken in time, if its record comes and does not end it."""
    with without(Watches, "on_applied", lambda _self, _rows: []):
        texts = [str(each) for each in simulate(SLEEPY).violations if each.promise == SETTLED]
    assert "still waits for" in "".join(texts)


@pytest.mark.parametrize(
    ("name", "safeguard", "run"),
    [
        ("promise", _forgetful_promise, messages.a_promise_that_was_settled_before_the_body_came_to_it),
        ("_offer", _offer_again, messages.the_first_value_of_a_promise_counts),
    ],
)
def test_c11_a_promise_that_was_settled_takes_nothing_more(name: str, safeguard: Any, run: Any) -> None:
    """Neither one that waits for it as if it were open, nor another value: both are noticed."""
    case = Case("Resonate C11", run, crashes=False, clusters=False, races=False)
    MODES[0].run(case)
    with without(Mailbox, name, safeguard), pytest.raises((AssertionError, BokiError)):
        MODES[0].run(case)


def test_c12_nothing_is_told_without_the_token() -> None:
    """A gateway that lets everybody in is noticed."""
    check_token("Bearer wrong")
    with (
        without(listener.Gateway, "_authorize", lambda _self, _request: None),
        pytest.raises((AssertionError, KeyError)),
    ):
        check_token("Bearer wrong")
