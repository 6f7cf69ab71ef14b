"""Function calls as values: what the gateway, the engine's dispatch and the workers hand to each other."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from boki.log.metalog import Positions
from boki.log.operations import Failure

Encoding = Literal["json", "text", "bytes"]
"""How a payload's bytes are to be read: a JSON document, UTF-8 text, or nothing but bytes."""

MAX_DELAY_S: Final = 365 * 24 * 3_600.0
"""A call may be delayed by a year, as a message of a queue may be."""
MAX_WORKERS: Final = 4
"""The most worker processes of a pool whose functions set no `max_workers`."""
MOST_WORKERS: Final = 256
"""The largest `min_workers` and `max_workers` that a function may set."""
MEMORY_BYTES: Final = 1 << 30
"""The memory of a worker process whose functions set no `memory_bytes`."""


class Payload(msgspec.Struct, frozen=True, array_like=True):
    """A call's argument or result as it travels."""

    encoding: Encoding
    data: bytes


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One invocation of a function.

    `id` is the invocation id: 32 hex digits, the same when a logged call is run again. `book` is the call's LogBook
    ("" until `FunctionInfo.book_of` has decided). `timeout_us` is what is left when the value is made. `depth` counts
    the calls above it. `positions` is what its caller has seen of the logs.
    """

    id: str
    function: str
    payload: Payload
    book: str
    timeout_us: int
    depth: int = 0
    positions: Positions = {}
    traceparent: str = ""
    parent: str = ""
    caller_book: str = ""
    """The LogBook of the call that made this one: the default of functions that name none."""


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """How a call ended: with a result or with a failure, and what it has seen of the logs."""

    result: Payload | None
    failure: Failure | None
    positions: Positions = {}


class Consumption(msgspec.Struct, frozen=True, kw_only=True):
    """That a function is called with the messages of a queue, as `boki.libs.bokiqueue.consume` describes it."""

    queue: str
    group: str = ""
    batch: int = 0
    """0: one message is the payload; else it is a list of at most so many."""
    concurrency: int = 1
    retry_s: float = 1.0
    """After a failure messages come back this much later, twice as late each time."""


class FunctionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A registered function, as the engine and the gateway know it without importing its module."""

    name: str
    module: str
    is_async: bool
    doc: str = ""
    book: str = ""
    """The LogBook of calls that name none; empty: the caller's LogBook, or one of the function's own name."""
    timeout_s: float = 60.0
    concurrency: int = 256
    """Calls of this function that run at once in one worker process (blocking functions: always one)."""
    min_workers: int = 0
    """Least worker processes of the pool, which all functions of the module and kind share: the largest counts."""
    max_workers: int | None = None
    """Most worker processes of the pool: the smallest that a function sets counts, if none does `MAX_WORKERS`."""
    memory_bytes: int | None = None
    """A worker process that grows beyond this is killed and replaced: the smallest that a function of the pool sets
    counts, if none does `MEMORY_BYTES`."""
    payload_schema: dict[str, Any] | None = None
    """JSON schema of the payload; None if it takes text or bytes."""
    payload_encoding: Encoding = "json"
    result_schema: dict[str, Any] | None = None
    result_encoding: Encoding = "json"
    consumes: Consumption | None = None
    """The queue whose messages it is called with; in the LogBook of its calls."""

    def book_of(self, call: Call) -> str:
        """The LogBook of a call: the one it names, else the function's, else its caller's, else the function's name."""
        return call.book or self.book or call.caller_book or self.name


class ModuleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A module of the functions folder: what it registers, or why it cannot be loaded."""

    module: str
    path: str
    functions: tuple[FunctionInfo, ...] = ()
    error: str = ""
    """The error with file and line, if the module is broken."""


class InvocationState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a logged call. Times are the log's, in microseconds since the epoch; 0: not yet."""

    id: str
    function: str
    book: str
    state: Literal["accepted", "running", "done", "failed"]
    accepted_us: int
    due_us: int
    """When it may start: later than `accepted_us` for a delayed call."""
    started_us: int = 0
    finished_us: int = 0
    attempts: int = 0
    """How often its body was started; more than once if a worker was lost."""
    result: Payload | None = None
    failure: Failure | None = None
