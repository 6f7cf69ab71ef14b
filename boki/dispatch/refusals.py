"""What callers are told when a call cannot run, or has not ended as it should: always with a remedy."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from boki.dispatch.orders import RETRY_AFTER_S, Budget
from boki.dispatch.slots import LiveCall, Pool
from boki.errors import (
    BokiError,
    CallCancelled,
    CallLost,
    CallTooDeep,
    DeadlineExceeded,
    InvalidArgument,
    NoSuchFunction,
    Overloaded,
    TooLarge,
    Unavailable,
)
from boki.log.limits import Limits
from boki.log.operations import Failure
from boki.protocol.calls import Call, Outcome, RequestHead


def failed(error: BokiError) -> Outcome:
    """The error as the end of a call."""
    return Outcome(None, Failure.of(error))


def unknown(function: str, broken: Mapping[str, str]) -> NoSuchFunction:
    """`broken`: the errors of modules that cannot be loaded, one of which may be where the function is."""
    modules = "".join(f"; module {module!r} cannot be loaded: {error}" for module, error in broken.items())
    return NoSuchFunction(f"no function is registered under {function!r}{modules}", function=function)


def not_allowed(call: Call, depth: int, limits: Limits) -> BokiError | None:
    """Why this call may not be made at all, if it may not."""
    if call.timeout_us <= 0:
        return DeadlineExceeded(
            f"no time was left for the call of {call.function!r}: it was not begun", outcome="not_applied"
        )
    if depth > limits.call_depth:
        return CallTooDeep(
            f"this call of {call.function!r} would be nested {depth} deep, and limits.call_depth is "
            f"{limits.call_depth}: does a function call itself without an end?",
            limit=limits.call_depth,
        )
    if len(call.payload.data) > limits.request_bytes:
        return TooLarge(
            f"the payload of the call of {call.function!r} has {len(call.payload.data):,} bytes, and "
            f"limits.request_bytes is {limits.request_bytes:,}: append it to a LogBook and pass where it is",
            limit=limits.request_bytes,
        )
    if call.request is not None and not _can_be_encoded(call.request):
        return InvalidArgument("the request of the call has text that is not UTF-8: a lone surrogate", field="request")
    return None


def _can_be_encoded(head: RequestHead) -> bool:
    """Else the call would fail on its way to the worker, when it counts as one that was sent."""
    try:
        msgspec.msgpack.encode(head)
    except UnicodeEncodeError:
        return False
    return True


def over_budget(pool: Pool, size_bytes: int, budget: Budget) -> Overloaded | None:
    """Why the pool cannot hold one more call of that size, if it cannot."""
    if pool.queued >= budget.queued_calls:
        return Overloaded(
            f"{pool.queued:,} calls wait for a worker of {pool.name}, and more are refused: repeat later, or raise "
            "max_workers or concurrency of its functions",
            retry_after_s=RETRY_AFTER_S,
        )
    if pool.held_bytes + size_bytes > budget.held_bytes:
        return Overloaded(
            f"calls of {pool.name} hold {pool.held_bytes:,} bytes of payloads, and the budget is "
            f"{budget.held_bytes:,}: repeat later",
            retry_after_s=RETRY_AFTER_S,
        )
    return None


def choked(pool: Pool) -> Overloaded:
    """Every worker waits for a child call, so that one more child call could never begin."""
    return Overloaded(
        f"all {len(pool.workers)} workers of {pool.name} wait for calls that their calls have made, and none is left "
        "to run this one: nest calls less deeply, or raise max_workers of its functions",
        retry_after_s=RETRY_AFTER_S,
    )


def expired(live: LiveCall) -> DeadlineExceeded:
    """It has spent its time in the queue."""
    return DeadlineExceeded(
        f"the call of {live.info.name!r} waited {_seconds(live)} for a worker, all the time it had: it was not begun",
        outcome="not_applied",
    )


def overdue(live: LiveCall) -> DeadlineExceeded:
    """It has been sent to a worker and may have done anything."""
    return DeadlineExceeded(
        f"the call of {live.info.name!r} did not end within {_seconds(live)}, all the time it had (the function's "
        f"timeout_s is {live.info.timeout_s:g}): it was cancelled and may have run in part"
    )


def given_up(live: LiveCall) -> CallCancelled:
    """Its caller has cancelled it."""
    return CallCancelled(f"the call of {live.info.name!r} was cancelled and may have run in part", outcome="unknown")


def lost(live: LiveCall, why: str, calls: int) -> CallLost:
    """Its worker is gone, which had begun this many calls."""
    return CallLost(
        f"the worker process of the call of {live.info.name!r} {why}: the call had begun and may have run in part",
        function=live.info.name,
        calls=calls,
    )


def did_not_end(live: LiveCall) -> str:
    """Why its worker is killed, to stand after "the worker process"."""
    return (
        f"was killed because a call of {live.info.name!r} (invocation {live.call.id}) was past its deadline or "
        "cancelled, and did not end"
    )


def worker_ended(pool: str, why: str, *, lost: int, again: int) -> str:
    """What an operator reads when a worker has ended with calls in it.

    >>> worker_ended("module 'shop'", "exited with status 3", lost=1, again=0)
    "a worker process of module 'shop' exited with status 3: 1 call was cut off (call_lost)"
    >>> worker_ended("module 'shop'", "was killed by signal 9", lost=0, again=2)
    "a worker process of module 'shop' was killed by signal 9: 2 calls that it had not begun go to another worker"
    """
    parts = []
    if lost:
        parts.append("1 call was cut off (call_lost)" if lost == 1 else f"{lost:,} calls were cut off (call_lost)")
    if again:
        calls = "1 call that it had not begun goes" if again == 1 else f"{again:,} calls that it had not begun go"
        parts.append(f"{calls} to another worker")
    return f"a worker process of {pool} {why}: {', '.join(parts) or 'its calls had been answered'}"


def cannot_start(pool: Pool) -> Unavailable:
    """No worker can be started; the module's own error says why."""
    return Unavailable(pool.broken, retry_after_s=RETRY_AFTER_S)


def stopping() -> Unavailable:
    """The engine takes no calls."""
    return Unavailable("the engine is stopping: the call was not begun", retry_after_s=RETRY_AFTER_S)


def left_over(live: LiveCall, broken: Mapping[str, str], *, is_stopped: bool) -> BokiError:
    """Why a call that no worker has begun is given to no other one. One that is pinned is not for the code that runs
    now: it is refused for a moment, and then offered to its own version.
    """
    if is_stopped:
        return stopping()
    if live.version:
        return Unavailable(
            f"the call of {live.info.name!r} is pinned to version {live.version} of the functions, which has been "
            "replaced: it was not begun",
            retry_after_s=RETRY_AFTER_S,
        )
    return unknown(live.call.function, broken)


def orphaned() -> InvalidArgument:
    """A call asks for a child after its own end."""
    return InvalidArgument(
        "the call that makes this child call has ended: await child calls before returning, or use invoke_later"
    )


def _seconds(live: LiveCall) -> str:
    return f"{live.timeout_us / 1_000_000:.3g} s"
