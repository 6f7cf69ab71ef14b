"""What a library's decorator, such as `@consume`, asks of the function that it registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from boki.api.payloads.shapes import notation_of
from boki.api.payloads.values import ValueCodec
from boki.errors import ConfigError
from boki.protocol.calls import Encoding

_WITHOUT_SCHEMA: Final = {"text": "str", "bytes": "bytes", "json": "anything", "response": "anything"}
"""How a payload's type is written that has no schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A decorated function, as far as a library can refuse it."""

    where: str
    """Its name, file and line, to begin an error message with."""
    takes_payload: bool
    payload: str
    """The type of its payload as people write it: `int`, `[str, ...]`, `{"item": str}`, `anything`."""
    payload_encoding: Encoding
    streams: bool
    """Whether it is a generator."""


def signature_of(where: str, payload: ValueCodec | None, *, streams: bool) -> Signature:
    """The signature of a function whose payload is encoded so; None: it takes no payload."""
    shape = ""
    if payload is not None:
        shape = _WITHOUT_SCHEMA[payload.encoding] if payload.schema is None else notation_of(payload.schema)
    return Signature(
        where=where,
        takes_payload=payload is not None,
        payload=shape,
        payload_encoding=payload.encoding if payload else "json",
        streams=streams,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Use of a function by a library, as its decorator was told. The decorator returns `function(use=Use(...))`.

    Wherever the function is known, `FunctionInfo.settings_of` gives the settings back to the library's own code.
    """

    library: str
    """The library's name, as its face has it."""
    decorator: str
    """As users write it, for error messages: `@consume`."""
    settings: msgspec.Struct
    """Values that JSON has. Its fields are the decorator's own options."""
    check: Callable[[Signature], None] | None = None
    """Raises `ConfigError` for a function that the library could never call."""
    ignores_unknown_fields: bool = False
    """Whether payloads may, unless `unknown_fields` says otherwise, have fields that their type lacks.

    For payloads that outlive the version that made them.
    """

    def as_builtins(self) -> Mapping[str, Any]:
        """The settings as `FunctionInfo` carries them."""
        found: Mapping[str, Any] = msgspec.to_builtins(self.settings)
        return found


def refuse_options(decorator: str, unknown: Iterable[str], known: Sequence[str]) -> None:
    """`ConfigError` for the first of the options that the decorator does not have, if there is one: which of the known
    ones may be meant, and all of those.
    """
    for name in unknown:
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        guess = f"; did you mean {near[0]}?" if near else "."
        raise ConfigError(f"{decorator} has no option {name}{guess} Its options: {', '.join(known)}", field=name)
