"""Function calls as values: what the gateway, the engine's dispatch and the workers hand to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from boki.log.ids import MAX_SEQNUM
from boki.log.metalog import Positions
from boki.log.operations import Append, Failure
from boki.retry import Retry

Encoding = Literal["json", "text", "bytes", "response"]
"""How a payload's bytes are to be read: a JSON document, UTF-8 text, nothing but bytes, or (of a result) a whole
answer over HTTP (`boki.api.http.response`)."""

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


class RequestHead(msgspec.Struct, frozen=True, array_like=True):
    """The HTTP request of a call, without its body and without what it proves its sender by."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: tuple[tuple[str, str], ...]
    client: str
    """The address that the connection comes from; "" if it cannot be told."""
    route: str = ""
    """The function's own route that it came by, such as "GET /u/{code}"; "": `/function/NAME`."""
    path_values: tuple[tuple[str, str], ...] = ()
    """What stands in the path for the variables of that route."""


IfRunning = Literal["use", "fail"]
"""What a start under a chosen id does if there is a call of that id that has not ended: stand for it, or be refused."""
IfEnded = Literal["use", "fail", "again", "again_if_failed"]
"""What it does if there is one that has ended: stand for it, be refused, or begin a new call under the id.
"again_if_failed" stands for a call that has ended well."""


Attribute = str | int | float | bool
"""A value of an attribute that a call carries, to be found by."""


ATTENDS = "boki:attends"
"""The attribute of calls that run no function: see `ChosenId.attends`."""


PINNED = "boki:version"
"""The attribute of calls that run with one deployed version of the functions, whatever is deployed later: its number. 0
asks for the one that runs where the call is accepted."""


REPLAYED = "boki:replayed"
"""The attribute of calls whose caller knows the function by its name alone: whether a library replays its body. Where
the call is accepted the function is known, and says so (`FunctionInfo.to_be_logged`); False: it is not known there."""
ANY_VERSION = "boki:any_version"
"""The attribute of attendants that are not pinned, and for which calls of earlier versions may wait: where the version
that runs has no such function any more, they run with the newest one that has it."""
THIS_VERSION = "boki:this_version"
"""The attribute of attendants that are about the version that they are pinned to: they fail if it cannot be had. Any
other call runs with the version that runs then.
"""


_CARRIED_BYTES: Final = 1 << 14
"""How much more than at its acceptance a logged call may need when it is carried forward by a trim: for what its runs
have ended with, and for all that it may be suspended for.
"""


def most_call_bytes(record_bytes: int) -> int:
    """What a logged call may have with its payload, where a record may have that many bytes."""
    return record_bytes - min(_CARRIED_BYTES, record_bytes // 4)


def version_of(attributes: Mapping[str, Attribute] | None) -> int:
    """The version that a call with these attributes is pinned to; 0: it runs with what is deployed then."""
    found = (attributes or {}).get(PINNED, 0)
    return found if isinstance(found, int) else 0


class ChosenId(msgspec.Struct, frozen=True, array_like=True):
    """How a call is accepted whose id its caller has chosen, when there is a call of that id."""

    start: str
    """Names this start: the same when it is repeated because its answer was lost. A repeated start changes nothing."""
    if_running: IfRunning = "use"
    if_ended: IfEnded = "use"
    name: str = ""
    """What people call it: the name that the id was made of."""
    reports_to: str = ""
    """The invocation id of a call that waits for its end: the record of the end has the tag `ends_tag` of that one."""
    attributes: dict[str, Attribute] = {}
    """By which lists find it. Names that begin with "boki:" are those of libraries."""
    watcher: str = ""
    """A second call that waits for its end, as `reports_to` does."""
    copies: str = ""
    """The invocation id of a call of the same function whose payload this one takes, in place of its own."""

    @property
    def attends(self) -> str:
        """What the call does for the library of its function, such as "schedule". Its body is the library's own, and is
        given no payload, so what the function takes does not matter. Empty: the call runs the function.
        """
        return str(self.attributes.get(ATTENDS, ""))


CALLS_BOOK: Final = "boki:calls"
"""The system book that logged calls are recorded in."""


def ends_tag(invocation_id: str) -> str:
    """The tag of the ends of those logged calls that report to this one, in `CALLS_BOOK`."""
    return f"ends:{invocation_id}"


KEPT_END_TAG: Final = "kept-end"
"""The tag of ends that were recorded once more, in `CALLS_BOOK`: the call ended when it was forgotten, or before."""


def starts_tag(invocation_id: str) -> str:
    """The tag of the acceptances of those logged calls that report to this one, in `CALLS_BOOK`."""
    return f"starts:{invocation_id}"


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
    retry: Retry | None = None
    """When a logged call runs again, from `FunctionInfo.to_be_logged`; None: `boki.retry.LOSSES_ONLY`."""
    request: RequestHead | None = None
    """Of a call that came over HTTP and is not logged."""
    run: int = 0
    """Which run of a logged call this is, counted from 1; 0: the call is not logged."""
    chosen: ChosenId | None = None
    """Of a logged call whose `id` its caller has chosen."""
    attempt: int = 0
    """Which run of a logged call this is since it was accepted, or last suspended, counted from 1."""
    is_tried: bool = False
    """The logged call is not accepted yet: its body may compute, and must end by `Suspend` before it does more. Never
    on record."""
    accepted_us: int = 0
    """When a logged call that runs was accepted, by the log's time; 0: not known. Never on record."""


class WakeOn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record that wakes a suspended call: any of this tag at or above `min_seqnum`, in this LogBook."""

    book: str
    tag: str
    min_seqnum: int


class Suspension(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a suspended call waits for: the time, a record, or either. See `boki.api.suspension.Suspend`."""

    wake_us: int = 0
    """When it runs again, by the log's time in microseconds since the epoch; 0: at no time."""
    wakes: tuple[WakeOn, ...] = ()
    note: str = ""
    """Why it waits, for people who look at it."""


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """How a call ended: with a result or with a failure, and what it has seen of the logs."""

    result: Payload | None
    failure: Failure | None
    positions: Positions = {}
    suspended: Suspension | None = None
    """The run of a logged call has ended, and the call has not: with neither a result nor a failure."""
    appends: tuple[Append, ...] = ()
    """What the engine is to append in one batch with the record of the end; from a worker."""


class Begun(NamedTuple):
    """A logged call that was accepted."""

    id: str
    result: Payload | None = None
    """What its function has returned, if the call has ended with its acceptance, and this is short."""


CHUNK_BYTES: Final = 16 * 1024
"""The largest piece of a streamed result."""
WINDOW: Final = 8
"""How many chunks of a stream may be on their way to a caller who has not taken them."""


class ResultChunk(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a streamed result. `number` counts from 1; `head`: of the first one, status and headers."""

    number: int
    data: bytes
    head: bytes = b""


TakeChunk = Callable[[ResultChunk], None]
"""What is given each chunk of a stream, once and in order."""


_CONSUMES: Final = "bokiqueue"
"""The library whose settings `FunctionInfo.consumes` has."""


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
    needs_text: bool = False
    """It takes text or bytes that have no default. A call without a payload is not told from one with an empty one, so
    those who can tell them apart ask first."""
    result_schema: dict[str, Any] | None = None
    result_encoding: Encoding = "json"
    consumes: dict[str, Any] | None = None
    """The settings of the library `bokiqueue`, see `settings_of`: older nodes and clients know them by this name."""
    http: tuple[str, ...] = ()
    """Its own routes, such as "GET /u/{code}", besides `/function/NAME` (`boki.protocol.routes`)."""
    streams: bool = False
    """It is a generator: its result goes to an HTTP caller chunk by chunk."""

    retry: Retry | None = None
    """When logged calls of it run again; None: only if a worker or an engine is lost."""
    uses: dict[str, dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    """The settings of all other libraries that call it, by the library's name; unset: there are none."""

    @property
    def libraries(self) -> tuple[str, ...]:
        """The names of the libraries that call it."""
        others = () if isinstance(self.uses, msgspec.UnsetType) else tuple(self.uses)
        return others if self.consumes is None else (_CONSUMES, *others)

    def settings_of(self, library: str) -> Mapping[str, Any] | None:
        """What a library's decorator was told; None: the library does not call this function."""
        if library == _CONSUMES:
            return self.consumes
        return None if isinstance(self.uses, msgspec.UnsetType) else self.uses.get(library)

    @property
    def is_replayed(self) -> bool:
        """Whether a library repeats its body from a journal, so that a call may be tried (`Call.is_tried`)."""
        return any((self.settings_of(library) or {}).get("replays") is True for library in self.libraries)

    def used_by(self, library: str, settings: Mapping[str, Any]) -> FunctionInfo:
        """The same function, called by that library with those settings."""
        if library == _CONSUMES:
            return msgspec.structs.replace(self, consumes=dict(settings))
        others = {} if isinstance(self.uses, msgspec.UnsetType) else self.uses
        return msgspec.structs.replace(self, uses={**others, library: dict(settings)})

    def book_of(self, call: Call) -> str:
        """The LogBook of a call: the one it names, else the function's, else its caller's, else the function's name."""
        return call.book or self.book or call.caller_book or self.name

    def to_be_logged(self, call: Call, retry: Retry | None = None) -> Call:
        """The call as it is logged: its LogBook and its retry policy stay, whatever is deployed when it runs."""
        policy, chosen = retry or call.retry or self.retry, self.chosen_for(call)
        return msgspec.structs.replace(call, book=self.book_of(call), caller_book="", retry=policy, chosen=chosen)

    def chosen_for(self, call: Call) -> ChosenId | None:
        """How the call is accepted: with an answer where its caller asks whether the function is `REPLAYED`."""
        if call.chosen is None or REPLAYED not in call.chosen.attributes:
            return call.chosen
        attributes = {**call.chosen.attributes, REPLAYED: self.is_replayed}
        return msgspec.structs.replace(call.chosen, attributes=attributes)


class ModuleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A module of the functions folder: what it registers, or why it cannot be loaded."""

    module: str
    path: str
    functions: tuple[FunctionInfo, ...] = ()
    error: str = ""
    """The error with file and line, if the module is broken."""


CallStatus = Literal["accepted", "running", "retrying", "suspended", "done", "failed", "cancelled"]
"""Where a logged call is: see `InvocationState`."""

OVER: Final[frozenset[CallStatus]] = frozenset({"done", "failed", "cancelled"})
"""The states that are ends."""


class InvocationState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a logged call. Times are the log's, in microseconds since the epoch; 0: not yet.

    Its `state` is "accepted" until its body is started, "running" from then on, "retrying" between a run that failed
    and the next one, "suspended" between a run that ended with `Suspend` and the next one; and in the end "done",
    "failed" (permanently) or "cancelled".
    """

    id: str
    function: str
    book: str
    state: CallStatus
    accepted_us: int
    due_us: int
    """When it may start: later than `accepted_us` for a delayed call."""
    started_us: int = 0
    """When its body was first started."""
    finished_us: int = 0
    attempts: int = 0
    """How often its body was started, those runs included that were cut off with their worker or engine."""
    result: Payload | None = None
    failure: Failure | None = None
    last_started_us: int = 0
    """When its body was last started."""
    next_us: int = 0
    """When the next run is due, if `state` is "retrying", or "suspended" until a time."""
    errors: dict[str, int] = {}
    """How many runs ended with which error: the class that the function raised, else the error's code."""
    last_error: Failure | None = None
    """What the last run that failed ended with, cut to a few hundred characters."""
    suspension: Suspension | None = None
    """What it waits for, if `state` is "suspended"."""
    name: str = ""
    """What people call it, if its caller chose its id: see `ChosenId`."""
    attributes: dict[str, Attribute] = {}
    """See `ChosenId`."""
    start: str = ""
    """Which start it was accepted for, if its caller chose its id (`ChosenId`) and it has not ended; not in lists."""

    @property
    def life_us(self) -> int:
        """Tells the lives of one id apart: each was due at another time. A retry keeps when it was accepted. Not in
        lists.
        """
        return self.due_us


class Move(msgspec.Struct, frozen=True, array_like=True):
    """Pin the call to this version, if it does not run, and has had that many runs."""

    version: int
    attempts: int


CallChange = Literal["", "cancel", "retry"] | int | Move
"""What is done to a logged call that is asked about: nothing, or it is cancelled, run again, or pinned to another
version. A number: it is cancelled if it has that `InvocationState.life_us`."""

MAX_CALLS_PAGE: Final = 500
"""Maximum number of calls on one page of a list."""


class CallFilter(msgspec.Struct, frozen=True, array_like=True):
    """Which logged calls to list: those that match all of it, the one whose state changed last first."""

    function: str = ""
    """Only calls of this function."""
    states: tuple[CallStatus, ...] = ()
    """Only calls in one of these states; empty: in any."""
    since_us: int = 0
    """Only calls whose state changed at this time or later, by the log's time."""
    until_us: int = MAX_SEQNUM
    """Only calls whose state changed before this time."""
    before: int = MAX_SEQNUM
    """Where the page begins: `CallPage.before` of the page in front of it."""
    limit: int = 100
    named: str = ""
    """Only calls whose `ChosenId.name` begins so."""
    attributes: dict[str, Attribute] = {}
    """Only calls that have all of these."""

    def matches(self, name: str, attributes: Mapping[str, Attribute] | None) -> bool:
        """Whether a call of that name and with those attributes is wanted."""
        if not name.startswith(self.named):
            return False
        if not self.attributes:
            return True
        return attributes is not None and all(attributes.get(key) == self.attributes[key] for key in self.attributes)


class CallPage(msgspec.Struct, frozen=True, array_like=True):
    """A page of a list of logged calls, without their results. It may be short, also empty, and not be the last."""

    calls: tuple[InvocationState, ...]
    before: int
    """What the filter of the next page says; 0: this is the last one."""
