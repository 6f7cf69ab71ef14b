"""`@consume`: a function that is called with the messages of a queue.

::

    @consume("orders", book="shop")
    async def ship(ctx: Context, order: Order) -> None: ...

    @consume("clicks", book="shop", batch=100, concurrency=4)
    async def count(ctx: Context, clicks: list[Click]) -> None: ...

The system leases messages and calls the function: it runs only while there is something to do, and starts when there is
again, be it a push, a delay or a lease that is over, also after a restart of everything. If it returns its messages are
acked, if it raises they come back later, and after `max_deliveries` of the queue they are dead letters, with what it
raised. So it is called at least once for each: what must happen once it appends under a key of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from boki import ConfigError, Consumption, function
from boki.libs.bokiqueue.refusals import check_count, check_group, check_queue, check_span

F = TypeVar("F", bound=Callable[..., Any])

_OF_THE_QUEUE: Final = ("shards", "max_deliveries", "max_length", "retain_s")


def consume(
    queue: str,
    *,
    book: str = "",
    group: str = "",
    batch: int = 0,
    concurrency: int = 1,
    retry_s: float = 1.0,
    **options: Any,
) -> Callable[[F], F]:
    """Have the function be called with the messages of the queue `queue` of the LogBook `book` (else: its own).

    `batch`: it takes a list of at most so many (of one if it failed before); 0: one message. `concurrency`: so many
    calls run at once, for each gateway. `group`: the consumer group, which begins with the earliest message.
    `retry_s`: how much later a message comes back after a failure, twice as late each time. Other options are those of
    `@function`.
    """
    if callable(queue):  # @consume without parentheses
        raise ConfigError('@consume needs the name of a queue: write @consume("orders")', field="queue")
    for name in options:
        if name in _OF_THE_QUEUE:
            raise ConfigError(
                f"@consume has no option {name}, because it is the queue's: set it with "
                f"{'Queue.create' if name == 'shards' else 'Queue.configure'}({name}=...)",
                field=name,
            )
    consumes = Consumption(
        queue=check_queue(queue),
        group=check_group(group),
        batch=check_count(batch, "batch", 1_000, least=0),
        concurrency=check_count(concurrency, "concurrency", 1_000),
        retry_s=check_span(retry_s, "retry_s") / 1e6,
    )
    return function(book=book, consumes=consumes, **options)
