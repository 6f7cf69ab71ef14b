"""Serverless Python functions over a replicated, totally ordered shared log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boki.api.context import Context
from boki.api.function import function
from boki.api.http.request import Request
from boki.api.http.response import Response
from boki.api.log_calls import NewRecord
from boki.api.logbook import LogBook, LogSession, Subscription
from boki.api.streaming import Event
from boki.errors import (
    AlreadyExists,
    BokiError,
    CallCancelled,
    CallLost,
    CallTooDeep,
    ConditionFailed,
    ConfigError,
    ConnectionLost,
    CorruptData,
    DataDirectoryInUse,
    DeadlineExceeded,
    DiskFull,
    FunctionFailed,
    InvalidArgument,
    KeyReused,
    NoSuchFunction,
    NoSuchInvocation,
    NotFound,
    Overloaded,
    StoreFailed,
    TerminalError,
    TooLarge,
    Trimmed,
    Unauthorized,
    Unavailable,
    VersionTooNew,
    WrongState,
    WrongType,
)
from boki.log.ids import MAX_SEQNUM
from boki.log.operations import BookInfo
from boki.log.record import Expect, Page, Record
from boki.retry import Retry

if TYPE_CHECKING:
    from boki.client import BlockingClient, Client

__all__ = [
    "MAX_SEQNUM",
    "AlreadyExists",
    "BlockingClient",
    "BokiError",
    "BookInfo",
    "CallCancelled",
    "CallLost",
    "CallTooDeep",
    "Client",
    "ConditionFailed",
    "ConfigError",
    "ConnectionLost",
    "Context",
    "CorruptData",
    "DataDirectoryInUse",
    "DeadlineExceeded",
    "DiskFull",
    "Event",
    "Expect",
    "FunctionFailed",
    "InvalidArgument",
    "KeyReused",
    "LogBook",
    "LogSession",
    "NewRecord",
    "NoSuchFunction",
    "NoSuchInvocation",
    "NotFound",
    "Overloaded",
    "Page",
    "Record",
    "Request",
    "Response",
    "Retry",
    "StoreFailed",
    "Subscription",
    "TerminalError",
    "TooLarge",
    "Trimmed",
    "Unauthorized",
    "Unavailable",
    "VersionTooNew",
    "WrongState",
    "WrongType",
    "function",
]


def __getattr__(name: str) -> Any:
    """The clients bring HTTP with them, which a worker has no use for: they are imported when they are asked for."""
    if name in ("BlockingClient", "Client"):
        from boki import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
