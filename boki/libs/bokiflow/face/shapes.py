"""Workflows and what they did as JSON objects, for HTTP and for `--json`."""

from __future__ import annotations

from typing import Any

import msgspec

from boki.gateway.server.http.answers import invocation_body, without_traceback
from boki.libs.bokiflow.handles import state_of
from boki.libs.bokiflow.timeline import Span
from boki.protocol.calls import InvocationState


def state_shape(call: InvocationState) -> dict[str, Any]:
    """A workflow as its logged call describes it; `result` or `error` if it has ended."""
    known = state_of(call.name or call.id, call)
    body = invocation_body(call, None if call.failure is None else without_traceback(call.failure))
    for name in ("name", "function", "wakes", "errors", "last_error", "attributes"):
        body.pop(name, None)
    return (
        body
        | ({"attributes": known.attributes} if known.attributes else {})
        | {
            "id": known.id,
            "workflow": known.workflow,
            "invocation": call.id,
            "state": known.status,
        }
    )


def span_shape(span: Span) -> dict[str, Any]:
    """A span without the fields that say nothing."""
    found: dict[str, Any] = msgspec.to_builtins(span)
    return {name: value for name, value in found.items() if value not in ("", 0, -1) or (name == "n" and value >= 0)}
