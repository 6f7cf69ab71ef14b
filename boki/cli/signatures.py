"""What a function takes and returns, from the schemas that it registered: for lists, and for commands to try."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

from boki.api.payloads.shapes import notation_of
from boki.protocol.calls import FunctionInfo

Schema = Mapping[str, Any]

NO_PAYLOAD: Final = {"type": "null"}
_MAX_DEPTH: Final = 6
_RESULTS: Final[Mapping[str, str]] = {"text": "str", "bytes": "bytes", "response": "Response"}
_SAMPLES: Final[dict[str, Any]] = {"string": "Ada", "integer": 1, "number": 1.5, "boolean": True, "null": None}


def signature_of(info: FunctionInfo) -> str:
    """One line: `greet(str) -> str`."""
    payload: str = "bytes" if info.payload_encoding == "bytes" else "str"
    if info.payload_encoding == "json":
        payload = "" if info.payload_schema == NO_PAYLOAD else notation_of(info.payload_schema or {})
    result = _RESULTS.get(info.result_encoding) or notation_of(info.result_schema or {})
    result = "stream" if info.streams else result
    return f"{info.name}({payload}) -> {result}"


def command_of(info: FunctionInfo) -> str:
    """A `boki invoke` that this function takes; empty if none can be made up from its schema, or if it streams."""
    if info.streams:  # which may have no end
        return ""
    words = ["boki", "invoke", info.name]
    if info.payload_encoding != "json":
        words.append("Ada")
    elif info.payload_schema != NO_PAYLOAD:
        try:
            words.append(json.dumps(_sample(info.payload_schema or {}, info.payload_schema or {}, 0)))
        except LookupError:
            return ""
    if words[-1].startswith("-"):
        words.insert(-1, "--")
    return shlex.join(words)


def _sample(schema: Schema, root: Schema, depth: int) -> Any:
    """A value that fits; `LookupError` if none is obvious, as where a pattern or a bound restricts it."""
    schema = _resolved(schema, root)
    if depth > _MAX_DEPTH or schema.keys() & {"pattern", "format", "minimum", "maximum", "minLength", "minItems"}:
        raise LookupError
    for name in ("default", "const"):
        if name in schema:
            return schema[name]
    if "enum" in schema:
        return schema["enum"][0]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return _sample(options[0], root, depth + 1)
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        return [_sample(items, root, depth + 1)] if isinstance(items, Mapping) else []
    if kind == "object":
        required = schema.get("required", ())
        properties: Mapping[str, Schema] = schema.get("properties", {})
        return {name: _sample(field, root, depth + 1) for name, field in properties.items() if name in required}
    return _SAMPLES[str(kind)]


def _resolved(schema: Schema, root: Schema) -> Schema:
    """Without `$ref`, which points to `#/$defs/NAME` of the root."""
    for _ in range(_MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            break
        schema = root.get("$defs", {}).get(reference.rpartition("/")[2], {})
    return schema
