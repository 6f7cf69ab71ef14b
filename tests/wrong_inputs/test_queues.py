"""What a new user gets wrong with queues, and the whole message that comes back, in Python and over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from boki import BokiError
from boki.libs.bokiqueue import Queue
from boki.libs.fold.arguments import MAX_SECONDS
from boki.retry import MAX_DELAY_S
from boki.testing.memory_port import MemoryPort
from tests.gateway.fake_backend import run, serving
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process

A_YEAR = "0 to 31,536,000 seconds (a year)"

LARGE = "a message may have at most 1,000,000 bytes, not {:,}: push a reference to it"


async def _redriven(queue: Queue[Any]) -> None:
    await queue.create()
    await queue.redrive("0-5")


ROWS: dict[str, tuple[Callable[[Queue[Any]], Awaitable[Any]], str]] = {
    "B31 text": (lambda queue: queue.push("x" * 2_000_000), LARGE.format(2_000_000)),
    "B31 JSON": (lambda queue: queue.push(["x" * 2_000_000]), LARGE.format(2_000_004)),
    "B31 bytes": (lambda queue: queue.push(bytes(1_000_001)), LARGE.format(1_000_001)),
    "B31 several": (lambda queue: queue.push_many(["a", "x" * 2_000_000]), LARGE.format(2_000_000)),
    "B31 not JSON": (
        lambda queue: queue.push({1, object}),
        (
            "a message must be bytes, text or what JSON can say, not set: the body cannot be written "
            "as JSON: it holds an object of type type: make it text, a number, a list, a dict or a dataclass"
        ),
    ),
    "B31 NaN": (
        lambda queue: queue.push(float("nan")),
        (
            "a message must be bytes, text or what JSON can say, not float: the body is NaN, which JSON cannot say: "
            "pass None or a string"
        ),
    ),
    "B35": (lambda queue: queue.stats(), "there is no queue 'jobz' in book 'test': push to it, or create it"),
    "redrive": (
        lambda queue: _redriven(queue),
        "there is no dead letter 0-5 in queue 'jobz': none was changed",
    ),
    "B37 delay": (lambda queue: queue.push("x", delay_s=1e12), f"delay_s must be {A_YEAR}, not 1,000,000,000,000"),
    "B37 age": (lambda queue: queue.push("x", ttl_s=-1), f"ttl_s must be {A_YEAR}, not -1"),
    "B37 huge": (
        lambda queue: queue.push("x", delay_s=10**30),
        f"delay_s must be {A_YEAR}, not a number that is far too large",
    ),
    "B37 lease": (
        lambda queue: queue.lease(1e12),
        "lease_s must be 0.001 to 31,536,000 seconds (a year), not 1,000,000,000,000",
    ),
    "B37 retention": (lambda queue: queue.create(retain_s=4e7), f"retain_s must be {A_YEAR}, not 40,000,000"),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
@asynchronous
async def test_the_refusal_says_what_is_wrong_and_what_to_do(row: tuple[Callable[..., Any], str]) -> None:
    """One error, which names the thing, the limit and the value."""
    work, message = row
    with pytest.raises(BokiError) as error:
        await work(Queue[Any](Process(MemoryPort()).logbook(), "jobz"))
    assert error.value.message == message


@pytest.mark.parametrize(
    ("row", "path", "message"),
    [
        ("B34 book", "/queue/a%20b/q", "book must be 1 to 128 characters of A-Z a-z 0-9 . _ : -, not 'a b'"),
        ("B34 queue", "/queue/a/q%20r", "a queue's name must be 1 to 100 characters of A-Z a-z 0-9 . _ -, not 'q r'"),
        (
            "B37 queue",
            "/queue/a/q?delay_s=1e12",
            "delay_s must be a number of seconds from 0 to 31,536,000, not '1e12'",
        ),
        (
            "B37 call",
            "/asyncFunction/echo?delay_s=1e12",
            "delay_s must be a number of seconds from 0 to 31,536,000, not '1e12'",
        ),
    ],
)
def test_the_same_over_http(row: str, path: str, message: str) -> None:
    """A year has one length everywhere, in digits."""
    assert MAX_SECONDS == MAX_DELAY_S, row

    async def scenario() -> None:
        async with serving() as (_, _backend, http), http.post(path, json="x") as response:
            assert (response.status, (await response.json())["message"]) == (400, message)

    run(scenario())
