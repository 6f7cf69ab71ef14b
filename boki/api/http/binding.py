"""The payload of requests that came by a function's own route: `@function(http=["GET /u/{code}"])`.

The variables of the path and the query parameters fill fields of the payload, each converted to the field's type; a
JSON body fills the others. A payload without fields (a str, an int) is filled as a whole, by its parameter's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, is_dataclass
from dataclasses import fields as dataclass_fields
from types import NoneType, UnionType
from typing import Any, Final, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from boki.errors import ConfigError, InvalidArgument
from boki.protocol.calls import Payload, RequestHead
from boki.protocol.routes import HttpRoute

_LISTS: Final = (list, tuple, set, frozenset, Sequence)


class Binder:
    """Makes the payload of requests that came by a route. `name` and `annotation`: the parameter of the payload of
    `function`, which is at `place`.
    """

    def __init__(self, function: str, place: str, name: str, annotation: Any, routes: Collection[HttpRoute]) -> None:
        self._function = function
        self._name = name
        self._fields = fields_of(annotation)
        self._required = _required_of(annotation) if self._fields is not None else (name,)
        self._types: Mapping[str, Any] | None
        if self._fields is not None:
            self._types = self._fields
        elif annotation is Any or annotation is object or get_origin(annotation) is dict or annotation is dict:
            self._types = None
        else:
            self._types = {name: annotation}
        for route in routes:
            for variable in route.variables:
                if self._types is not None and variable not in self._types:
                    has = ", ".join(self._types) or "none"
                    raise ConfigError(
                        f"http: route {route.text!r:.100} of {function} ({place}): the payload has no field "
                        f"{variable!r}; it has: {has}",
                        field="http",
                    )

    def payload(self, body: Payload, request: RequestHead) -> Payload:
        """Body, path and query as one payload; `InvalidArgument` names what does not fit."""
        given: dict[str, Any] = {}
        for where, pairs in (("path", request.path_values), ("query", request.query)):
            for name in dict(pairs):
                if self._types is not None and name not in self._types:
                    continue  # it is still there in ctx.request.query
                if name in given:
                    raise InvalidArgument(f"{name} is given in the path and in the query: leave one out", field=name)
                what = f"{where} parameter {name} of {self._function} ({request.route})"
                given[name] = self._converted(what, name, [value for known, value in pairs if known == name])
        if not given:
            return body
        if self._types is not None and self._fields is None:
            if body.data:
                raise InvalidArgument(f"{self._name} is given in the URL and in the body: leave one out", field="body")
            return _whole(given[self._name])
        if not body.data and (refusal := self.missing(request, given)) is not None:
            raise refusal
        own = self._object(body)
        for name in own.keys() & given.keys():
            raise InvalidArgument(f"{name} is given in the URL and in the body: leave one out", field=name)
        return Payload("json", msgspec.json.encode(own | given))

    def missing(self, request: RequestHead, given: Collection[str] = ()) -> InvalidArgument | None:
        """The error for the first value that the payload needs, and that a request without a body does not give."""
        name = next((name for name in self._required if name not in given), None)
        if name is None:
            return None
        takes_body = request.method not in ("GET", "HEAD")
        kind, remedy = ("field", ": send it in the query, or in a JSON body") if takes_body else ("query parameter", "")
        return InvalidArgument(f"{kind} {name} of {self._function} ({request.route}) is missing{remedy}", field=name)

    def _object(self, body: Payload) -> dict[str, Any]:
        if not body.data:
            return {}
        try:
            found = msgspec.json.decode(body.data, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"the body must be a JSON object: {error}".replace("`", ""), field="body") from None
        return dict(found)

    def _converted(self, what: str, name: str, texts: list[str]) -> Any:
        kind = Any if self._types is None else self._types[name]
        is_list = any(get_origin(one) in _LISTS or one in _LISTS for one in (kind, *get_args(kind)))
        if len(texts) > 1 and not is_list:
            raise InvalidArgument(f"{what} may be given only once", field=name)
        if kind is bytes and self._fields is None:
            return texts[0]
        value = texts if is_list else texts[0]
        try:
            return msgspec.to_builtins(msgspec.convert(value, kind, strict=False))
        except msgspec.ValidationError as error:
            wanted = str(error).partition(", got ")[0].replace("`", "")
            raise InvalidArgument(f"{what}: {wanted[:1].lower()}{wanted[1:]}, got {value!r:.60}", field=name) from None
        except TypeError:  # a type of pydantic's, which converts by itself
            return value


def _whole(value: Any) -> Payload:
    return Payload("text", value.encode()) if isinstance(value, str) else Payload("json", msgspec.json.encode(value))


def fields_of(annotation: Any) -> dict[str, Any] | None:
    """The fields of a payload's type, by the names that JSON has for them; None if it has none."""
    if get_origin(annotation) in (Union, UnionType):
        others = [one for one in get_args(annotation) if one is not NoneType]
        return fields_of(others[0]) if len(others) == 1 else None
    if isinstance(annotation, type):
        if issubclass(annotation, msgspec.Struct):
            return {field.encode_name: field.type for field in msgspec.structs.fields(annotation)}
        if is_dataclass(annotation):
            hints = get_type_hints(annotation, include_extras=True)
            return {field.name: hints[field.name] for field in dataclass_fields(annotation)}
        if hasattr(annotation, "model_fields"):
            return {(field.alias or name): field.annotation for name, field in annotation.model_fields.items()}
    if is_typeddict(annotation):
        return get_type_hints(annotation, include_extras=True)
    return None


def _required_of(annotation: Any) -> Sequence[str]:
    """The fields of a payload's type that have no default, by the names that JSON has for them."""
    if get_origin(annotation) in (Union, UnionType):
        return ()  # None will do
    if isinstance(annotation, type):
        if issubclass(annotation, msgspec.Struct):
            return [field.encode_name for field in msgspec.structs.fields(annotation) if field.required]
        if is_dataclass(annotation):
            fields = dataclass_fields(annotation)
            return [one.name for one in fields if one.default is MISSING and one.default_factory is MISSING]
        if hasattr(annotation, "model_fields"):
            return [one.alias or name for name, one in annotation.model_fields.items() if one.is_required()]
    hints = get_type_hints(annotation, include_extras=True)
    return [
        name
        for name, hint in hints.items()
        if get_origin(hint) is not NotRequired and (annotation.__total__ or get_origin(hint) is Required)
    ]
