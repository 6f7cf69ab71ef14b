"""Default values of dataclasses that msgspec leaves out of what it decodes.

A field that was not sent and has a plain default is no attribute of the instance that msgspec makes: it is found at
the class. Whoever reads it notices nothing, but msgspec writes what is in the instance, so the field would be lost
when the value continues. Here such fields are put where `__init__` would have put them. Types without such fields cost
nothing: that is found out once per annotation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from inspect import getattr_static
from types import MemberDescriptorType
from typing import Any, Final, get_origin

import msgspec

_LEAVES: Final = frozenset({str, int, float, bool, bytes, type(None)})


def filler_for(annotation: Any) -> Callable[[Any], None] | None:
    """What completes decoded values of the annotation in place; None if nothing can be missing in them."""
    return _fill if _can_miss(msgspec.inspect.type_info(annotation)) else None


def _can_miss(info: msgspec.inspect.Type) -> bool:
    """Whether a dataclass that leaves a default out stands anywhere in the type."""
    seen: set[int] = set()
    todo: list[Any] = [info]
    while todo:
        part = todo.pop()
        if isinstance(part, (tuple, list)):
            todo += part
        elif isinstance(part, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(part) not in seen:
            seen.add(id(part))
            if isinstance(part, msgspec.inspect.DataclassType) and _plain_defaults(get_origin(part.cls) or part.cls):
                return True
            todo += (getattr(part, name) for name in part.__struct_fields__ if name not in ("cls", "default"))
    return False


@cache
def _plain_defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    """The fields of a dataclass whose default stands at the class; one with a slot does not."""
    if not is_dataclass(kind):
        return ()
    return tuple(
        (field.name, field.default)
        for field in fields(kind)
        if field.default is not MISSING and not isinstance(getattr_static(kind, field.name, None), MemberDescriptorType)
    )


def _fill(value: Any) -> None:
    todo = [value]
    while todo:
        part = todo.pop()
        kind = type(part)
        if kind in _LEAVES:
            continue
        if isinstance(part, Mapping):
            todo += part.values()
        elif isinstance(part, (list, tuple, set, frozenset)):
            todo += part
        elif isinstance(part, msgspec.Struct):
            todo += (getattr(part, name) for name in part.__struct_fields__)
        elif is_dataclass(kind):
            for name, default in _plain_defaults(kind):
                part.__dict__.setdefault(name, default)  # as a frozen one has to be given its fields, too
            todo += (getattr(part, field.name, None) for field in fields(kind))
