"""Standing takes in the fold: a push is its own delivery, credit counts once, and nothing is lost with a consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from boki import BokiError
from boki.libs.bokiqueue import sessions
from boki.libs.bokiqueue.callers import Want, Wants
from boki.libs.bokiqueue.groups import BACK, DEAD, LEASED
from boki.libs.bokiqueue.lines import Asked, Demand, Line
from boki.libs.bokiqueue.records import ACK, GIVE_BACK, Credit, Grant, Settle, Take
from boki.libs.bokiqueue.sessions import SESSION_US, SILENT_LEASE_US, SILENT_POP_US, Standing, StandingTakes
from boki.libs.fold.clock import LogClock
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_state import SECOND, Stream

LEASE_US = 60 * SECOND


class Counted(tuple[int, int]):
    """A position and token that counts how often it is compared."""

    __slots__ = ()
    __hash__ = tuple.__hash__
    count = 0

    def __eq__(self, other: object) -> bool:
        Counted.count += 1
        return super().__eq__(other)


class Takers(Stream):
    """A stream with acts that grant credit. Every act says that what came before it was received."""

    def grant(self, taker: bytes = b"me", *, granted: int, since: int = 0, lease_us: int = 0, group: str = "") -> int:
        self.number += 1
        known = self.records[-1][0] + 1
        credit = Credit(group, lease_us, granted, since)
        self.append(Grant(0, taker, self.number, [], [], [], known, [credit]))
        return self.records[-1][0]

    def hear(self, taker: bytes = b"me") -> None:
        """The taker acts, and has received everything."""
        self.act(taker, kept_from=self.records[-1][0] + 1)

    @property
    def handed(self) -> list[tuple[bytes, list[int]]]:
        """What the last record handed out: by taker, positions."""
        return [(one.taker, [each.spot.pos for each in one.deliveries]) for one in self.state.handed]

    def statuses(self) -> dict[int, int]:
        return {pos: aside.status for pos, aside in self.state.groups[""].aside.items()}


def test_a_push_is_its_own_delivery() -> None:
    """To whoever has asked for it in advance, as far as the credit goes; its record is the delivery's token."""
    stream = Takers()
    stream.grant(granted=3)
    seqnum = stream.push(2)
    assert stream.handed == [(b"me", [0, 1])]
    assert [each.token for one in stream.state.handed for each in one.deliveries] == [seqnum, seqnum]
    stream.push(2)
    assert stream.handed == [(b"me", [2])]
    assert stream.take() == [3]


def test_what_is_there_goes_to_new_credit_at_once() -> None:
    """The act that grants is the delivery then; messages that were given back come first."""
    stream = Takers()
    stream.push(3)
    assert stream.take(2) == [0, 1]
    one = Settle("", GIVE_BACK, [(0, stream.token)])
    stream.act(settles=[one], kept_from=stream.token)
    stream.grant(granted=5)
    assert stream.handed == [(b"me", [0]), (b"me", [2])]


def test_credit_is_a_running_total() -> None:
    """An act that comes twice, or late, grants nothing twice; what was handed out meanwhile is not granted again."""
    stream = Takers()
    since = stream.grant(granted=1)
    grant = stream.records[-1][2]
    stream.append(grant)
    stream.push(2)
    assert stream.handed == [(b"me", [0])]
    stream.grant(granted=1, since=since)
    assert stream.handed == []
    stream.grant(granted=2, since=since)
    assert stream.handed == [(b"me", [1])]
    stream.grant(granted=9, since=since + 1)  # of credit that has ended, or never was
    stream.push()
    assert stream.handed == []


def test_takers_have_their_turns() -> None:
    """Who was given something is the last to be given the next; several messages are shared out."""
    stream = Takers()
    for taker in (b"a", b"b"):
        stream.grant(taker, granted=10)
    found = []
    for _ in range(4):
        stream.push()
        found += stream.handed
    assert found == [(b"a", [0]), (b"b", [1]), (b"a", [2]), (b"b", [3])]
    stream.push(6)
    assert stream.handed == [(b"a", [4, 5, 6]), (b"b", [7, 8, 9])]
    stream.push(20)
    assert [(taker, len(positions)) for taker, positions in stream.handed] == [(b"a", 5), (b"b", 5)]
    assert stream.take(100) == list(range(20, 30))


def test_what_is_due_is_handed_out_by_the_next_record() -> None:
    """A delayed message, and one whose lease has run out, fenced by that record."""
    stream = Takers()
    stream.grant(granted=1)
    stream.push(delay_us=5 * SECOND)
    assert stream.handed == []
    stream.now_us += 5 * SECOND
    stream.hear(b"other")
    assert stream.handed == [(b"me", [0])]
    stream.push()
    assert stream.take(lease_s=30) == [1]
    stream.grant(b"waits", granted=1)
    stream.now_us += 31 * SECOND
    stream.fence()
    assert stream.handed == [(b"waits", [1])]


def test_a_lease_that_nobody_heard_of_goes_back_when_its_process_is_gone() -> None:
    """By a fence, and not counted as a delivery: no live consumer ever received it."""
    stream = Takers(max_deliveries=1)
    stream.grant(granted=2, lease_us=LEASE_US)
    stream.push()
    token = stream.token
    stream.now_us += SILENT_LEASE_US - 1
    assert stream.state.standing.unheard("", stream.now_us) == []
    stream.act(b"other", fences=[("", 0, token)])
    assert stream.statuses() == {0: LEASED}
    stream.now_us += 1
    stream.push()
    assert stream.handed == [], "what is gone is given nothing more"
    assert stream.state.standing.unheard("", stream.now_us) == [(0, token)]
    stream.act(b"other", fences=[("", 0, token)])
    assert stream.statuses() == {0: BACK}
    assert stream.take(2, lease_s=60) == [0, 1]
    assert stream.state.groups[""].aside[0].deliveries == 1


def test_a_lease_that_was_heard_of_lasts() -> None:
    """The process acts in time, and then works for as long as its lease is."""
    stream = Takers()
    stream.grant(granted=2, lease_us=LEASE_US)
    stream.push()
    token = stream.token
    stream.now_us += SILENT_LEASE_US - 1
    stream.hear()
    stream.now_us += LEASE_US // 2
    stream.act(b"other", fences=[("", 0, token)])
    assert stream.statuses() == {0: LEASED}
    stream.push()
    assert stream.handed == [(b"me", [1])], "and it is given the next one"
    assert stream.settle(ACK, 0, token)


def test_an_act_that_was_on_its_way_has_heard_of_nothing() -> None:
    """It was made before the message was handed out, so it says nothing of it."""
    stream = Takers()
    stream.grant(granted=1, lease_us=LEASE_US)
    before = stream.token
    stream.push()
    stream.act(kept_from=before + 1)
    stream.now_us += SILENT_LEASE_US
    assert stream.state.standing.unheard("", stream.now_us) == [(0, stream.records[-2][0])]


def test_a_pop_that_nobody_received_is_a_dead_letter_when_its_process_is_gone() -> None:
    """It cannot be given again, since it may have been received; and it is not lost without a word."""
    stream = Takers()
    stream.grant(granted=9)
    stream.push(2)
    stream.now_us += SILENT_POP_US - 1
    stream.hear(b"other")
    assert stream.statuses() == {}
    stream.now_us += 1
    stream.hear(b"other")
    assert stream.statuses() == {0: DEAD, 1: DEAD}
    assert "gone" in stream.state.groups[""].aside[0].reason
    assert stream.state.groups[""].done_count == 0


def test_what_is_left_of_a_pop_whose_process_gave_some_back_is_a_dead_letter_too() -> None:
    """It was given to a standing take before, and still is when its process is gone."""
    stream = Takers()
    stream.grant(granted=2)
    stream.push(2)
    stream.act(settles=[Settle("", GIVE_BACK, [(0, stream.token)])], kept_from=stream.token)
    stream.now_us += SILENT_POP_US
    stream.hear(b"other")
    assert stream.statuses() == {0: BACK, 1: DEAD}


def test_a_pop_that_was_received_is_done() -> None:
    """However silent its process is from then on."""
    stream = Takers()
    stream.grant(granted=2)
    stream.push()
    stream.hear()
    stream.now_us += 2 * SESSION_US
    stream.push()
    assert stream.handed == [], "its credit has ended"
    stream.hear(b"other")
    assert stream.statuses() == {}
    assert not stream.state.standing
    assert stream.state.groups[""].done_count == 1


def test_a_push_is_not_given_to_a_session_that_is_gone() -> None:
    """Nothing that was pushed after the end of a session becomes a dead letter of it: it goes to one that is there."""
    stream = Takers()
    stream.grant(b"gone", granted=9)
    stream.push()
    stream.now_us += SECOND
    stream.grant(b"there", granted=1)
    stream.now_us += SILENT_POP_US - SECOND
    ended_us = stream.now_us
    stream.push()
    assert stream.handed == [(b"there", [1])]
    stream.push()
    assert stream.handed == [], "nobody is there to take it, so it stays"
    stream.hear(b"there")
    dead = [one.spot for one in stream.state.groups[""].aside.values() if one.status == DEAD]
    assert [spot.pos for spot in dead if spot.time_us < ended_us] == [0]
    assert [spot.pos for spot in dead if spot.time_us >= ended_us] == []


def test_messages_of_a_key_are_handed_out_one_at_a_time() -> None:
    """The next one when the one before is done, to whoever waits then."""
    stream = Takers()
    for taker in (b"a", b"b"):
        stream.grant(taker, granted=5, lease_us=LEASE_US)
    stream.push(2, keys=["k", "k"])
    assert stream.handed == [(b"a", [0])]
    stream.settle(ACK, 0, stream.token)
    assert stream.handed == [(b"b", [1])]


@pytest.mark.parametrize("seed", range(40))
def test_a_fold_from_a_checkpoint_hands_out_the_same(seed: int) -> None:
    """Whatever is granted, pushed, heard of, fenced and settled, and however much time passes."""
    rng = Random(seed)
    whole, anew = Takers(max_deliveries=3), Takers(max_deliveries=3, reload_every=3)
    since: dict[tuple[bytes, int], int] = {}
    for _ in range(60):
        step, taker, lease_us = rng.randrange(6), rng.choice((b"a", b"b", b"c")), rng.choice((0, LEASE_US))
        count, later_us = rng.randint(1, 4), rng.choice((0, 0, 1, 3, 20, 400)) * SECOND
        key, delay_us = rng.choice(("", "", "k")), rng.choice((0, 0, 4 * SECOND))
        for stream in (whole, anew):
            stream.now_us += later_us
            if step == 0:
                known = stream.state.standing.find("", taker, lease_us)
                used = known.used if known is not None else 0
                stream.grant(taker, granted=used + count, since=since.get((taker, lease_us), 0), lease_us=lease_us)
            elif step == 1:
                stream.push(count, keys=[key] * count if key else [], delay_us=delay_us)
            elif step == 2:
                stream.hear(taker)
            elif step == 3 and "" in stream.state.groups:
                fences = [*stream.state.groups[""].overdue(stream.now_us, 9)]
                fences += stream.state.standing.unheard("", stream.now_us)
                stream.act(taker, fences=[("", *each) for each in fences])
            elif step == 4 and "" in stream.state.groups:
                leased = [(p, a.token) for p, a in stream.state.groups[""].aside.items() if a.status == LEASED]
                stream.act(taker, settles=[Settle("", ACK, leased[:2])], kept_from=stream.token + 1)
            else:
                stream.take(count)
        assert whole.state.snapshot() == anew.state.snapshot()
        known = whole.state.standing.find("", taker, lease_us)
        since[taker, lease_us] = known.since if known is not None else 0
    group = whole.state.groups.get("")
    if group is not None:
        assert group.cursor == group.done_count + len(group.aside), "each message is done, or somewhere"


def test_fences_of_strangers_cost_no_more_than_they_are() -> None:
    """A record may name 10,000 leases that are not there: each is looked up, and not compared with all that are out.

    With 100,000 messages given to a forged grant, such a record of 60 KB took 20 s, in every process, at each replay.
    """
    stream = Takers()
    stream.grant(b"stranger", granted=1 << 62, lease_us=LEASE_US)
    stream.push(5_000)
    (standing,) = stream.state.standing
    assert len(standing.unheard) == 5_000
    standing.unheard = type(standing.unheard)(Counted(each) for each in standing.unheard)
    before = Counted.count
    stream.act(b"another", fences=[("", 5, token) for token in range(1_000)])
    assert Counted.count - before < 2_000


def credit_that_adds_up() -> Any:
    """Credit that comes again is granted again."""
    heard = StandingTakes.heard

    def adding(self: StandingTakes, taker: bytes, kept_from: int, granted: Any, *rest: int) -> None:
        known = {(one.group, one.lease_us): one.granted for one in self.of(taker)}
        more = [
            msgspec.structs.replace(one, granted=one.granted + known.get((one.group, one.lease_us), 0))
            for one in granted
        ]
        heard(self, taker, kept_from, more, *rest)

    return patch.object(StandingTakes, "heard", adding)


def sessions_that_do_not_end() -> Any:
    """A session that is gone is given messages like any other."""
    return patch.object(Standing, "ends_us", property(lambda self: 1 << 62))


def hands_that_look_at_nobody() -> Any:
    """What comes is given to whoever asked for it, be its process gone or not."""
    return patch.object(Standing, "may_take", lambda self, _now_us: self.granted > self.used)


def silence_that_does_not_count() -> Any:
    """What a session popped and never confirmed stays with it."""
    return patch.object(sessions, "SILENT_POP_US", 1 << 60)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (credit_that_adds_up, test_credit_is_a_running_total),
        (sessions_that_do_not_end, test_a_pop_that_was_received_is_done),
        (sessions_that_do_not_end, test_a_lease_that_nobody_heard_of_goes_back_when_its_process_is_gone),
        (hands_that_look_at_nobody, test_a_push_is_not_given_to_a_session_that_is_gone),
        (silence_that_does_not_count, test_a_pop_that_nobody_received_is_a_dead_letter_when_its_process_is_gone),
    ],
)
def test_a_safeguard_that_is_off_is_noticed(broken: Callable[[], Any], check: Callable[[], None]) -> None:
    """Credit counted twice, a delivery to a session that is gone, and one that was never received."""
    check()
    with broken(), pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize(("pushed", "is_riding", "is_asked"), [(4, True, True), (4, False, False), (6, False, True)])
@asynchronous
async def test_credit_is_renewed_early_only_with_a_push(pushed: int, is_riding: bool, is_asked: bool) -> None:
    """An act alone in its request delays the pushes behind it, so it waits until most of the credit is used."""
    stream = Takers()
    stream.grant(granted=8)
    stream.push(pushed)
    line = Line(0, b"me")
    line.begin(stream.state, 0)
    clock = LogClock(lambda: 0.0)
    wants = Wants(clock)
    for _ in range(8):
        wants.add(Want("", 1, 0, "", 10.0, (0.0, 0.0), None))
    clock.hear_answer(stream.state.time_us, clock.here())
    line.compose(Demand(wants, [line], clock, is_riding=is_riding), clock.now_us())
    assert (line.outstanding is not None) == is_asked


@asynchronous
async def test_what_an_act_in_doubt_has_leased_is_free_when_the_fold_shows_it() -> None:
    """Its caller was told that nobody knows. The lease must not keep the messages from others for all its time."""
    stream = Takers()
    stream.push(2)
    line, clock = Line(0, b"me"), LogClock(lambda: 0.0)
    line.begin(stream.state, 0)
    want = asyncio.get_running_loop().create_future()
    line.asked.append(Asked(Take("", 1, LEASE_US), want))
    line.compose(Demand(Wants(clock), [line], clock), 0)
    assert line.outstanding is not None
    act = line.outstanding.act
    line.refuse(BokiError("the answer was lost", outcome="unknown"))
    assert want.exception() is not None
    given = stream.append(act)
    assert given is not None
    [(kind, deliveries)] = line.settle(given, "q")
    assert (kind, [one.spot.pos for one in deliveries]) == (("", LEASE_US), [0])
