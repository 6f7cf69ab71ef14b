"""`@function`: what may be called by name, and how its payload and result travel.

The decorator checks a function where it stands and hands it back unchanged, so that a unit test calls it as plain
Python. What it found is kept in the module's own dictionary, where `boki.api.registry` collects it when the module
has been loaded: there is no list of functions outside of modules, so loading a module again leaves nothing behind.
"""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from types import ModuleType
from typing import Any, Final, Literal, TypeVar, get_type_hints, overload

from boki.api.http.binding import Binder
from boki.api.http.response import ResultCodec
from boki.api.library_use import Use, refuse_options, signature_of
from boki.api.payloads.json_faults import why_not_json
from boki.api.payloads.shapes import shape_of
from boki.api.payloads.values import NOT_JSON, ValueCodec, codec_for
from boki.api.streaming import Stream, check_stream, no_stream
from boki.errors import ConfigError, FunctionFailed, InvalidArgument
from boki.log.checks import check_book, check_seconds
from boki.log.ids import check_name, check_not_dots
from boki.protocol.calls import MOST_WORKERS, Call, FunctionInfo, Payload, RequestHead
from boki.protocol.routes import parse_routes
from boki.retry import Retry, check_retry

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE: Final = "__boki_function__"
_REGISTERED: Final = "__boki_functions__"
_ASYNC_CONTEXT: Final = "boki.Context"
_BLOCKING_CONTEXT: Final = "boki.blocking.Context"


_DECORATOR_LINES: Final = 100
"""How far below its first decorator the `def` of a function is looked for."""
_BOUNDS: Final = {
    "concurrency": (1, 10_000),
    "min_workers": (0, MOST_WORKERS),
    "max_workers": (1, MOST_WORKERS),
    "memory_bytes": (1 << 24, 1 << 50),
}


def _check_bounds(value: object, name: str, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(f"{name} must be an int from {least:,} to {most:,}, not {value!r:.40}", field=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `@function(...)` was given; see `FunctionInfo` for what each means."""

    name: str | None = None
    timeout_s: float = 60.0
    book: str = ""
    concurrency: int = 256
    min_workers: int = 0
    max_workers: int | None = None
    memory_bytes: int | None = None
    unknown_fields: Literal["refuse", "ignore"] | None = None
    """What happens to fields that a payload's dataclass or struct does not have; None: "refuse", unless the library
    that calls the function says otherwise."""
    use: Use | None = None
    """The library whose decorator registers the function."""
    retry: Retry | None = None
    http: Sequence[str] = ()

    @property
    def allows_unknown_fields(self) -> bool:
        """Whether a payload may have fields that its dataclass or struct does not have."""
        if self.unknown_fields is None:
            return self.use is not None and self.use.ignores_unknown_fields
        return self.unknown_fields == "ignore"

    def __post_init__(self) -> None:
        check_retry(self.retry)
        if self.name is not None:
            check_not_dots(check_name(self.name, "function name"), "function name")
        parse_routes(self.http)
        if self.book:
            check_book(self.book)
        if self.unknown_fields not in (None, "refuse", "ignore"):
            raise ConfigError(
                f"unknown_fields must be 'refuse' or 'ignore', not {self.unknown_fields!r:.40}", field="unknown_fields"
            )
        check_seconds(self.timeout_s, "timeout_s", positive=True)
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None or name not in ("max_workers", "memory_bytes"):
                _check_bounds(value, name, least, most)
        if self.max_workers is not None and self.min_workers > self.max_workers:
            raise ConfigError(
                f"min_workers {self.min_workers} must be at most max_workers {self.max_workers}", field="min_workers"
            )


@overload
def function(fn: F, /) -> F: ...


@overload
def function(
    *,
    name: str | None = None,
    timeout_s: float = 60.0,
    book: str = "",
    concurrency: int = 256,
    min_workers: int = 0,
    max_workers: int | None = None,
    memory_bytes: int | None = None,
    unknown_fields: Literal["refuse", "ignore"] | None = None,
    use: Use | None = None,
    retry: Retry | None = None,
    http: Sequence[str] = (),
) -> Callable[[F], F]: ...


def function(fn: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
    """Register a function under its own name, or `name`. It takes the context and at most one payload.

    `async def` functions get a `boki.Context`, plain `def` functions a `boki.blocking.Context`. Payload and result are
    checked against their annotations. `book` is the LogBook of calls that name none (else: one of the function's name).
    `unknown_fields` "ignore" accepts fields that the payload's dataclass or struct does not have, at any depth.
    `http`: own routes, whose path and query fill fields of the payload: `http=["GET /u/{code}"]`.
    The other options are those of `FunctionInfo`. The `async def` functions of a module share worker processes, and so
    do its `def` functions: the smallest `max_workers` and `memory_bytes`, and the largest `min_workers`, apply to all
    of them. `use` is for decorators of libraries. `ConfigError` says what to write if the function cannot be called.

    The function itself stays as it is: call it as plain Python, with a context of `boki.testing`.
    """
    if fn is not None:
        return _register(fn, Options())
    _check_options(options)
    chosen = Options(**options)
    return lambda decorated: _register(decorated, chosen)


_OPTIONS: Final = tuple(option.name for option in fields(Options))


def _check_options(given: Mapping[str, Any]) -> None:
    """`ConfigError` for an option that does not exist, with the one that may be meant, and all that there are."""
    use = given.get("use")
    own = use.settings.__struct_fields__ if isinstance(use, Use) else ()
    known = [*own, *(name for name in _OPTIONS if name not in (*own, "use"))]
    decorator = use.decorator if isinstance(use, Use) else "@function"
    unknown = [name for name in given if name not in _OPTIONS]
    refuse_options(decorator, unknown, [name for name in known if name not in unknown])


def check_described(info: FunctionInfo) -> None:
    """`BokiError` if no `@function` can have registered this: a worker process may describe anything."""
    check_name(info.name, "function name")
    Options(**{name: getattr(info, name) for name in _OPTIONS if name in info.__struct_fields__})


def register_body(fn: Callable[..., Any], body: Callable[..., Any], holder: object, **options: Any) -> None:
    """Register a kind of function that a library brings: calls run `body(context, *payload)` in place of `fn`.

    Its name, payload and result are those of `fn`, which takes no context: at most a payload. `holder` stands for it
    wherever a function is named by object, as in `ctx.invoke_later(holder, payload)`. To be called by the library's
    decorator, in the frame below the decorated function's.
    """
    _check_options(options)
    definition = _define(fn, Options(**options), body)
    setattr(holder, _ATTRIBUTE, definition)


def _register(fn: F, options: Options) -> F:
    _define(fn, options, None)
    return fn


def _define(fn: Any, options: Options, body: Callable[..., Any] | None) -> _Definition:
    _check_shape(fn, has_context=body is None)
    earlier = vars(fn).get(_ATTRIBUTE)
    if isinstance(earlier, _Definition) and earlier.fn is fn:  # and not one that functools.wraps has copied
        decorators = [use.decorator for use in (options.use, earlier.options.use) if use is not None]
        which = " or ".join(dict.fromkeys(["@function", *decorators]))
        raise ConfigError(f"{fn.__name__} ({_place(fn)}) is decorated twice: leave one {which}")
    definition = _Definition(fn, options, body=body)
    if "<locals>" in fn.__qualname__:  # its annotations may name what only the enclosing function knows
        definition.names = _locals_of_decorated()
    with suppress(NameError):  # an annotation may name what comes further down; `Registry.of` tries again
        definition.resolve()
    setattr(fn, _ATTRIBUTE, definition)
    loaded = fn.__globals__.get(_REGISTERED)
    if loaded is None or loaded.spec is not fn.__globals__.get("__spec__"):
        loaded = fn.__globals__[_REGISTERED] = _Loaded(fn.__globals__.get("__spec__"))
    loaded.definitions.append(definition)
    return definition


def _locals_of_decorated() -> dict[str, Any]:
    """The local names where `@function` was written: four calls up, behind `_define`, `_register` and `function`."""
    frame = inspect.currentframe()
    for _ in range(4):
        frame = frame.f_back if frame else None
    return dict(frame.f_locals) if frame else {}


def _check_shape(fn: Any, *, has_context: bool) -> None:
    if not inspect.isfunction(fn):
        raise ConfigError(f"@function goes on a def or async def, not on {fn!r:.80}")
    where = _place(fn)
    parameters = list(inspect.signature(fn).parameters.values())
    if not has_context:
        _check_payload_alone(fn, where, parameters)
        return
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if parameters and parameters[0].name in ("self", "cls"):
        raise ConfigError(
            f"{fn.__name__} ({where}) is a method, which no caller reaches: make it a function of the module"
        )
    if not parameters:
        raise ConfigError(f"{fn.__name__} ({where}) must take the context: write {fn.__name__}(ctx)")
    if len(parameters) > 2 or any(parameter.kind not in kinds for parameter in parameters):
        raise ConfigError(
            f"{fn.__name__} ({where}) must take the context and at most one payload: write "
            f"{fn.__name__}(ctx, payload), and make payload a dataclass or msgspec.Struct if it needs several values"
        )


def _check_payload_alone(fn: Any, where: str, parameters: list[inspect.Parameter]) -> None:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) > 1 or any(parameter.kind not in kinds for parameter in parameters):
        raise ConfigError(
            f"{fn.__name__} ({where}) must take at most one payload: write {fn.__name__}(payload), and make payload a "
            "dataclass or msgspec.Struct if it needs several values"
        )


@dataclass(slots=True)
class _Definition:
    """A decorated function, and what is known of it."""

    fn: Any
    options: Options
    names: dict[str, Any] = field(default_factory=dict)
    """Local names that annotations may use, until they are resolved."""
    resolved: Function | None = None
    body: Callable[..., Any] | None = None
    """What runs in place of `fn`, which then takes no context."""

    def resolve(self) -> Function:
        """The function with its types. `NameError` if an annotation is not defined, `ConfigError` if it cannot be."""
        if self.resolved is None:
            self.resolved = _resolve(self.fn, self.options, self.names, self.body)
            self.names = {}
        return self.resolved


@dataclass(slots=True)
class _Loaded:
    """What one load of a module has registered; `spec` tells one load from the next."""

    spec: Any
    definitions: list[_Definition] = field(default_factory=list)


def _resolve(fn: Any, options: Options, names: dict[str, Any], body: Callable[..., Any] | None) -> Function:
    parameters = list(inspect.signature(fn).parameters.values())
    name = options.name or check_name(fn.__name__, "function name")
    where = _place(fn)
    raw = dict(fn.__annotations__)
    if body is None:
        _check_context(fn, raw.pop(parameters[0].name, None), names, where)
        del parameters[0]
    holder = type("annotations", (), {"__annotations__": raw})
    hints = get_type_hints(holder, {**fn.__globals__, **names}, include_extras=True)
    payload_codec = binder = None
    routes = parse_routes(options.http)
    if parameters and routes:
        annotation = hints.get(parameters[0].name, Any)
        binder = Binder(name, where, parameters[0].name, annotation, routes)
    if parameters:
        what = f"payload of {name} ({where})"
        payload_codec = codec_for(
            hints.get(parameters[0].name, Any), what, refuses_unknown=not options.allows_unknown_fields
        )
    result = hints.get("return", Any)
    is_generator = inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)
    if options.use is not None and options.use.check is not None:
        options.use.check(signature_of(f"{name} ({where})", payload_codec, streams=is_generator))
    stream = check_stream(result, f"{name} ({where})", is_generator)
    result = result if stream is None else bytes
    result_codec = ResultCodec(result, f"result of {name} ({where})")
    has_default = bool(parameters) and parameters[0].default is not inspect.Parameter.empty
    info = FunctionInfo(
        name=name,
        module=fn.__module__,
        is_async=_is_async(body or fn),
        doc=inspect.getdoc(fn) or "",
        book=options.book,
        timeout_s=options.timeout_s,
        concurrency=options.concurrency if _is_async(body or fn) else 1,
        min_workers=options.min_workers,
        max_workers=options.max_workers,
        memory_bytes=options.memory_bytes,
        payload_schema=payload_codec.schema if payload_codec else {"type": "null"},
        payload_encoding=payload_codec.encoding if payload_codec else "json",
        needs_text=payload_codec is not None and payload_codec.encoding != "json" and not has_default,
        result_schema=result_codec.schema,
        result_encoding=result_codec.encoding,
        retry=options.retry,
        http=tuple(route.text for route in routes),
        streams=is_generator,
    )
    if (use := options.use) is not None:
        info = info.used_by(use.library, use.as_builtins())
    return Function(info, body or fn, payload_codec, result_codec, has_default, binder, stream, fn)


def _check_context(fn: Any, annotation: Any, names: dict[str, Any], where: str) -> None:
    """`async def` takes the async context and `def` the blocking one; both may leave the annotation out."""
    if annotation is None:
        return
    if isinstance(annotation, str):
        try:
            annotation = get_type_hints(
                type("annotations", (), {"__annotations__": {"ctx": annotation}}), {**fn.__globals__, **names}
            )["ctx"]
        except NameError:
            return  # imported for the type checker alone, which then checks it
    given = {
        "boki.api.context.Context": _ASYNC_CONTEXT,
        "boki.api.blocking_context.Context": _BLOCKING_CONTEXT,
    }.get(f"{getattr(annotation, '__module__', '')}.{getattr(annotation, '__qualname__', '')}")
    is_async = _is_async(fn)
    due = _ASYNC_CONTEXT if is_async else _BLOCKING_CONTEXT
    if given == due:
        return
    kind, other = ("async def", "def") if is_async else ("def", "async def")
    remedy = f"annotate it with {due}" + (f", or make the function {other!r}" if given else "")
    raise ConfigError(f"{kind} {fn.__name__} ({where}): the first parameter is the context: {remedy}")


def _is_async(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)


def _place(fn: Any) -> str:
    """File and line of the `def`, which comes after the first of its decorators."""
    code = fn.__code__
    linecache.checkcache(code.co_filename)
    for line in range(code.co_firstlineno, code.co_firstlineno + _DECORATOR_LINES):
        if re.match(rf"\s*(async\s+)?def\s+{re.escape(code.co_name)}\b", linecache.getline(code.co_filename, line)):
            return f"{code.co_filename}:{line}"
    return f"{code.co_filename}:{code.co_firstlineno}"


@dataclass(frozen=True, slots=True)
class Function:
    """A registered function: what others may know of it (`info`), and how to run it."""

    info: FunctionInfo
    run: Callable[..., Any]
    """The function itself; `run(context, *arguments(payload))`."""
    payload_codec: ValueCodec | None
    result_codec: ValueCodec
    has_default: bool
    binder: Binder | None = None
    """Of a function with routes and a payload."""
    stream: Stream | None = None
    """Of a generator function."""
    declared: Callable[..., Any] | None = None
    """What is decorated, if `run` is something else that a library runs for it."""

    @property
    def place(self) -> str:
        """File and line, for messages."""
        return _place(self.declared or self.run)

    @staticmethod
    def of(fn: object) -> Function:
        """What `@function` has found out about `fn`; `InvalidArgument` if it is not decorated."""
        definition = getattr(fn, _ATTRIBUTE, None)
        if not isinstance(definition, _Definition):
            raise InvalidArgument(
                f"{fn!r:.80} is not a function to be called: decorate it with @function", field="function"
            )
        return _resolved(definition)

    def arguments_of(self, call: Call) -> tuple[Any, ...]:
        """What to pass after the context in that call: see `arguments`. Nothing to a library's own body."""
        if call.chosen is not None and call.chosen.attends:
            return ()
        return self.arguments(call.payload, call.request)

    def arguments(self, payload: Payload, request: RequestHead | None = None) -> tuple[Any, ...]:
        """What to pass after the context; `InvalidArgument` naming the field if the payload does not fit.

        A `request` that came by a route of the function fills fields of the payload.
        """
        name = self.info.name
        if self.info.streams and request is None:
            raise no_stream(name)
        if self.binder is not None and request is not None and request.route:
            payload = self.binder.payload(payload, request)
        if self.payload_codec is None:
            if payload.data in (b"", b"null"):
                return ()
            raise InvalidArgument(f"{name} takes no payload: leave it out", field="payload")
        if self.has_default and not payload.data:
            return ()
        try:
            return (self.payload_codec.decode(payload, f"payload of {name}"),)
        except InvalidArgument as error:
            if not payload.data:
                lacking = InvalidArgument(f"{name} needs a payload ({self.takes})", field="payload")
                if self.binder is not None and request is not None and request.route:
                    lacking = self.binder.missing(request) or lacking
                raise lacking from None
            if payload.encoding == "text" and self.payload_codec.encoding == "json":
                raise self._refused_text(payload.data, error) from None
            raise

    def _refused_text(self, data: bytes, error: InvalidArgument) -> InvalidArgument:
        """The error for a text that does not fit: if it is JSON, the one that its reading gave."""
        text = data.decode(errors="replace")
        why = why_not_json(data)
        if not why:
            return error
        kind = f"is not JSON: {why}" if text.lstrip().startswith(("{", "[", '"')) else "is text"
        return InvalidArgument(f"{self.info.name} takes {self.takes}, and {text!r:.60} {kind}", field="payload")

    @property
    def takes(self) -> str:
        """What its payload is, for messages: `int`, or `an object like {"item": str, "count": int = 1}`."""
        codec = self.payload_codec
        if codec is None:
            return "no payload"
        return codec.encoding if codec.schema is None else shape_of(codec.schema)

    def encode_payload(self, value: Any) -> Payload:
        """A caller's value as it travels; `InvalidArgument` naming the field if it does not fit."""
        if self.payload_codec is None:
            raise InvalidArgument(f"{self.info.name} takes no payload: leave it out", field="payload")
        return self.payload_codec.encode(value, f"payload of {self.info.name}")

    def encode_result(self, value: Any) -> Payload:
        """What the function returned, as it travels; `FunctionFailed` if it does not fit the annotation.

        A `Payload` is what the body of a library has encoded itself.
        """
        if isinstance(value, Payload):
            return value
        try:
            return self.result_codec.encode(value, f"result of {self.info.name}")
        except InvalidArgument as error:
            is_misfit = error.details.get("reason") != NOT_JSON
            raise FunctionFailed(
                f"{error.message}: the function at {self.place} does not return what it is annotated with"
                if is_misfit
                else f"{error.message} ({self.place})",
                error_type="TypeError",
                function=self.info.name,
            ) from None

    def decode_result(self, payload: Payload) -> Any:
        """A result that came, as the type that the function is annotated with.

        `FunctionFailed` if the function that ran is annotated otherwise than the one that was imported here.
        """
        try:
            return self.result_codec.decode(payload, f"result of {self.info.name}")
        except InvalidArgument as error:
            raise FunctionFailed(
                f"{error.message}: the function that ran is not the one at {self.place}",
                error_type="TypeError",
                function=self.info.name,
            ) from None


def _resolved(definition: _Definition) -> Function:
    try:
        return definition.resolve()
    except NameError as error:
        raise ConfigError(
            f"{definition.fn.__name__} ({_place(definition.fn)}): {error}, which an annotation names: define it in the "
            "module, or import it at run time and not only for the type checker"
        ) from None


def registered_in(module: ModuleType) -> list[Function]:
    """What one load of the module has registered, in order; `ConfigError` names the place if it cannot be called."""
    loaded = vars(module).get(_REGISTERED)
    return [_resolved(definition) for definition in loaded.definitions] if isinstance(loaded, _Loaded) else []
