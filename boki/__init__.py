"""Serverless Python functions over a replicated, totally ordered shared log."""

from __future__ import annotations

from boki.errors import (
    BokiError,
    CallLost,
    CallTooDeep,
    ConditionFailed,
    ConfigError,
    ConnectionLost,
    CorruptData,
    DataDirectoryInUse,
    DataLost,
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
    TooLarge,
    Trimmed,
    Unauthorized,
    Unavailable,
    VersionTooNew,
    WrongType,
)
from boki.log.ids import MAX_SEQNUM
from boki.log.operations import BookInfo
from boki.log.record import Expect, Page, Record
from boki.runtime.context import Context
from boki.runtime.function import function
from boki.runtime.log_calls import NewRecord
from boki.runtime.logbook import LogBook, Subscription

__all__ = [
    "MAX_SEQNUM",
    "BokiError",
    "BookInfo",
    "CallLost",
    "CallTooDeep",
    "ConditionFailed",
    "ConfigError",
    "ConnectionLost",
    "Context",
    "CorruptData",
    "DataDirectoryInUse",
    "DataLost",
    "DeadlineExceeded",
    "DiskFull",
    "Expect",
    "FunctionFailed",
    "InvalidArgument",
    "KeyReused",
    "LogBook",
    "NewRecord",
    "NoSuchFunction",
    "NoSuchInvocation",
    "NotFound",
    "Overloaded",
    "Page",
    "Record",
    "StoreFailed",
    "Subscription",
    "TooLarge",
    "Trimmed",
    "Unauthorized",
    "Unavailable",
    "VersionTooNew",
    "WrongType",
    "function",
]
