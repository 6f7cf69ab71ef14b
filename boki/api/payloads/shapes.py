"""A JSON schema as people write a value: `{"item": str, "count": int = 1}`. For messages about payloads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_NAMES: Final = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "null": "None"}
_MAX_CHARS: Final = 240
_MAX_DEPTH: Final = 4


def shape_of(schema: Mapping[str, Any]) -> str:
    """What a value of that schema is, to stand after "takes".

    >>> shape_of({"type": "integer"})
    'int'
    >>> shape_of({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}})
    'a list like [int | None, ...]'
    >>> fields = {"item": {"type": "string"}, "count": {"type": "integer", "default": 1}}
    >>> shape_of({"type": "object", "properties": fields, "required": ["item"]})
    'an object like {"item": str, "count": int = 1}'
    """
    shape = notation_of(schema)
    return {"{": "an object like ", "[": "a list like "}.get(shape[0], "") + shape


def notation_of(schema: Mapping[str, Any]) -> str:
    """The same without an article, to stand between parentheses."""
    shape = _shape(schema, schema.get("$defs", {}), 0)
    return shape if len(shape) <= _MAX_CHARS else shape[:_MAX_CHARS] + " …"


def _shape(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> str:
    if depth > _MAX_DEPTH:
        return "…"
    if "$ref" in schema:
        return _shape(definitions.get(schema["$ref"].rpartition("/")[2], {}), definitions, depth)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " | ".join(dict.fromkeys(_shape(choice, definitions, depth + 1) for choice in choices))
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "object":
        return _object(schema, definitions, depth)
    if kind == "array":
        if "prefixItems" in schema:
            return f"[{', '.join(_shape(item, definitions, depth + 1) for item in schema['prefixItems'])}]"
        return f"[{_shape(schema.get('items') or {}, definitions, depth + 1)}, ...]"
    if schema.get("contentEncoding") == "base64":
        return "base64"
    return _NAMES.get(kind, "anything") if isinstance(kind, str) else "anything"


def _object(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> str:
    required = schema.get("required", ())
    fields = []
    for name, field in schema.get("properties", {}).items():
        text = f"{json.dumps(name, ensure_ascii=False)}: {_shape(field, definitions, depth + 1)}"
        if name not in required:
            text += f" = {json.dumps(field['default'], ensure_ascii=False)}" if "default" in field else " = …"
        fields.append(text)
    more = schema.get("additionalProperties")
    if not fields and isinstance(more, Mapping):
        fields.append(f"str: {_shape(more, definitions, depth + 1)}")
    if not fields and more is not False:
        return "dict"
    return "{" + ", ".join(fields) + "}"
