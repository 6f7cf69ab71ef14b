"""What a limit counts workflows by."""

from __future__ import annotations

from collections.abc import ItemsView

import boki.testing
from boki.libs.bokiflow import Limit, workflow
from boki.libs.bokiflow.gates.marks import KEY, key_of
from boki.libs.bokiflow.gates.records import Asked, Running, Waiting
from boki.libs.bokiflow.gates.state import Gate

BY_URL = Limit(key="url", debounce_s=5)
LONG = "https://example.org/" + "a" * 100


def test_a_key_is_no_longer_than_one_that_a_start_gives() -> None:
    """Those that fit are as they were."""
    assert key_of(BY_URL, {}, {"url": LONG[:100]}) == LONG[:100]
    assert key_of(BY_URL, {}, {"url": 17}) == "17"
    assert key_of(BY_URL, {KEY: "given"}, {"url": LONG}) == "given"
    found = [key_of(BY_URL, {}, {"url": f"{LONG}{n}"}) for n in (1, 2, 1)]
    assert found[0] == found[2] != found[1]
    assert {len(one) for one in found} == {100}


async def test_long_keys_that_begin_alike_are_two(boki_context: boki.testing.Context) -> None:
    """They were cut after 100 characters: a start for one URL cancelled that for another one."""

    @workflow(limit=BY_URL)
    async def fetch(order: dict[str, str]) -> str:
        return order["url"][-1]

    ctx = boki_context
    handles = [await fetch.start(ctx, {"url": f"{LONG}{n}"}) for n in (1, 2)]
    assert [await handle.result() for handle in handles] == ["1", "2"]


class Counted(dict[str, Running]):
    """Counts how often all of it is looked at."""

    looks = 0

    def items(self) -> ItemsView[str, Running]:
        self.looks += 1
        return super().items()


def test_those_that_run_are_looked_at_once() -> None:
    """And not once for each key that waits: with 5,000 customers a decision took seconds."""
    gate, limit = Gate(), Limit(key="customer", concurrency=1)
    for n in range(200):
        gate.waiting[f"w{n}"] = Waiting(Asked(f"w{n}", f"call w{n}", f"{n}", 0, limit), n, n)
    gate.running = running = Counted((f"r{n}", Running(f"call r{n}", f"{n}", n)) for n in range(200))
    assert (gate.decide(1_000), gate.next_us()) == (None, 0)
    assert running.looks == 2
