"""What gateways and engines say to each other, and what anybody may be asked: the messages of function calls.

Those of the log stand in `boki.protocol.messages`. These here are requests with one answer each, under a number that
the asker never uses twice; an answer to a number that nobody waits for is dropped. Nothing is repeated by itself: a
request that was lost shows in the next `Load` (`lacking`), and its asker decides what that means. Times are what is
left, never a time of day, because clocks differ between machines. A message holds at most one payload, page or chunk,
each of which was held to `boki.log.limits` where it came in.
"""

from __future__ import annotations

from typing import Final, Literal

from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.log.metalog import Positions
from boki.log.operations import Answer, Failure, Operation
from boki.protocol.calls import (
    Call,
    CallFilter,
    CallPage,
    FunctionInfo,
    InvocationState,
    ModuleInfo,
    Move,
    Outcome,
    ResultChunk,
)
from boki.protocol.messages import Message

MAX_POLLED: Final = 4096
"""The most numbers that one `Poll` asks about."""

# gateway -> engine, and back: calls


class StartCall(Message, frozen=True):
    """Run the call, within its `timeout_us`. → `CallEnded`"""

    request: int
    call: Call


class StreamChunk(Message, frozen=True):
    """A piece of the call's result. What is lost is sent again when `StreamTaken` says the same twice."""

    request: int
    chunk: ResultChunk


class StreamTaken(Message, frozen=True):
    """Number of chunks of that call that are taken. Repeated every second while nothing comes."""

    request: int
    count: int


class StopCall(Message, frozen=True):
    """The caller has left: cancel the call. → `CallEnded`"""

    request: int


class CallEnded(Message, frozen=True):
    """How the call ended, or that it was refused before it began."""

    request: int
    outcome: Outcome


class AbandonRead(Message, frozen=True):
    """Nobody waits any more for the read of that `LogRequest`; it may have been answered already."""

    request: int


# gateway -> engine with the index, and back: logged calls (`boki.gateway.backend.CallLedger`)


class AcceptCall(Message, frozen=True):
    """Log the call, to be run after `delay_us`. Repeated, also to another engine, it logs nothing twice.

    → `CallAccepted`
    """

    request: int
    call: Call
    key: str | None
    delay_us: int


class CallAccepted(Message, frozen=True):
    """The id of the call that counts, whose record is durable; or why there is none."""

    request: int
    invocation: str
    failure: Failure | None = None


class CallOnce(Message, frozen=True):
    """Run the call under the key and wait for its end, at most its `timeout_us`. Repeatable. → `CallOnceEnded`"""

    request: int
    call: Call
    key: str


class CallOnceEnded(Message, frozen=True):
    """The id and the outcome of the call that counts; or (without an outcome) why there is none to tell."""

    request: int
    invocation: str
    outcome: Outcome | None
    failure: Failure | None = None


class AskCall(Message, frozen=True):
    """What is known of that logged call, after waiting `wait_us` at most for its end? → `TellCall`"""

    request: int
    invocation: str
    wait_us: int


class ChangeCall(Message, frozen=True):
    """Change that logged call. Repeated before it changes otherwise, it does nothing more. → `TellCall`"""

    request: int
    invocation: str
    change: Literal["cancel", "retry"] | int | Move


class ListCalls(Message, frozen=True):
    """Which logged calls match? → `TellCalls`"""

    request: int
    wanted: CallFilter


class TellCalls(Message, frozen=True):
    """A page of them; or why there is none."""

    request: int
    page: CallPage | None
    failure: Failure | None = None


class TellCall(Message, frozen=True):
    """What is known; or why nothing is. `owner`: another engine, which runs the call and may know more."""

    request: int
    state: InvocationState | None
    failure: Failure | None = None
    owner: NodeId | None = None


# gateway, engine without the index -> engine, and back: the log


class LogRequest(Message, frozen=True):
    """Carry out this operation, checked where it came in, for a caller that has seen `positions`. → `LogReply`"""

    request: int
    positions: Positions
    timeout_us: int
    operation: Operation


class LogReply(Message, frozen=True):
    """The answer, and what its caller has seen now."""

    request: int
    positions: Positions
    answer: Answer


# gateway -> engine, and back: who is there, and what it can do


class Poll(Message, frozen=True):
    """Are you there, and how busy? Do you know the requests `pending`, which wait for long? → `Load`

    It also asks to be told again whenever something changes.
    """

    pending: tuple[int, ...] = ()


class Load(Message, frozen=True):
    """How busy this engine is. Sent on change, at most every 100 ms, and in answer to a `Poll`.

    What changes by itself while no request is under way is told within 250 ms.

    `functions_number` grows whenever what can be called changes: who knows another number asks for it.
    `lacking`: those of the polled requests that are not under way here: lost on the way, or answered.
    """

    incarnation: int
    running: int
    """Calls that run or wait for a worker, those of other gateways and logged ones included."""
    capacity: int
    """This many calls at once are taken from all gateways together; more are refused."""
    functions_number: int
    has_index: bool
    is_ready: bool
    is_draining: bool = False
    """It takes no new calls; those that it has will still end."""
    lacking: tuple[int, ...] = ()


class FetchFunctions(Message, frozen=True):
    """What can be called? → `TellFunctions`"""


class TellFunctions(Message, frozen=True):
    """What can be called at this engine."""

    incarnation: int
    functions_number: int
    functions: tuple[FunctionInfo, ...]
    modules: tuple[ModuleInfo, ...]
    bundle: int = 0
    """The number of the deployed version that runs there; 0: none, its functions are those of a folder."""


# gateway -> engine, and back: deploying


class ActivateBundle(Message, frozen=True):
    """The bundle is in the log: see whether its modules can be loaded, and let every engine run them.

    With `is_forced` also if some cannot. Repeating it, also to another engine, makes no second version.
    → `BundleActivated`
    """

    request: int
    positions: Positions
    timeout_us: int
    bundle_hash: str
    size_bytes: int
    upload: str
    """The tag of its pieces, see `boki.books.functions.versions`."""
    first_seqnum: int
    is_forced: bool


class BundleActivated(Message, frozen=True):
    """The number of the version that runs from now on, and what its modules are; or why there is none."""

    request: int
    positions: Positions
    number: int
    modules: tuple[ModuleInfo, ...] = ()
    failure: Failure | None = None


# anybody -> anybody


class AskStatus(Message, frozen=True):
    """What would an operator want to know of you? → `TellStatus`"""

    request: int


class TellStatus(Message, frozen=True):
    """The answer, as a JSON object."""

    request: int
    status: bytes


FOR_ENGINE_SHELL: Final = (
    StartCall,
    StreamTaken,
    StopCall,
    AbandonRead,
    AcceptCall,
    CallOnce,
    AskCall,
    ChangeCall,
    ListCalls,
    LogRequest,
    Poll,
    FetchFunctions,
    ActivateBundle,
    AskStatus,
)
"""What is sent to an engine's node and not meant for its core."""

_GATEWAY: Final = frozenset({Role.GATEWAY})
_ENGINE: Final = frozenset({Role.ENGINE})
_ANYBODY: Final = frozenset(Role)

SENDERS: Final[dict[type[Message], frozenset[Role]]] = {
    StartCall: _GATEWAY,
    StreamChunk: _ENGINE,
    StreamTaken: _GATEWAY,
    StopCall: _GATEWAY,
    CallEnded: _ENGINE,
    AcceptCall: _GATEWAY | _ENGINE,  # an engine without the index has no logged calls of its own
    CallAccepted: _ENGINE,
    CallOnce: _GATEWAY,
    CallOnceEnded: _ENGINE,
    AskCall: _GATEWAY | _ENGINE,
    TellCall: _ENGINE,
    ChangeCall: _GATEWAY | _ENGINE,
    ListCalls: _GATEWAY,
    TellCalls: _ENGINE,
    LogRequest: _GATEWAY | _ENGINE,
    AbandonRead: _GATEWAY | _ENGINE,
    LogReply: _ENGINE,
    Poll: _GATEWAY,
    Load: _ENGINE,
    FetchFunctions: _GATEWAY,
    TellFunctions: _ENGINE,
    ActivateBundle: _GATEWAY,
    BundleActivated: _ENGINE,
    AskStatus: _GATEWAY | _ENGINE | frozenset({Role.CONTROLLER}),
    TellStatus: _ANYBODY,
}
"""Which roles may send what: a link refuses what comes from another."""
