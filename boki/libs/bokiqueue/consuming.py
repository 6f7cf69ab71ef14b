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

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from boki import ConfigError, function
from boki.faces import Signature, Use
from boki.libs.bokiqueue.messages import check_group
from boki.libs.fold.arguments import check_count, check_name, check_span

F = TypeVar("F", bound=Callable[..., Any])

LIBRARY: Final = "bokiqueue"
"""The name under which a function's settings for this library are kept."""
MAX_COUNT: Final = 1_000
"""Maximum `batch`, and maximum `concurrency`."""
_OF_THE_QUEUE: Final = ("shards", "max_deliveries", "max_length", "retain_s")


class Consumption(msgspec.Struct, frozen=True, kw_only=True):
    """That a function is called with the messages of a queue, as `consume` was told."""

    queue: str
    group: str = ""
    batch: int = 0
    """0: one message is the payload; else it is a list of this many messages at most."""
    concurrency: int = 1
    retry_s: float = 1.0
    """After a failure messages come back this much later, twice as late each time."""


def consumption_of(settings: Mapping[str, Any]) -> Consumption:
    """The settings that `FunctionInfo` carries. `ConfigError` or `InvalidArgument` if no `consume` can have made them.

    Fields that a later version has added are passed over.
    """
    try:
        found = msgspec.convert(settings, Consumption)
    except msgspec.ValidationError as error:
        raise ConfigError(f"settings of a consumer that cannot be read: {error}", field="consumes") from None
    _checked(found)
    return found


def _checked(found: Consumption) -> Consumption:
    check_name(found.queue, "queue")
    check_group(found.group)
    check_count(found.batch, "batch", MAX_COUNT, least=0)
    check_count(found.concurrency, "concurrency", MAX_COUNT)
    check_span(found.retry_s, "retry_s")
    return found


def _check_signature(signature: Signature, batch: int) -> None:
    """`ConfigError` if no message can ever fit: all would become dead letters."""
    if not signature.takes_payload:
        raise ConfigError(f"{signature.where} consumes a queue, and takes no message: add a parameter for it")
    shape = signature.payload
    is_list = signature.payload_encoding == "json" and (shape[0] == "[" or " | " in shape or shape == "anything")
    if batch and not is_list:
        raise ConfigError(
            f"{signature.where} consumes in batches, so it takes a list of messages: annotate it with list[...]"
        )
    if signature.streams:
        raise ConfigError(f"{signature.where} consumes a queue, so no caller takes what it yields: append records")


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

    `batch`: it takes a list of at most this many (of one if it failed before); 0: one message. `concurrency`: this many
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
    settings = _checked(Consumption(queue=queue, group=group, batch=batch, concurrency=concurrency, retry_s=retry_s))
    use = Use(
        library=LIBRARY,
        decorator="@consume",
        settings=settings,
        check=lambda signature: _check_signature(signature, batch),
        ignores_unknown_fields=True,
    )
    return function(book=book, use=use, **options)
