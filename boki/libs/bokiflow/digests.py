"""Digests of arguments: what tells two calls of one step apart."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec

from boki import InvalidArgument

DIGEST_BYTES: Final = 8
"""Enough to notice a change; nothing is looked up by a digest."""


def _encode_model(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"objects of type {type(value).__name__} cannot be encoded")


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_encode_model, order="deterministic").encode
NO_ARGUMENTS: Final = b""


def digest_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str) -> bytes:
    """The digest of arguments, the same in every process. `InvalidArgument` if they are no plain values.

    >>> digest_of((1, {"b": 2, "a": {3, 1}}), {}, "f") == digest_of((1, {"a": {1, 3}, "b": 2}), {}, "f")
    True
    """
    if not args and not kwargs:
        return NO_ARGUMENTS
    try:
        data = _encode((args, kwargs) if kwargs else args)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(
            f"the arguments of {what} cannot be told apart from others ({error}): pass numbers, text, bytes, lists, "
            "dicts, dataclasses, structs or models, and make everything else inside of the step",
            field="arguments",
        ) from None
    return blake2b(data, digest_size=DIGEST_BYTES).digest()
