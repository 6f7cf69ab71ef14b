"""Arbitrary messages of any class, made from the types of its fields."""

from __future__ import annotations

import enum
import types
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from boki.net.codec import APART_BYTES
from boki.net.traffic import RULES
from boki.protocol.messages import Message
from boki.retry import Retry

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_NAME = st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1, max_size=5)
_BYTES = st.binary(max_size=12) | st.sampled_from([APART_BYTES - 1, APART_BYTES, 3 * APART_BYTES]).map(bytes)
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**63 - 1),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    str: _TEXT,
    bytes: _BYTES,
    None: st.none(),
    type(None): st.none(),
    msgspec.UnsetType: st.just(msgspec.UNSET),
    Retry: st.builds(  # a policy refuses numbers that make no sense
        Retry,
        attempts=st.integers(1, 99),
        first_s=st.floats(0, 10),
        factor=st.floats(1, 9),
        max_s=st.floats(10, 99),
        jitter=st.floats(0, 1),
        deadline_s=st.none() | st.floats(0, 99),
        errors=st.lists(_NAME, max_size=2).map(tuple),
        never=st.lists(_NAME, max_size=2).map(tuple),
    ),
    Any: st.none() | st.booleans() | st.integers(-(2**60), 2**60) | _TEXT | st.lists(_TEXT, max_size=2),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as it is written in a message's field."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        (meta,) = kind.__metadata__
        return st.integers(meta.ge, meta.le)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, NewType):
        return values_of(kind.__supertype__)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(argument) for argument in arguments])
    if origin in (tuple, list):
        if origin is list or arguments[-1] is ...:
            return st.lists(values_of(arguments[0]), max_size=3).map(origin)
        return st.tuples(*map(values_of, arguments))
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    fields = msgspec.structs.fields(kind)
    return st.builds(kind, **{field.name: st.deferred(lambda t=field.type: values_of(t)) for field in fields})


MESSAGES: dict[type[Message], st.SearchStrategy[Message]] = {kind: values_of(kind) for kind in RULES}
ANY_MESSAGE = st.sampled_from(sorted(MESSAGES, key=lambda kind: kind.__name__)).flatmap(MESSAGES.__getitem__)
