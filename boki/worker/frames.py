"""What an engine, its zygote and its worker processes say to each other over unix sockets.

A frame is a length (four bytes, little-endian) and a msgpack body: a struct as an array that starts with its number.
Each direction has its own union of frames, with numbers that no other has, so that nothing is taken for what it is not.
The peer is a process of this machine and of this installation, yet user code runs in it: lengths are checked before
anything is allocated, and whoever sends what cannot be decoded loses its connection.

Calls have a **ticket**, the engine's own small number, because invocation ids are long and one id may run twice.
Requests of a worker (log operations, child calls, later calls) share one space of **request ids** per worker.
"""

from __future__ import annotations

from typing import Final, Generic, Literal, TypeVar

import msgspec

from boki.errors import CorruptData
from boki.log.limits import KIB, MIB, Limits
from boki.log.operations import Failure, Reply, Request
from boki.protocol.calls import Call, CallChange, InvocationState, ModuleInfo, Outcome, Payload, ResultChunk

VERSION: Final = 6
"""The protocol's version, said in every hello. Both ends are one installation unless it was upgraded under a running
engine; then the engine must be restarted."""

_HEADROOM_BYTES: Final = 256 * KIB
"""What a frame may need in addition to the bytes that `Limits` counts: names, positions, tags, a traceback."""
_LENGTH_BYTES: Final = 4
_ZYGOTE_FRAME_BYTES: Final = 16 * MIB
MAX_SOURCES_BYTES: Final = 2 * MIB
"""Sources that travel in one frame; a module that has more is read from the disk by each of its workers."""

ProcessKind = Literal["describe", "async", "blocking"]


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """The base of all frames; each has its own number within its direction."""


# worker -> engine


class Hello(Frame, frozen=True, tag=1):
    """I have imported my module and take calls."""

    version: int


class Broken(Frame, frozen=True, tag=2):
    """My module cannot be imported; the error with file and line. I am leaving."""

    error: str


class Described(Frame, frozen=True, tag=3):
    """What the module registers. `sources`: all files of the functions folder that its import has read; if `is_pinned`,
    with what they held, so that later workers of this version run the same code.
    """

    module: ModuleInfo
    sources: dict[str, bytes]
    is_pinned: bool


class LogRequest(Request, frozen=True, array_like=True, tag=4):
    """A log operation of a call. → `LogReply`"""


class Invoke(Frame, frozen=True, tag=5):
    """The call `ticket` calls another function and waits. → `ChildEnded`"""

    id: int
    ticket: int
    call: Call


class InvokeLater(Frame, frozen=True, tag=6):
    """Run this call after `delay_s`, once it is in the log. → `Accepted`"""

    id: int
    ticket: int
    call: Call
    delay_s: float
    key: str | None
    tried: int = 0
    """The ticket under which this worker tries the call meanwhile (`Call.is_tried`), see `ticket_of_try`; 0: it does
    not. → `Ended` from here
    """


class Ended(Frame, frozen=True, tag=7):
    """The call is over and holds nothing here any more."""

    ticket: int
    outcome: Outcome


class ConsoleLine(Frame, frozen=True):
    """Something that a function printed, logged or raised. `invocation` and `function` are empty outside of calls.

    `stream`: "stdout" and "stderr" are whole lines; "log" is one log record, "error" one uncaught exception with its
    traceback, both possibly of several lines. `level` is a `logging` level. `time_us` is since the epoch.
    """

    module: str
    function: str
    invocation: str
    stream: Literal["stdout", "stderr", "log", "error"]
    level: int
    logger: str
    text: str
    time_us: int


class Said(Frame, frozen=True, tag=8):
    """Lines in the order in which they were written; `dropped` more were left out since the last frame."""

    lines: tuple[ConsoleLine, ...]
    dropped: int = 0


class Abandon(Frame, frozen=True, tag=9):
    """The call `ticket` no longer waits for what it asked for with `Invoke`."""

    id: int
    ticket: int


class Streamed(Frame, frozen=True, tag=10):
    """One more piece of the result of the call `ticket`. No more than `WINDOW` are ahead of `Taken`."""

    ticket: int
    chunk: ResultChunk


class AbandonRead(Frame, frozen=True, tag=12):
    """The read of this `LogRequest` is no longer awaited. It may have been answered already."""

    id: int


class AskCall(Frame, frozen=True, tag=11):
    """What is known of this logged call, after waiting at most `wait_s` for its end, or after `change`? → `CallTold`"""

    id: int
    ticket: int
    invocation: str
    wait_s: float
    change: CallChange = ""


FromWorker = (
    Hello
    | Broken
    | Described
    | LogRequest
    | Invoke
    | InvokeLater
    | Ended
    | Said
    | Abandon
    | AbandonRead
    | Streamed
    | AskCall
)


# engine -> worker


class Start(Frame, frozen=True, tag=21):
    """Run this call. Its `timeout_us` is what is left now and its `book` is filled in."""

    ticket: int
    call: Call


class Cancel(Frame, frozen=True, tag=22):
    """The call is no longer awaited: end it. → `Ended`, or the worker is killed"""

    ticket: int


class LogReply(Reply, frozen=True, array_like=True, tag=23):
    """worker's `LogRequest` ->"""


class ChildEnded(Frame, frozen=True, tag=24):
    """worker's `Invoke` ->"""

    id: int
    outcome: Outcome


class Accepted(Frame, frozen=True, tag=25):
    """worker's `InvokeLater` -> the invocation's id, or why it was refused. `result`: see `Begun`."""

    id: int
    invocation: str
    failure: Failure | None = None
    result: Payload | None = None
    has_taken_try: bool = False
    """The engine has taken the worker's own try of the call (`InvokeLater.tried`)."""


class CallTold(Frame, frozen=True, tag=27):
    """worker's `AskCall` -> what is known of the call, or why nothing is."""

    id: int
    state: InvocationState | None
    failure: Failure | None = None


class Taken(Frame, frozen=True, tag=26):
    """Number of chunks of its result that the caller of the call `ticket` has taken."""

    ticket: int
    count: int


ToWorker = Start | Cancel | LogReply | ChildEnded | Accepted | Taken | CallTold
ReplyFrame = LogReply | ChildEnded | Accepted | CallTold
"""What answers a request of a worker."""


# engine -> zygote


class Fork(Frame, frozen=True, tag=41):
    """Fork a process. Two file descriptors ride on the frame: its end of a socket, and its `Tally`. → `Forked`

    `kind` "describe" imports the module, says `Described` and exits; the other kinds run its calls. `pin_sources`: the
    module and what it imports from the folder are as in `sources`, or are read again where they are not in it.
    """

    child: int
    kind: ProcessKind
    module: str
    path: str
    folder: str
    memory_bytes: int
    limits: Limits
    pin_sources: bool
    sources: dict[str, bytes] = {}
    log_level: int = 20
    """Least `logging` level of what is passed on."""


class Kill(Frame, frozen=True, tag=42):
    """Kill the process and all that it has started, if it is still there. → `Exited`"""

    child: int


ToZygote = Fork | Kill


# zygote -> engine


class Up(Frame, frozen=True, tag=61):
    """The zygote has imported what workers need."""

    version: int


class Forked(Frame, frozen=True, tag=62):
    """zygote's `Fork` -> the process runs. `pid` is 0 if the system refused to fork; `error` says why."""

    child: int
    pid: int
    error: str = ""


class Exited(Frame, frozen=True, tag=63):
    """The process is gone: it exited with `status`, or signal `-status` killed it. `was_killed`: it lived when `Kill`
    came.
    """

    child: int
    status: int
    was_killed: bool = False


FromZygote = Up | Forked | Exited


_REQUEST_BITS: Final = 40


def ticket_of_try(worker: int, request: int) -> int:
    """The ticket of a call that a worker tries on its own when it makes this request: one that no engine gives.

    >>> ticket_of_try(3, 0) == ticket_of_try(2, 0), ticket_of_try(3, 0) < 0
    (False, True)
    """
    return -((worker << _REQUEST_BITS) + request + 1)


def is_try_of(worker: int, ticket: int) -> bool:
    """Whether the ticket can be that of a try of this worker.

    >>> is_try_of(3, ticket_of_try(3, 7)), is_try_of(2, ticket_of_try(3, 7)), is_try_of(0, 7)
    (True, False, False)
    """
    return ticket < 0 and (-ticket - 1) >> _REQUEST_BITS == worker


def max_frame_bytes(limits: Limits) -> int:
    """The largest frame that anybody may send under these limits: a request, or a page and the record that ends it."""
    largest = max(limits.request_bytes, limits.page_bytes + limits.record_bytes, MAX_SOURCES_BYTES)
    return largest + _HEADROOM_BYTES


_encode = msgspec.msgpack.Encoder().encode


def encode_frame(frame: Frame | Request | Reply) -> bytes:
    """The frame as it travels."""
    body = _encode(frame)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


F = TypeVar("F")


class FrameDecoder(Generic[F]):
    """Makes frames of bytes as they arrive. Reads nothing, waits for nothing."""

    __slots__ = ("_decode", "_max_bytes", "_rest")

    def __init__(self, decoder: msgspec.msgpack.Decoder[F], max_bytes: int) -> None:
        self._decode = decoder.decode
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[F]:
        """The frames that are complete now. `CorruptData` if these bytes can be no frame; then feed no more."""
        rest = self._rest
        if not rest:
            frames, used = self._split(data)
            rest += data[used:]
            return frames
        rest += data
        frames, used = self._split(rest)
        del rest[:used]
        return frames

    def _split(self, data: bytes | bytearray) -> tuple[list[F], int]:
        frames: list[F] = []
        start = 0
        with memoryview(data) as view:
            while len(data) - start >= _LENGTH_BYTES:
                body = start + _LENGTH_BYTES
                length = int.from_bytes(view[start:body], "little")
                if length > self._max_bytes:
                    raise CorruptData(f"a frame claims {length} bytes; the limit is {self._max_bytes}")
                if len(data) - body < length:
                    break
                start = body + length
                with view[body:start] as frame:
                    try:
                        frames.append(self._decode(frame))
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
                        raise CorruptData(f"a frame of {length} bytes cannot be read: {why}") from None
        return frames, start


def from_worker(limits: Limits) -> FrameDecoder[FromWorker]:
    """The engine's end of a worker's socket."""
    return FrameDecoder(_FROM_WORKER, max_frame_bytes(limits))


def to_worker(limits: Limits) -> FrameDecoder[ToWorker]:
    """The worker's end."""
    return FrameDecoder(_TO_WORKER, max_frame_bytes(limits))


def from_zygote() -> FrameDecoder[FromZygote]:
    """The engine's end of the zygote's socket."""
    return FrameDecoder(_FROM_ZYGOTE, _ZYGOTE_FRAME_BYTES)


def to_zygote() -> FrameDecoder[ToZygote]:
    """The zygote's end."""
    return FrameDecoder(_TO_ZYGOTE, _ZYGOTE_FRAME_BYTES)


_FROM_WORKER: Final[msgspec.msgpack.Decoder[FromWorker]] = msgspec.msgpack.Decoder(FromWorker)
_TO_WORKER: Final[msgspec.msgpack.Decoder[ToWorker]] = msgspec.msgpack.Decoder(ToWorker)
_FROM_ZYGOTE: Final[msgspec.msgpack.Decoder[FromZygote]] = msgspec.msgpack.Decoder(FromZygote)
_TO_ZYGOTE: Final[msgspec.msgpack.Decoder[ToZygote]] = msgspec.msgpack.Decoder(ToZygote)
