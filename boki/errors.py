"""Every error that Boki raises, and what the caller may do next.

An error says three things besides its message:

- ``outcome``: ``"not_applied"`` (it did not happen and never will), ``"unknown"`` (it may have happened: repeat only
  under the same key), or ``"failed"`` (the user's function ran and raised);
- ``retryable``: whether the very same request may succeed later;
- ``code``: a stable name for programs, the same in Python, on the wire and in HTTP bodies.

Definite and indefinite errors are Maelstrom's best idea; a log API without the difference forces its users to guess.

BokiError
├── InvalidArgument         a value that can never be accepted: the message names it and what to write instead
│   ├── WrongType             a value of the wrong Python type; also a `TypeError`
│   ├── TooLarge              over a limit, which the message names
│   └── ConfigError           refused at start-up
├── Unauthorized            no token, or a wrong one
├── NotFound                there is no such record
│   ├── NoSuchFunction
│   └── NoSuchInvocation
├── Trimmed                 it was there and has been trimmed; `next_seqnum` is where reading may continue
├── ConditionFailed         `when=` did not hold; `actual_seqnum` is the tag's last record, `actual_count` its count
├── AlreadyExists           there is a call of the id that was chosen
├── KeyReused               the same idempotency key came with another request
├── Overloaded              a budget is used up; repeat after `retry_after_s`
│   └── CallTooDeep           calls are nested deeper than the limit
├── Unavailable             starting, draining, or no quorum
│   └── DiskFull              the stores have no room; reads continue
├── DataDirectoryInUse      another process holds the data directory
├── VersionTooNew           written by a newer Boki than this one
├── DeadlineExceeded        the deadline passed; the outcome says whether it may have happened
├── CallLost                the worker that ran the call is gone; it may have run in part
├── CallCancelled           the logged call was cancelled
├── WrongState              the logged call is in a state in which this cannot be done to it
├── ConnectionLost          the answer never came; the request may have been carried out
├── FunctionFailed          the user's function raised
├── TerminalError           raised by a function: do not run this call again
├── CorruptData             stored bytes fail their checksum; they are never returned
└── StoreFailed             a disk failed a write or a sync: the node has stopped
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

__all__ = [
    "AlreadyExists",
    "BokiError",
    "CallCancelled",
    "CallLost",
    "CallTooDeep",
    "ConditionFailed",
    "ConfigError",
    "ConnectionLost",
    "CorruptData",
    "DataDirectoryInUse",
    "DeadlineExceeded",
    "DiskFull",
    "ErrorBody",
    "FunctionFailed",
    "InvalidArgument",
    "KeyReused",
    "NoSuchFunction",
    "NoSuchInvocation",
    "NotFound",
    "Outcome",
    "Overloaded",
    "StoreFailed",
    "TerminalError",
    "TooLarge",
    "Trimmed",
    "Unauthorized",
    "Unavailable",
    "VersionTooNew",
    "WrongState",
    "WrongType",
]

Outcome = Literal["not_applied", "unknown", "failed"]


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as it travels: between processes, and as the body of an HTTP answer."""

    code: str
    message: str
    outcome: Outcome = "not_applied"
    retryable: bool = False
    details: dict[str, Any] = {}


_BY_CODE: dict[str, type[BokiError]] = {}


class BokiError(Exception):
    """The root. `details` are the facts behind the message, as JSON values; each is also an attribute."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    default_outcome: ClassVar[Outcome] = "not_applied"
    default_retryable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Errors of libraries travel, too: where the library is loaded, a peer's error has its class."""
        if "code" in cls.__dict__ and cls.__init__ is BokiError.__init__:
            _BY_CODE.setdefault(cls.code, cls)

    def __init__(
        self, message: str, *, outcome: Outcome | None = None, retryable: bool | None = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.outcome: Outcome = outcome or self.default_outcome
        self.retryable = self.default_retryable if retryable is None else retryable
        self.details = details

    def __getattr__(self, name: str) -> Any:
        details = self.__dict__.get("details", {})
        if name in details:
            return details[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def body(self) -> ErrorBody:
        """This error as a value that travels."""
        return ErrorBody(self.code, self.message, self.outcome, self.retryable, self.details)

    @staticmethod
    def from_body(body: ErrorBody) -> BokiError:
        """The exception that a peer meant. A code that this version does not know becomes a plain `BokiError`."""
        kind = _BY_CODE.get(body.code, BokiError)
        error = kind(body.message, outcome=body.outcome, retryable=body.retryable)
        error.details = dict(body.details)  # not as keywords: a stranger may have named one "message"
        return error


def uncertain(error: BokiError) -> BokiError:
    """The same error for a request of which an earlier try may have been carried out."""
    if error.outcome != "not_applied":
        return error
    return BokiError.from_body(msgspec.structs.replace(error.body(), outcome="unknown"))


class InvalidArgument(BokiError, ValueError):
    """A value that can never be accepted. Nothing happened; the message says what to write instead."""

    code = "invalid_argument"
    http_status = 400


class WrongType(InvalidArgument, TypeError):
    """A value of the wrong Python type, such as `tags="abc"`. Nothing happened; the message says what to write."""

    code = "wrong_type"


class TooLarge(InvalidArgument):
    """Over a limit that the message names. Nothing happened."""

    code = "too_large"
    http_status = 413


class ConfigError(InvalidArgument):
    """A configuration that cannot work, refused at start-up."""

    code = "config_error"


class Unauthorized(BokiError):
    """The token is missing or wrong."""

    code = "unauthorized"
    http_status = 401


class NotFound(BokiError):
    """There is no such record in this book."""

    code = "not_found"
    http_status = 404


class NoSuchFunction(NotFound):
    """No function is registered under that name."""

    code = "no_such_function"


class NoSuchInvocation(NotFound):
    """No invocation has that id, or its result is older than the retention."""

    code = "no_such_invocation"


class Trimmed(BokiError):
    """The record was there and has been trimmed. `next_seqnum` is where reading may continue."""

    code = "trimmed"
    http_status = 410


class ConditionFailed(BokiError):
    """An append's `when=` did not hold, so nothing was appended.

    `actual_seqnum`: the tag's last record (0: none). Of a condition on a count also `actual_count`: how many records of
    the tag have ever been appended.
    """

    code = "condition_failed"
    http_status = 409


class KeyReused(BokiError):
    """The same idempotency key came with another request. Nothing happened."""

    code = "key_reused"
    http_status = 409


class AlreadyExists(BokiError):
    """There is a call of the id that was chosen, and the start was not to stand for it. Nothing happened."""

    code = "already_exists"
    http_status = 409


class Overloaded(BokiError):
    """A budget is used up. Nothing happened; repeat after `retry_after_s`."""

    code = "overloaded"
    http_status = 429
    default_retryable = True


class CallTooDeep(Overloaded):
    """Calls are nested deeper than the limit."""

    code = "call_too_deep"
    default_retryable = False


class Unavailable(BokiError):
    """The system is starting or draining, or has no quorum. Nothing happened."""

    code = "unavailable"
    http_status = 503
    default_retryable = True


class DiskFull(Unavailable):
    """The storage nodes have no room. Nothing was appended; reads and trims continue."""

    code = "disk_full"


class DataDirectoryInUse(BokiError):
    """Another process holds the data directory."""

    code = "data_directory_in_use"


class VersionTooNew(BokiError):
    """Bytes written by a newer Boki. Nothing was read or changed."""

    code = "version_too_new"


class DeadlineExceeded(BokiError):
    """The deadline passed. `outcome` says whether the request may have been carried out."""

    code = "deadline_exceeded"
    http_status = 504
    default_outcome = "unknown"
    default_retryable = True


class CallLost(BokiError):
    """The worker that ran the call is gone: it may have run in part."""

    code = "call_lost"
    http_status = 500
    default_outcome = "unknown"
    default_retryable = True


class CallCancelled(BokiError):
    """The logged call was cancelled. `outcome` says whether it may have run in part."""

    code = "call_cancelled"
    http_status = 409


class WrongState(BokiError):
    """A logged call is in a `state` in which this cannot be done to it: one that has ended cannot be cancelled."""

    code = "wrong_state"
    http_status = 409


class ConnectionLost(BokiError):
    """The answer never came: the request may have been carried out. Repeat only under the same key."""

    code = "connection_lost"
    http_status = 503
    default_outcome = "unknown"
    default_retryable = True


class FunctionFailed(BokiError):
    """The user's function ran and raised. `error_type` and `traceback` say what; a gateway that is open to strangers
    leaves the traceback out.
    """

    code = "function_failed"
    http_status = 422
    default_outcome = "failed"


class TerminalError(BokiError):
    """For functions to raise: this call must not run again, whatever its `Retry` says. The message is for the caller.

    An exception of any class may say the opposite with an attribute `retry_after_s`: when to run the call again.
    """

    code = "terminal"
    http_status = 422
    default_outcome = "failed"


class CorruptData(BokiError):
    """Stored bytes fail their checksum. They are never returned; the message says which."""

    code = "corrupt_data"


class StoreFailed(BokiError):
    """A disk failed a write or a sync. A failed sync is never repeated: the node has stopped."""

    code = "store_failed"
    http_status = 503
    default_outcome = "unknown"
