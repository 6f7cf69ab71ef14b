"""What a library uses that brings a kind of function of its own, as BokiFlow brings workflows.

An application has no use for it. It is public so that anybody's library can do what Boki's own do: register functions
that run a body of the library's, start logged calls under ids of its own and suspend them, and write values and errors
down as the runtime does.
"""

from __future__ import annotations

from boki.api.failures import failure_of
from boki.api.function import Function, register_body
from boki.api.http.response import result_of, told_response
from boki.api.lent_port import InLoop, lend
from boki.api.library_use import refuse_options
from boki.api.logbook import begin_append, forget_tags, leave_append
from boki.api.payloads.values import ValueCodec, codec_for, decode_any, encode_any
from boki.api.suspension import (
    MAX_WAKES,
    BlockingCallsById,
    CallsById,
    Suspend,
    WakeOn,
    calls_reporting_to,
    changes_of,
    ended_before,
    ends_of,
    invocation_id_of,
)
from boki.errors import uncertain
from boki.log.checks import check_seconds
from boki.log.operations import Compared, Failure
from boki.protocol.calls import (
    ANY_VERSION,
    ATTENDS,
    OVER,
    PINNED,
    REPLAYED,
    THIS_VERSION,
    Attribute,
    CallStatus,
    InvocationState,
    Payload,
    most_call_bytes,
    version_of,
)
from boki.retry import check_retry

__all__ = [
    "ANY_VERSION",
    "ATTENDS",
    "MAX_WAKES",
    "OVER",
    "PINNED",
    "REPLAYED",
    "THIS_VERSION",
    "Attribute",
    "BlockingCallsById",
    "CallStatus",
    "CallsById",
    "Compared",
    "Failure",
    "Function",
    "InLoop",
    "InvocationState",
    "Payload",
    "Suspend",
    "ValueCodec",
    "WakeOn",
    "begin_append",
    "calls_reporting_to",
    "changes_of",
    "check_retry",
    "check_seconds",
    "codec_for",
    "decode_any",
    "encode_any",
    "ended_before",
    "ends_of",
    "failure_of",
    "forget_tags",
    "invocation_id_of",
    "leave_append",
    "lend",
    "most_call_bytes",
    "refuse_options",
    "register_body",
    "result_of",
    "told_response",
    "uncertain",
    "version_of",
]
