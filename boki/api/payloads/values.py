"""Payloads and results as Python values: what an annotation accepts, and the bytes that travel.

`bytes` travels raw, `str` as text, everything else as JSON that msgspec (or pydantic, for its models) checks against
the annotation. Text stands for a str value wherever it arrives, so a JSON function that takes a str takes text, and a
text function takes a JSON string. Text and bytes that are JSON stand for what they say where only that fits. pydantic
is never imported here: who annotates with a model has imported it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any, Final, Protocol, get_args

import msgspec

from boki.api.payloads.defaults import filler_for
from boki.api.payloads.json_faults import find_nonfinite, why_not_json
from boki.api.payloads.unknown_fields import UnknownField, check_for
from boki.errors import ConfigError, InvalidArgument
from boki.protocol.calls import Encoding, Payload

_UNREADABLE: Final = (UnknownField, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading JSON may raise: another type, an unknown field, no JSON, no UTF-8, nested too deep."""
_UNWRITABLE: Final = (TypeError, ValueError, RecursionError)

_UNSUPPORTED: Final = re.compile(
    r"ncoding objects of type (\S+) is unsupported|Unable to serialize unknown type: <class '(.+)'>"
)

NOT_JSON: Final = "not_json"
"""The `reason` of errors for values that JSON cannot say, whatever they are annotated with."""
NO_PAYLOAD: Final = Payload("bytes", b"")
"""What a caller sends that gives no payload."""


class ValueCodec(Protocol):
    """The values of one annotation. `what` names their place in messages, such as "payload of greet"."""

    encoding: Encoding
    schema: dict[str, Any] | None
    """JSON schema; None for text and bytes."""

    def encode(self, value: Any, what: str) -> Payload:
        """The value as it travels; `InvalidArgument` naming the field if it does not fit the annotation."""

    def decode(self, payload: Payload, what: str) -> Any:
        """The value that came; `InvalidArgument` naming the field if it does not fit the annotation."""


def codec_for(annotation: Any, what: str, *, refuses_unknown: bool = False) -> ValueCodec:
    """The codec of an annotation; `ConfigError` if its values cannot travel.

    `refuses_unknown`: an object with a field that its dataclass or struct does not have is refused when it is decoded.
    """
    if annotation is bytes:
        return BytesCodec()
    if annotation is str:
        return TextCodec()
    if annotation is Any or annotation is object:
        return AnyCodec()
    if any(_is_pydantic(part) for part in _parts(annotation)):
        return PydanticCodec(annotation, what)
    return JsonCodec(annotation, what, refuses_unknown=refuses_unknown)


def encode_any(value: Any, what: str) -> Payload:
    """A value as it travels to a function whose annotation is not known here."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Payload("bytes", bytes(value))
    if isinstance(value, str):
        return _encode_text(value, what)
    return Payload("json", _written(value, what))


def decode_any(payload: Payload, what: str) -> Any:
    """The value of bytes, text or JSON as it came."""
    if payload.encoding == "bytes":
        return payload.data
    if payload.encoding == "text":
        return _text(payload.data, what)
    try:
        return msgspec.json.decode(payload.data)
    except _UNREADABLE as error:
        raise _mismatch(what, error, payload) from None


class BytesCodec:
    """Bytes as they are; also the bytes of what came as text or JSON."""

    encoding: Encoding = "bytes"
    schema: dict[str, Any] | None = None

    def encode(self, value: Any, what: str) -> Payload:
        """See `ValueCodec`."""
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidArgument(f"{what} must be bytes, not {type(value).__name__}", field=_field(what))
        return Payload("bytes", bytes(value))

    def decode(self, payload: Payload, what: str) -> bytes:  # noqa: ARG002 - any bytes will do
        """See `ValueCodec`."""
        return payload.data


class TextCodec:
    """UTF-8 text; also a JSON string."""

    encoding: Encoding = "text"
    schema: dict[str, Any] | None = None

    def encode(self, value: Any, what: str) -> Payload:
        """See `ValueCodec`."""
        if not isinstance(value, str):
            raise InvalidArgument(f"{what} must be str, not {type(value).__name__}", field=_field(what))
        return _encode_text(value, what)

    def decode(self, payload: Payload, what: str) -> str:
        """See `ValueCodec`."""
        if payload.encoding != "json":
            return _text(payload.data, what)
        try:
            return msgspec.json.decode(payload.data, type=str)
        except _UNREADABLE as error:
            raise _mismatch(what, error, payload) from None


class AnyCodec:
    """Whatever comes, when there is no annotation."""

    encoding: Encoding = "json"

    def __init__(self) -> None:
        self.schema: dict[str, Any] | None = {}

    def encode(self, value: Any, what: str) -> Payload:
        """See `ValueCodec`."""
        return encode_any(value, what)

    def decode(self, payload: Payload, what: str) -> Any:
        """See `ValueCodec`."""
        return decode_any(payload, what) if payload.data else None


class JsonCodec:
    """JSON types, dataclasses, TypedDicts, enums, msgspec structs: whatever msgspec can check."""

    encoding: Encoding = "json"

    def __init__(self, annotation: Any, what: str, *, refuses_unknown: bool) -> None:
        try:
            self.schema: dict[str, Any] | None = msgspec.json.schema(annotation)
            self._check = check_for(annotation) if refuses_unknown else None
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(annotation)
            self._fill = filler_for(annotation)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{what}: {annotation!r} cannot travel ({str(error).splitlines()[-1]}); annotate it with bytes, str, "
                "a JSON type, a dataclass, a msgspec.Struct or a pydantic model",
                field=_field(what),
            ) from None
        self._annotation = annotation

    def encode(self, value: Any, what: str) -> Payload:
        """See `ValueCodec`. What was written is read again, so that a misfit is found here and not by the peer."""
        data = _written(value, what)
        try:
            self._decoder.decode(data)
        except _UNREADABLE as error:
            raise _mismatch(what, error) from None
        return Payload("json", data)

    def decode(self, payload: Payload, what: str) -> Any:
        """See `ValueCodec`."""
        try:
            if payload.encoding == "text":
                value = self._from_text(_text(payload.data, what))
            elif payload.encoding == "json" or not payload.data or is_json(payload.data):
                value = self._read(payload.data)
            else:
                raise _not_json(what)
        except _UNREADABLE as error:
            raise _mismatch(what, error, payload) from None
        if self._fill is not None:
            self._fill(value)
        return value

    def _from_text(self, text: str) -> Any:
        """Text is a string if the annotation has room for one, else the JSON that it says."""
        try:
            return msgspec.convert(text, self._annotation)
        except msgspec.ValidationError:
            if not is_json(text):
                raise
            return self._read(text.encode())

    def _read(self, data: bytes) -> Any:
        value = self._decoder.decode(data or b"null")
        if self._check is not None and data:
            self._check(msgspec.json.decode(data))
        return value


class PydanticCodec:
    """Annotations in which a pydantic model occurs."""

    encoding: Encoding = "json"

    def __init__(self, annotation: Any, what: str) -> None:
        pydantic = sys.modules["pydantic"]
        self._invalid: type[Exception] = pydantic.ValidationError
        try:
            self._adapter: Any = pydantic.TypeAdapter(annotation)
            self.schema: dict[str, Any] | None = self._adapter.json_schema()
        except pydantic.errors.PydanticUserError as error:
            raise ConfigError(f"{what}: {annotation!r} cannot travel ({error})", field=_field(what)) from None

    def encode(self, value: Any, what: str) -> Payload:
        """See `ValueCodec`."""
        try:
            valid = self._adapter.validate_python(value)
        except self._invalid as error:
            raise self._mismatch(what, error) from None
        try:
            data = self._adapter.dump_json(valid)
        except (ValueError, RecursionError) as error:
            raise _unwritable(what, error) from None
        if b"null" in data:
            _check_finite(self._adapter.dump_python(valid), what)
        return Payload("json", data)

    def decode(self, payload: Payload, what: str) -> Any:
        """See `ValueCodec`."""
        try:
            if payload.encoding == "text":
                return self._from_text(_text(payload.data, what))
            if payload.encoding != "bytes" or not payload.data or is_json(payload.data):
                return self._adapter.validate_json(payload.data or b"null")
        except self._invalid as error:
            raise self._mismatch(what, error, payload) from None
        raise _not_json(what)

    def _from_text(self, text: str) -> Any:
        """See `JsonCodec`."""
        try:
            return self._adapter.validate_python(text)
        except self._invalid:
            if not is_json(text):
                raise
            return self._adapter.validate_json(text)

    def _mismatch(self, what: str, error: Any, payload: Payload | None = None) -> InvalidArgument:
        first = error.errors(include_url=False, include_context=False)[0]
        if first["type"] == "json_invalid" and payload is not None and (why := why_not_json(payload.data)):
            return InvalidArgument(f"{what} is not JSON: {why}", field=_field(what))
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        return InvalidArgument(f"{what}: {first['msg']} - at `${path}`", field=f"{_field(what)}{path}")


def _parts(annotation: Any) -> Iterator[Any]:
    """The annotation and all that stands inside its brackets."""
    yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)


def _is_pydantic(part: Any) -> bool:
    return isinstance(part, type) and hasattr(part, "__pydantic_core_schema__")


def _encode_model(value: Any) -> Any:
    """What msgspec cannot write: a pydantic model says itself how."""
    if _is_pydantic(type(value)) and hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_encode: Final = msgspec.json.Encoder(enc_hook=_encode_model).encode


def is_json(data: bytes | str) -> bool:
    """Whether this is a JSON document."""
    try:
        msgspec.json.decode(data)
    except _UNREADABLE:
        return False
    return True


def _written(value: Any, what: str) -> bytes:
    """The value as JSON. `InvalidArgument` says why there is none."""
    try:
        data = _encode(value)
    except _UNWRITABLE as error:
        raise _unwritable(what, error) from None
    if b"null" in data:  # which also stands for what JSON cannot say
        _check_finite(msgspec.to_builtins(value, enc_hook=_dumped_model), what)
    return data


def _dumped_model(value: Any) -> Any:
    return value.model_dump()  # with its floats as they are; nothing else has come so far


def _unwritable(what: str, error: Exception) -> InvalidArgument:
    kind = _UNSUPPORTED.search(str(error))
    if isinstance(error, RecursionError):
        why = "it is nested too deeply, or holds itself"
    elif kind is not None:
        remedy = "make it text, a number, a list, a dict or a dataclass"
        if kind[1] in ("coroutine", "async_generator"):
            remedy = f"an {'await' if kind[1] == 'coroutine' else 'async for'} is missing"
        why = f"it holds an object of type {kind[1]}: {remedy}"
    else:
        why = str(error)
    return InvalidArgument(f"the {what} cannot be written as JSON: {why}", field=_field(what), reason=NOT_JSON)


def _check_finite(value: Any, what: str) -> None:
    found = find_nonfinite(value)
    if found is not None:
        path, number = found
        told = "NaN" if number != number else "infinity" if number > 0 else "-infinity"
        verb = f"is {told}" if path == "$" else f"has {told} at {path}"
        remedy = "return" if what.startswith("result") else "pass"
        raise InvalidArgument(
            f"the {what} {verb}, which JSON cannot say: {remedy} None or a string",
            field=f"{_field(what)}{path.removeprefix('$')}",
            reason=NOT_JSON,
        )


def _encode_text(value: str, what: str) -> Payload:
    try:
        return Payload("text", value.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} must be text that UTF-8 can hold: {error}", field=_field(what)) from None


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{what} must be UTF-8 text: {error}", field=_field(what)) from None


def _mismatch(what: str, error: Exception, payload: Payload | None = None) -> InvalidArgument:
    """Why the payload cannot be read; without one, why what was just written does not fit its own annotation."""
    field = _field(what)
    if isinstance(error, UnknownField):
        return InvalidArgument(f"{what}: {error}", field=f"{field}.{error.name}")
    if isinstance(error, RecursionError):
        return InvalidArgument(f"{what} is nested too deeply", field=field)
    is_readable = isinstance(error, msgspec.ValidationError)
    if not is_readable and payload is not None and (why := why_not_json(payload.data)):
        return InvalidArgument(f"{what} is not JSON: {why}", field=field)
    path = str(error).partition(" - at `")[2]
    return InvalidArgument(f"{what}: {error}", field=f"{field}{path.rstrip('`').removeprefix('$')}")


def _not_json(what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{what} must be JSON, not raw bytes: send JSON (Content-Type: application/json)", field=_field(what)
    )


def _field(what: str) -> str:
    """The first word: of "payload of greet" it is "payload"."""
    return what.split()[0]
