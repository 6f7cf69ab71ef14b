"""What the OpenAPI document says of workflows."""

from __future__ import annotations

from typing import Final

from boki.gateway.server.http.openapi_parts import (
    BYTES,
    KEY,
    NOTHING,
    POSITION,
    SECONDS,
    TEXT,
    TIMEOUT,
    WAIT,
    Json,
    array_of,
    json_of,
    object_of,
    operation_of,
    path_parameter,
    query_parameter,
)
from boki.libs.bokiflow.face.http import IF_ENDED, IF_RUNNING, STATES

_WORKFLOW: Final = path_parameter("workflow", "The workflow's name")
_ID: Final = path_parameter("id", "The id that it was started under")
_NAME: Final = path_parameter("message", "The name of the signal, update or promise")
_BOOK: Final = query_parameter("book", "Its LogBook; without it, the one that its decorator names, or its own name")
_REASON: Final = query_parameter("reason", "Why, for people")
_COUNT: Final[Json] = {"type": "integer", "minimum": 0}
_STATE: Final = object_of(
    {
        "id": TEXT,
        "workflow": TEXT,
        "invocation": TEXT | {"description": "The id of its logged call"},
        "book": TEXT,
        "state": {"enum": list(STATES)},
        "attempts": _COUNT | {"description": "Runs so far: it is run again after every wait that took long"},
    },
    {
        "accepted_us": _COUNT,
        "due_us": _COUNT,
        "started_us": _COUNT,
        "last_started_us": _COUNT,
        "next_us": _COUNT | {"description": "When it goes on by itself, if it waits for a time"},
        "finished_us": _COUNT,
        "attributes": {"type": "object", "description": "What lists find it by"},
        "note": TEXT | {"description": "Why it is paused"},
        "result": {"description": "What it returned; not in lists"},
        "result_base64": TEXT | {"contentEncoding": "base64"},
        "error": {"$ref": "#/components/schemas/Error"},
    },
    "A workflow",
)
_SPAN: Final = object_of(
    {
        "kind": {"enum": ["step", "call", "timer", "decision", "message"]},
        "name": TEXT,
        "state": {"enum": ["done", "failed", "unknown", "retrying", "open"]},
        "from_us": _COUNT,
        "until_us": _COUNT,
    },
    {
        "n": _COUNT | {"description": "The number of the command, in the order of their starts"},
        "next_us": _COUNT | {"description": "When the next attempt is due"},
        "attempts": _COUNT,
        "error": TEXT,
        "value": TEXT | {"description": "What it ended with, cut"},
    },
    "Something that a workflow did or was told",
)


def _of(name: str, summary: str, answer: Json, *more: Json, body: Json | None = None) -> Json:
    return operation_of(
        name, summary, [_WORKFLOW, *more, _BOOK, POSITION, TIMEOUT], json_of(answer), body=body, tag="Workflows"
    )


_STEP: Final = query_parameter(
    "step", "The first step that is done again; without it the last one that failed, else all are kept", _COUNT
)
_ONE: Final = "/flow/{workflow}/{id}"
_PAYLOAD: Final = json_of({}) | BYTES

FLOW_PATHS: Final[dict[str, Json]] = {
    "/flow": {
        "get": operation_of(
            "listWorkflows",
            "Workflows, those whose state changed last first. A page may be short, also empty, and not be the last",
            [
                query_parameter("workflow", "Only those of that name"),
                query_parameter("state", "Only those in this state; may be repeated", {"enum": list(STATES)}),
                query_parameter("id", "Only those whose ids begin so"),
                query_parameter("attribute", "Only those with this attribute, as name=value; may be repeated"),
                query_parameter("since_us", "Only those that changed at that time or later", _COUNT),
                query_parameter("until_us", "Only those that changed before that time", _COUNT),
                query_parameter("before", "Where the page begins: `before` of the page in front of it"),
                query_parameter("limit", "Maximum number", {"type": "integer", "minimum": 1}),
            ],
            json_of(object_of({"workflows": array_of(_STATE)}, {"before": TEXT})),
            tag="Workflows",
        )
    },
    "/flow/{workflow}": {
        "post": operation_of(
            "startWorkflow",
            "Start a workflow with the body as its payload. There is one workflow of an id at a time",
            [
                _WORKFLOW,
                query_parameter("id", "Its id; without it, one is made"),
                query_parameter("if_running", "What a start does if one of that id runs", {"enum": list(IF_RUNNING)}),
                query_parameter("if_ended", "What it does if one has ended", {"enum": list(IF_ENDED)}),
                query_parameter("attribute", "An attribute, as name=value; may be repeated"),
                query_parameter("delay_s", "It begins only so much later", SECONDS),
                query_parameter("limit_key", "What its limit counts it by, instead of the payload's field"),
                query_parameter("priority", "Of those that wait, the highest goes first", {"type": "integer"}),
                _BOOK,
                KEY,
            ],
            json_of(object_of({"id": TEXT, "workflow": TEXT, "invocation": TEXT, "book": TEXT})),
            body=_PAYLOAD,
            tag="Workflows",
        )
    },
    _ONE: {
        "get": _of("workflowState", "The state of a workflow, with its result once it has ended", _STATE, _ID, WAIT)
    },
    f"{_ONE}/history": {
        "get": _of(
            "workflowHistory",
            "What a workflow did, as spans of time",
            object_of(
                {
                    "workflow": _STATE,
                    "began_us": _COUNT,
                    "continuations": _COUNT,
                    "span_count": _COUNT,
                    "spans": array_of(_SPAN),
                }
            ),
            _ID,
            query_parameter("limit", "Only the last ones: their maximum number", _COUNT),
        )
    },
    f"{_ONE}/signal/{{message}}": {
        "post": _of(
            "signalWorkflow",
            "Send a message. It is kept until the workflow takes it, also if that is yet to be started",
            NOTHING,
            _ID,
            _NAME,
            KEY,
            body=_PAYLOAD,
        )
    },
    f"{_ONE}/update/{{message}}": {
        "post": _of(
            "updateWorkflow",
            "Send a message and wait for its answer; under the same key it is sent once, and answered again",
            object_of({"answer": {}}),
            _ID,
            _NAME,
            WAIT,
            KEY,
            body=_PAYLOAD,
        )
    },
    f"{_ONE}/query/{{message}}": {
        "post": _of(
            "queryWorkflow",
            "What its handler of that query says now. Nothing happens, and it may have ended",
            object_of({"answer": {}}),
            _ID,
            _NAME,
            body=_PAYLOAD,
        )
    },
    f"{_ONE}/promise/{{message}}": {
        "post": _of(
            "resolvePromise",
            "Give a promise of the workflow its value. The first one counts",
            NOTHING,
            _ID,
            _NAME,
            body=_PAYLOAD,
        )
    },
    f"{_ONE}/cancel": {
        "post": _of("cancelWorkflow", "Ask it to end: it undoes what it has done", NOTHING, _ID, _REASON)
    },
    f"{_ONE}/kill": {"post": _of("killWorkflow", "End it as it is: nothing is undone", NOTHING, _ID, _REASON)},
    f"{_ONE}/pause": {"post": _of("pauseWorkflow", "Begin nothing more until it is resumed", NOTHING, _ID, _REASON)},
    f"{_ONE}/resume": {"post": _of("resumeWorkflow", "Go on", NOTHING, _ID, _REASON)},
    f"{_ONE}/rewind": {
        "post": _of(
            "rewindWorkflow",
            "Go on in front of a step: it and what came after it is forgotten. It must have ended, or be paused",
            object_of({"step": _COUNT}),
            _ID,
            _STEP,
        )
    },
    f"{_ONE}/fork": {
        "post": _of(
            "forkWorkflow",
            "Begin a workflow of another id with the history of this one in front of a step",
            object_of({"id": TEXT, "workflow": TEXT, "invocation": TEXT}),
            _ID,
            _STEP,
            query_parameter("id", "The id of the new one; without it, one is made"),
        )
    },
}
