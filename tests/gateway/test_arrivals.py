"""Bodies that have stalled make room for others, and only then."""

from __future__ import annotations

import pytest

from boki.errors import Overloaded
from boki.gateway.arrivals import Arrival, Arrivals
from boki.gateway.config import Timeouts
from boki.gateway.core import Budget, GatewayCore, Share
from tests.gateway.fake_backend import run, serving, turns_until
from tests.gateway.strangers import Raw


class Gate:
    """A budget of 100 bytes, and bodies that must come at 10 bytes a second and have 3 seconds ahead."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.ended: list[str] = []
        self.core = GatewayCore(Budget(bytes_in_flight=100))
        self.arrivals = Arrivals(3.0, 10, lambda: self.now_s)
        self.core.make_room = self.arrivals.make_room

    def body(self, name: str, size_bytes: int) -> Arrival:
        """A body of which so much has come."""
        arrival = self.arrivals.begin(Share(self.core), lambda: self.ended.append(name))
        self.more(arrival, size_bytes)
        return arrival

    def more(self, arrival: Arrival, size_bytes: int) -> None:
        """So much more of it comes."""
        self.arrivals.note(arrival, size_bytes)
        arrival.share.take(size_bytes)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_body_that_stops_makes_room_after_a_few_seconds() -> None:
    """However much of it has come before; the bytes are free at once."""
    gate = Gate()
    gate.body("burst", 90)
    gate.wait(2.9)
    with pytest.raises(Overloaded):
        gate.body("early", 20)
    gate.wait(0.2)
    gate.body("other", 20)
    assert gate.ended == ["burst"]
    assert gate.core.bytes_in_flight == 20


def test_without_need_nothing_is_ended() -> None:
    """A body may pause for as long as it has, if there is room."""
    gate = Gate()
    arrival = gate.body("slow", 50)
    gate.wait(25)
    gate.body("other", 50)
    assert not gate.ended
    gate.arrivals.finish(arrival)
    gate.wait(25)
    gate.core.bytes_in_flight -= 50  # it is complete: another part of the gateway holds it
    gate.body("third", 50)
    assert not gate.ended


def test_a_body_that_keeps_the_rate_stays_and_a_drip_does_not() -> None:
    """A byte now and then is no progress."""
    gate = Gate()
    steady, drip = gate.body("steady", 20), gate.body("drip", 20)
    for _ in range(4):
        gate.wait(1)
        gate.more(steady, 10)
        gate.more(drip, 1)
    with pytest.raises(Overloaded):
        gate.body("large", 100)
    assert gate.ended == ["drip"]
    gate.body("small", 40)
    assert gate.core.bytes_in_flight == 100


def test_those_that_stalled_first_go_first_and_no_more_than_needed() -> None:
    """Answers and streams get their room as well as bodies."""
    gate = Gate()
    for name in ("first", "second", "third"):
        gate.body(name, 30)
        gate.wait(1)
    gate.wait(3)
    gate.core.take_bytes(35)
    assert gate.ended == ["first"]
    gate.core.take_bytes(30)
    assert gate.ended == ["first", "second"]
    assert gate.core.bytes_in_flight == 95


def test_a_client_that_sends_most_of_a_body_does_not_keep_others_out() -> None:
    """Through the gateway: the other request is served, and the stalled one is told why it was ended."""

    async def scenario() -> None:
        timeouts = Timeouts(body_stall_s=0)
        async with serving(budget=Budget(bytes_in_flight=100_000), timeouts=timeouts) as (gateway, _backend, http):
            raw = await Raw.open(gateway.port)
            await raw.send("POST /function/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n")
            await raw.send(b"1" * 80_000)
            await turns_until(lambda: gateway.core.bytes_in_flight == 80_000)
            async with http.post("/function/raw", data=b"x" * 50_000) as response:
                assert response.status == 200
            status, _, body = await raw.answer()
            assert (status, body["code"], body["outcome"]) == (504, "deadline_exceeded", "not_applied")
            assert "while others needed its room (80,000 bytes of it did): nothing was done" in body["message"]
            await raw.close()
            await turns_until(lambda: gateway.core.bytes_in_flight == 0)

    run(scenario())
