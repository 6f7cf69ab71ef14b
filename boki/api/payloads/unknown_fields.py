"""Fields of a JSON object that its dataclass or struct does not have: mostly a typing error in an optional one.

msgspec skips them, and a struct that wants them skipped cannot be told from one that says nothing. So a payload
is compared with its type here, before it is decoded. The check of a type is made once, out of one closure for each part
that may hold an object; a type without any costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from msgspec import inspect

Check = Callable[[Any], None]
"""Raises `UnknownField` if a JSON value has an object with a field that its type does not have."""


class UnknownField(ValueError):
    """A field that is not among those of its type, and the one that may be meant."""

    def __init__(self, name: str, known: frozenset[str]) -> None:
        near = get_close_matches(name, known, n=1)
        super().__init__(f"unknown field {name!r:.80}" + (f"; did you mean {near[0]}?" if near else ""))
        self.name = name[:80]


def check_for(annotation: Any) -> Check | None:
    """The check of payloads of that annotation; None if it holds no dataclass and no struct."""
    return _make(inspect.type_info(annotation), {})


def _make(info: inspect.Type, made: dict[int, Check]) -> Check | None:
    match info:
        case inspect.Metadata():
            return _make(info.type, made)
        case inspect.DataclassType():
            return _of_object(info, info.fields, frozenset(), made)
        case inspect.StructType():
            if info.array_like:
                return None
            tag = frozenset((info.tag_field,)) if info.tag_field else frozenset[str]()
            return _of_object(info, info.fields, tag, made)
        case inspect.CollectionType():
            return _of_items(_make(info.item_type, made))
        case inspect.DictType():
            return _of_values(_make(info.value_type, made))
        case inspect.TupleType():
            return _of_places([_make(item, made) for item in info.item_types])
        case inspect.UnionType():
            return _of_union(info, made)
        case _:
            return None


def _of_object(
    info: inspect.Type, fields: tuple[inspect.Field, ...], more: frozenset[str], made: dict[int, Check]
) -> Check:
    if (found := made.get(id(info))) is not None:
        return found
    known = frozenset(field.encode_name for field in fields) | more
    below: dict[str, Check] = {}

    def check(value: Any) -> None:
        if isinstance(value, dict):
            if not value.keys() <= known:
                raise UnknownField(next(name for name in value if name not in known), known)
            for name, inner in below.items():
                if name in value:
                    inner(value[name])

    made[id(info)] = check  # before its fields: a type may hold itself
    for field in fields:
        inner = _make(field.type, made)
        if inner is not None:
            below[field.encode_name] = inner
    return check


def _of_items(inner: Check | None) -> Check | None:
    if inner is None:
        return None

    def check(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                inner(item)

    return check


def _of_values(inner: Check | None) -> Check | None:
    if inner is None:
        return None

    def check(value: Any) -> None:
        if isinstance(value, dict):
            for item in value.values():
                inner(item)

    return check


def _of_places(inner: list[Check | None]) -> Check | None:
    if not any(inner):
        return None

    def check(value: Any) -> None:
        if isinstance(value, list):
            for one, item in zip(inner, value, strict=False):
                if one is not None:
                    one(item)

    return check


def _of_union(info: inspect.UnionType, made: dict[int, Check]) -> Check | None:
    """Each part looks only at what it may be meant by; of several structs the tag says which one is."""
    others: list[Check] = []
    by_tag: dict[Any, Check] = {}
    tag_field = ""
    for part in info.types:
        inner = _make(part, made)
        if inner is None:
            continue
        if isinstance(part, inspect.StructType) and part.tag_field:
            tag_field = part.tag_field
            by_tag[part.tag] = inner
        else:
            others.append(inner)
    if not others and not by_tag:
        return None

    def check(value: Any) -> None:
        for other in others:
            other(value)
        if isinstance(value, Mapping) and (tagged := by_tag.get(value.get(tag_field))) is not None:
            tagged(value)

    return check
