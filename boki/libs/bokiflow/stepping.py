"""`@step`: a function whose outcome is recorded, so that a workflow runs it once.

::

    @step(retry=Retry(attempts=5), timeout_s=10)
    async def charge(card: str, cents: int) -> Receipt:
        return await bank.charge(card, cents, idempotency_key=step.key)

In a workflow a step is called like the function that it is: `receipt = await charge(card, 300)`. Its outcome, a value
or an error, is recorded before anything with an effect follows, and from then on that outcome is what the call gives.
The body itself may run more than once, if a process is lost between its effect and the record; then `step.key` is the
same, and a service that takes such keys makes it exactly once.
"""

from __future__ import annotations

import inspect
from asyncio import events
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cached_property, update_wrapper
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast, get_type_hints, overload

import msgspec

from boki import ConfigError, Context, FunctionFailed, InvalidArgument, Retry, TooLarge, blocking
from boki.extending import (
    Failure,
    InLoop,
    Payload,
    ValueCodec,
    check_retry,
    check_seconds,
    codec_for,
    decode_any,
    encode_any,
    failure_of,
    lend,
    refuse_options,
)
from boki.libs.bokiflow.digests import digest_of
from boki.libs.bokiflow.records import Result
from boki.libs.bokiflow.refusals import NotDeterministic, OutcomeUnknown, StepFailed, outside
from boki.libs.fold.arguments import check_name

P = ParamSpec("P")
R = TypeVar("R")

_ONCE: Final = Retry(attempts=1)
_RAISED: Final = "raised"
_STATE: Final = "raised_with"
_KIND: Final = "raised_as"
_SELF: Final = ("self", "cls")
_LONG: Final = frozenset((_RAISED, _STATE, "traceback"))
_SHORT_CHARS: Final = 2_000
"""Of the message of a failure that no record holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """What `@step(...)` was given."""

    name: str | None = None
    retry: Retry | None = None
    timeout_s: float | None = None
    at_most_once: bool = False
    pure: bool = False
    idempotent: bool = False
    raises: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        check_retry(self.retry, travels=False)
        if self.timeout_s is not None:
            check_seconds(self.timeout_s, "timeout_s", positive=True)
        if self.at_most_once and (self.pure or self.idempotent):
            raise ConfigError(
                "a step that runs at most once is neither pure nor idempotent: leave at_most_once out",
                field="at_most_once",
            )
        if self.at_most_once and self.retry is not None:
            raise ConfigError("a step that runs at most once is never retried: leave retry out", field="retry")
        for kind in self.raises:
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise ConfigError(f"raises holds classes of exceptions, not {kind!r:.60}", field="raises")


_OPTIONS: Final = tuple(option.name for option in fields(StepOptions))


class Step(Generic[P, R]):
    """A function under `@step`. `fn` is the function itself, to be called in tests and in other steps."""

    def __init__(self, fn: Callable[P, R], options: StepOptions) -> None:
        if not inspect.isfunction(fn):
            raise ConfigError(f"@step goes on a def or async def, not on {fn!r:.80}")
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise ConfigError(f"step {fn.__name__} is a generator: return a list")
        self._signature = inspect.signature(fn)
        owner = fn.__qualname__.rpartition(".")[0]
        if owner and not owner.endswith("<locals>") and next(iter(self._signature.parameters), "") in _SELF:
            raise ConfigError(
                f"step {fn.__name__} is a method of {owner}, and a step gets plain values only: make it a function "
                "outside of the class, and have the method pass what it needs"
            )
        self.fn: Callable[P, R] = fn
        self.name = check_name(options.name or fn.__name__, "name", "a step")
        self.options = options
        self.body: Callable[..., Any] = fn
        """What an attempt runs: the function, or a test's stub for it."""
        self.is_async = inspect.iscoroutinefunction(fn)
        self.policy = options.retry or _ONCE
        update_wrapper(cast("Any", self), fn)

    def __repr__(self) -> str:
        return f"<step {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step in the workflow that calls it; inside of another step it is a plain call."""
        starter = STARTER.get()
        if starter is not None:
            return cast("R", starter(self, args, kwargs))
        if ATTEMPT.get() is not None:
            return self.fn(*args, **kwargs)
        remedy = f"call it in a function under @workflow, or {self.name}.fn(...) to run just the function"
        raise outside(f"step {self.name}", remedy)

    def replace_body(self, body: Callable[..., Any]) -> None:
        """Have attempts run something else, in a test."""
        self.body = body

    @cached_property
    def codec(self) -> ValueCodec:
        """How its results are recorded."""
        fn = cast("Any", self.fn)
        hints = get_type_hints(fn, include_extras=True)
        return codec_for(hints.get("return", Any), f"result of step {self.name}")

    def refusal(self) -> Failure | None:
        """Why it is not run at all: its effect would be made, and its result could not be recorded."""
        try:
            _ = self.codec
        except Exception as error:  # noqa: BLE001 - an annotation may be any code
            said = (
                f"the annotation of the result of step {self.name} cannot be used ({type(error).__name__}: {error}): "
                "import what it names when the module is loaded, not under TYPE_CHECKING, and let it be a type whose "
                "values travel"
            )
            return failure_of(self.name, InvalidArgument(said, field="result"))
        return None

    def digest(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The digest of the arguments of one call, however they are passed."""
        if kwargs:
            bound = self._signature.bind(*args, **kwargs)
            args, kwargs = bound.args, bound.kwargs
        return digest_of(args, kwargs, f"step {self.name}")

    def encode(self, value: Any) -> Result:
        """The record of what it returned; a failure if that cannot be recorded."""
        try:
            return Result(self.codec.encode(value, f"result of step {self.name}"))
        except InvalidArgument as error:
            return Result(None, failure_of(self.name, error))

    def decode(self, result: Result) -> Any:
        """What a call of it gives: the recorded value, or the recorded error, which is raised."""
        if result.failure is not None:
            raise self._error(result.failure)
        if result.value is None:
            raise OutcomeUnknown(
                f"step {self.name} may run at most once and was cut off: what it did is not known; find out, and go on",
                step=self.name,
            )
        return self.codec.decode(result.value, f"result of step {self.name}")

    def failure(self, error: BaseException) -> Failure:
        """The record of what it raised."""
        failure = failure_of(self.name, error, with_traceback=True)
        if type(error) in self.options.raises:
            failure.details[_RAISED] = [_plain(part) for part in error.args]
            failure.details[_KIND] = _path_of(type(error))
            failure.details[_STATE] = {name: _plain(part) for name, part in vars(error).items()}
        return failure

    def failure_without_text(self, error: BaseException) -> Failure:
        """The same of an error that raises another one when it is looked at."""
        kind = type(error).__name__
        return Failure.of(FunctionFailed(f"{self.name}: {kind} without a text", error_type=kind, function=self.name))

    def bounded_failure(self, failure: Failure, most_bytes: int) -> Failure:
        """The failure, or what a record holds of one with a message of any length."""
        if len(msgspec.msgpack.encode(failure)) <= most_bytes:
            return failure
        message = f"{failure.message[:_SHORT_CHARS]}… ({len(failure.message):,} characters)"
        details = {name: part for name, part in failure.details.items() if name not in _LONG}
        return msgspec.structs.replace(failure, message=message, details=details)

    def bounded(self, result: Result, most_bytes: int) -> Result:
        """The result, or the failure that stands for one that no record holds."""
        size_bytes = len(result.value.data) if result.value is not None else 0
        if size_bytes <= most_bytes:
            return result
        error = TooLarge(
            f"step {self.name} returned {size_bytes:,} bytes, and a result may have {most_bytes:,}: append it to a "
            "LogBook in parts, and return where it is",
            field="result",
            limit=most_bytes,
        )
        return Result(None, failure_of(self.name, error))

    def _error(self, failure: Failure) -> Exception:
        details = dict(failure.details)
        arguments, path = details.pop(_RAISED, None), details.pop(_KIND, None)
        if arguments is not None:
            state = details.pop(_STATE, None)
            # two modules may have classes of one name; and a class may have moved since to another module
            for kind in sorted(self.options.raises, key=lambda kind: _path_of(kind) != path):
                if kind.__name__ == details.get("error_type"):
                    with suppress(TypeError, ValueError):  # an argument that came as text may not do
                        return _rebuilt(kind, arguments, state)
        details.pop("function", None)
        return StepFailed(failure.message, step=self.name, **details)


def _rebuilt(kind: type[Exception], arguments: list[Any], state: dict[str, Any] | None) -> Exception:
    """The error that a step raised. The constructor of a user's class may take something else than its `args`."""
    if state is None or not inspect.isfunction(kind.__init__):
        return kind(*arguments)
    error = kind.__new__(kind, *arguments)
    vars(error).update(state)
    return error


def _path_of(kind: type) -> str:
    """Which class it is, of those of one name."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _plain(value: Any) -> Any:
    """An argument of an exception as its record holds it."""
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError, RecursionError):
        return str(value)


class Attempt:
    """One attempt at a step, as its body sees it through `step`."""

    __slots__ = ("beat", "ctx", "details", "in_loop", "key", "number")

    def __init__(
        self,
        key: str,
        number: int,
        details: Payload | None,
        beat: Callable[[Payload], None],
        ctx: Context,
        in_loop: InLoop,
    ) -> None:
        self.key = key
        self.number = number
        self.details = details
        self.beat = beat
        self.ctx = ctx
        self.in_loop = in_loop


Starter = Callable[[Step[Any, Any], tuple[Any, ...], dict[str, Any]], Any]

STARTER: ContextVar[Starter | None] = ContextVar("boki_flow_starter", default=None)
"""Starts a step in the workflow whose body is running."""
ATTEMPT: ContextVar[Attempt | None] = ContextVar("boki_flow_attempt", default=None)
"""The attempt whose body is running."""


def refuse_in_body(what: str) -> None:
    """`NotDeterministic` if this is code of a workflow, and not of a step: a replay would do it again."""
    if STARTER.get() is not None:
        raise NotDeterministic(
            f"{what} was called in the body of a workflow, and a replay would call it again: call it in a step; other "
            "workflows are started by flow.start and flow.call"
        )


def check_may_wait(work: Coroutine[Any, Any, Any]) -> None:
    """Refuse work that a thread would wait for, if what it waits for would wait for the thread."""
    try:
        refuse_in_body("a method of step.blocking_ctx")
        if events._get_running_loop() is not None:  # noqa: SLF001 - `get_running_loop` raises if there is none
            raise InvalidArgument(
                "step.blocking_ctx was used in the thread of an event loop, which it would stop: in an async def step "
                "await the methods of step.ctx"
            )
    except InvalidArgument:
        work.close()
        raise


class StepDecorator:
    """`@step`, and what the body of a step knows of its attempt: `step.key`, `step.attempt`, `step.heartbeat(...)`."""

    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...

    @overload
    def __call__(
        self,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        at_most_once: bool = False,
        pure: bool = False,
        idempotent: bool = False,
        raises: tuple[type[Exception], ...] = (),
    ) -> Callable[[Callable[P, R]], Step[P, R]]: ...

    def __call__(self, *fn: Any, **options: Any) -> Any:
        """Make a step of a function: its outcome is recorded in the workflow that calls it.

        `retry`: when it runs again after an error; None: never. Its `should_retry` is asked about each error as well.
        `timeout_s` bounds each attempt; a `def` step that is late continues in its thread, and its result is dropped.
        `at_most_once`: recorded before it begins, and never begun again: after a crash the call raises
        `OutcomeUnknown`. `pure`: it does nothing but compute or read; it starts without waiting for records, and those
        of pure steps travel together. `idempotent`: to run it again does no harm, nor without effect, so it starts
        without waiting for the record of the step before it.
        `raises`: exceptions, of exactly these classes, that the workflow gets as they are; others come as `StepFailed`.
        """
        if "should_retry" in options:
            raise ConfigError(
                "should_retry is a field of Retry: write @step(retry=Retry(should_retry=...))", field="should_retry"
            )
        refuse_options("@step", (name for name in options if name not in _OPTIONS), _OPTIONS)
        chosen = StepOptions(**options)
        if fn:
            return Step(fn[0], chosen)
        return lambda decorated: Step(decorated, chosen)

    @property
    def key(self) -> str:
        """A key for the effect of this step: the same in every attempt, and different for every call of a step. An
        `idempotent` step may have another one after a crash.
        """
        return _attempt("step.key").key

    @property
    def ctx(self) -> Context:
        """The context of the run, for `async def` steps: its LogBook, other functions, a logger. In a `def` step its
        fields and its logger are of use: what it does is to be awaited, and `step.blocking_ctx` does it there.
        """
        return _attempt("step.ctx").ctx

    @property
    def blocking_ctx(self) -> blocking.Context:
        """The context of the run, for `def` steps: what it is asked is done in the worker's loop, while the thread of
        the step waits.
        """
        attempt = _attempt("step.blocking_ctx")
        return lend(attempt.ctx, attempt.in_loop)

    @property
    def attempt(self) -> int:
        """Which attempt this is, counted from 1."""
        return _attempt("step.attempt").number

    @property
    def details(self) -> Any:
        """What an attempt before this one gave to `heartbeat` last; None if nothing."""
        payload = _attempt("step.details").details
        return None if payload is None else decode_any(payload, "details of a heartbeat")

    def heartbeat(self, details: Any) -> None:
        """Record how far the step has come, for its next attempt. Only the newest details are kept."""
        _attempt("step.heartbeat").beat(encode_any(details, "details of a heartbeat"))


def _attempt(what: str) -> Attempt:
    attempt = ATTEMPT.get()
    if attempt is None:
        raise InvalidArgument(f"{what} is for the body of a step: there is none running here")
    return attempt


step: Final = StepDecorator()
