"""`@workflow`: a function that continues after its last step, whatever crashes.

::

    @workflow
    async def travel(trip: Trip) -> Booking:
        hotel = await book_hotel(trip)
        flow.compensate(cancel_hotel, hotel)
        flight = await book_flight(trip)
        return Booking(hotel, flight)

The function takes at most one payload, as every function does, and no context: what it may ask of the workflow is
`boki.libs.bokiflow.flow`. It must do the same thing each time it is given the same outcomes of its steps, so it reads
no clock, draws no random number and speaks to nobody, except through steps and `flow`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, Never, Protocol, TypeVar, Unpack, cast, overload
from uuid import uuid4

import msgspec

from boki import ConfigError, Context, DeadlineExceeded, FunctionFailed, InvalidArgument, Retry, blocking
from boki.extending import (
    ATTENDS,
    OVER,
    Attribute,
    CallsById,
    Function,
    Payload,
    check_seconds,
    invocation_id_of,
    refuse_options,
    register_body,
)
from boki.faces import Use
from boki.libs.bokiflow.attributes import check_attributes
from boki.libs.bokiflow.beginning import FunctionCalls
from boki.libs.bokiflow.clocks import clock_of
from boki.libs.bokiflow.gates.marks import gate_id_of, marks_of
from boki.libs.bokiflow.gates.spec import Limit, check_limit
from boki.libs.bokiflow.handles import MAX_ID_CHARS, Handle
from boki.libs.bokiflow.handles_blocking import Handle as BlockingHandle
from boki.libs.bokiflow.handles_blocking import Schedule as BlockingSchedule
from boki.libs.bokiflow.options import IfEnded, IfRunning, ScheduleOptions, StartOptions
from boki.libs.bokiflow.refusals import NoSuchWorkflow, WorkflowEnded
from boki.libs.bokiflow.run import run_workflow
from boki.libs.bokiflow.schedules.handle import MAX_SCHEDULE_ID_CHARS, IfExists, Schedule
from boki.libs.bokiflow.schedules.spec import Overlap, spec_of
from boki.libs.bokiflow.stepping import refuse_in_body
from boki.libs.fold.arguments import check_key

Pay = TypeVar("Pay")
R = TypeVar("R")
RCo = TypeVar("RCo", covariant=True)
T = TypeVar("T")

LIBRARY: Final = "bokiflow"
"""The name under which a function's settings for this library are kept."""
RUN_TIMEOUT_S: Final = 24 * 3_600.0
"""How long one run may stay in a worker. A workflow may take years: see `boki.libs.bokiflow.run_time`."""
CONTINUE_AFTER: Final = 1_000
"""Ends of steps, timers and calls."""
_LOSSES: Final = Retry(
    attempts=10_000,
    first_s=0.1,
    max_s=10.0,
    jitter=0.5,
    errors=(DeadlineExceeded.code,),
    never=(FunctionFailed.code,),
)
"""A run that was cut off with its worker or its engine, or at its deadline, begins again; one that raised has ended,
whatever it raised. With jitter: the workflows of a worker that one of them kills would all be there again when it comes
back.
"""


class Settings(msgspec.Struct, frozen=True):
    """What exists to know of a workflow outside of its process."""

    limit: Limit | None = None
    replays: bool = True
    """What `FunctionInfo.is_replayed` looks for."""


class Workflow(Generic[Pay, R]):
    """A function under `@workflow`. `fn` is the function itself."""

    is_workflow = True

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        self.fn = fn
        self.name = str(options.get("name") or getattr(fn, "__name__", ""))
        self.limit: Limit | None = options["use"].settings.limit
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise ConfigError(f"workflow {fn.__name__} is a generator: return a list")
        keep_s = options.pop("keep_s", None)
        self.keep_s = None if keep_s is None else check_seconds(keep_s, "keep_s", positive=True)
        """For how long after its end its history is kept; None: as `limits.history_s` of the system says."""
        self.continue_after = int(options.pop("continue_after", CONTINUE_AFTER))
        """After this many steps, timers and calls `flow.continue_if_long` begins it as new."""
        if self.continue_after < 1:
            raise ConfigError(f"continue_after must be at least 1, not {self.continue_after}", field="continue_after")
        update_wrapper(cast("Any", self), fn)

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    if TYPE_CHECKING:

        def __call__(self, *, is_started_and_not_called: Never) -> Any:
            """No call of it type-checks, and it is no function that takes a context."""

    else:

        def __call__(self, *_args: object, **_kwargs: object) -> Any:
            """Refused: a workflow is started, not called."""
            raise InvalidArgument(
                f"{self.name} is a workflow, which is started and not called: in a workflow write "
                f"await flow.call({self.name}, payload), elsewhere await {self.name}.start(ctx, payload)"
            )

    @overload
    async def start(
        self: Workflow[None, R],
        ctx: Context,
        /,
        *,
        limit: Limit | None = None,
        book: str | None = None,
        **options: Unpack[StartOptions],
    ) -> Handle[R]: ...

    @overload
    async def start(
        self,
        ctx: Context,
        payload: Pay,
        /,
        *,
        limit: Limit | None = None,
        book: str | None = None,
        **options: Unpack[StartOptions],
    ) -> Handle[R]: ...

    @overload
    def start(
        self: Workflow[None, R],
        ctx: blocking.Context,
        /,
        *,
        limit: Limit | None = None,
        book: str | None = None,
        **options: Unpack[StartOptions],
    ) -> BlockingHandle[R]: ...

    @overload
    def start(
        self,
        ctx: blocking.Context,
        payload: Pay,
        /,
        *,
        limit: Limit | None = None,
        book: str | None = None,
        **options: Unpack[StartOptions],
    ) -> BlockingHandle[R]: ...

    def start(self, ctx: Context | blocking.Context, /, *payload: Any, **options: Any) -> Any:
        """Start the workflow as a logged call, after `delay_s`; its handle, once that is durable. To be awaited with
        the context of an `async def`; that of a `def` gives a handle without `await`.

        `id` is the key of the start: there is one workflow of an id at a time. If one runs, `if_running` decides: "use"
        it (`KeyReused` if its payload was another one), "fail" (`AlreadyExists`), or "kill" it and start again. If one
        has ended, `if_ended`: "use" it, "fail", "again", or "again_if_failed". Without an id each start is another
        workflow. `attributes` are what lists find it by: up to 16 texts, numbers and booleans. `limit` takes the place
        of what the decorator says, `limit_key` that of the payload's field, and a higher `priority` goes first.
        """
        refuse_in_body(f"{self.name}.start")
        if not isinstance(ctx, blocking.Context):
            return self._start(ctx, *payload, **options)
        begun = blocking.run(ctx, lambda here: self._start(here, *payload, **options))
        return BlockingHandle(ctx, self, begun.id, begun.book)

    async def _start(
        self,
        ctx: Context,
        /,
        *payload: Any,
        id: str | None = None,  # noqa: A002 - as everywhere
        if_running: IfRunning = "use",
        if_ended: IfEnded = "use",
        delay_s: float = 0,
        attributes: Mapping[str, Attribute] | None = None,
        limit: Limit | None = None,
        limit_key: str | None = None,
        priority: int = 0,
        book: str | None = None,
    ) -> Handle[R]:
        if len(payload) > 1:
            raise InvalidArgument(f"{self.name} takes at most one payload, not {len(payload)}", field="payload")
        handle = self.handle(ctx, uuid4().hex if id is None else id, book=book)
        if if_running == "kill":
            if_running, if_ended = "fail", await kill_first(handle, if_ended)
        begun = await CallsById(ctx).start(
            handle.invocation_id,
            self,
            *payload,
            if_running=if_running,
            if_ended=if_ended,
            delay_s=delay_s,
            book=book,
            name=handle.id,
            attributes={**check_attributes(attributes), **marks_of(limit, limit_key, priority)},
            watcher="" if (limit or self.limit) is None else gate_id_of(self.name, handle.book),
        )
        handle.know(begun.result)
        return handle

    @overload
    def handle(self, ctx: Context, id: str, *, book: str | None = None) -> Handle[R]: ...

    @overload
    def handle(self, ctx: blocking.Context, id: str, *, book: str | None = None) -> BlockingHandle[R]: ...

    def handle(
        self,
        ctx: Context | blocking.Context,
        id: str,  # noqa: A002 - as everywhere
        *,
        book: str | None = None,
    ) -> Handle[R] | BlockingHandle[R]:
        """The workflow of that id, whether it was started or not. Its methods are to be awaited with the context of an
        `async def`, and not with that of a `def`.
        """
        info = Function.of(self).info
        flow_id = check_key(id, "id", MAX_ID_CHARS)
        where = book or info.book or ctx.logbook.name
        if isinstance(ctx, blocking.Context):
            return BlockingHandle(ctx, self, flow_id, where)
        invocation_id = invocation_id_of(info.name, where, flow_id)
        logbook = ctx.logbook_named(where)
        return Handle(info.name, flow_id, invocation_id, FunctionCalls(ctx), logbook, self.decode_result, self)

    @overload
    async def schedule(
        self, ctx: Context, /, *payload: Any, id: str, book: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule: ...

    @overload
    def schedule(
        self,
        ctx: blocking.Context,
        /,
        *payload: Any,
        id: str,
        book: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> BlockingSchedule: ...

    def schedule(self, ctx: Context | blocking.Context, /, *payload: Any, id: str, **options: Any) -> Any:  # noqa: A002
        """Have the workflow be started with this payload at each tick of a cron line or an interval. To be awaited with
        the context of an `async def`, and not with that of a `def`.

        The workflow of a tick has the id `{id}@{tick}`, so it is started once. `zone` is that of the cron line. At a
        tick while an earlier workflow runs, `overlap` decides: "skip" the tick; "queue" one tick, or "queue_all";
        "allow" both to run; "cancel" or "kill" the earlier one first. Ticks that were missed, as while nothing ran, are
        made up for if they are not older than `catch_up_s`, at least 10 seconds, and `jitter_s` together. `jitter_s`
        spreads the starts. `InvalidArgument` for a cron line that never fires.
        """
        refuse_in_body(f"{self.name}.schedule")
        if not isinstance(ctx, blocking.Context):
            return self._schedule(ctx, *payload, id=id, **options)
        blocking.run(ctx, lambda here: self._schedule(here, *payload, id=id, **options))
        return self.schedule_handle(ctx, id, book=options.get("book"))

    async def _schedule(
        self,
        ctx: Context,
        /,
        *payload: Any,
        id: str,  # noqa: A002
        cron: str = "",
        every_s: float = 0,
        offset_s: float = 0,
        zone: str = "UTC",
        overlap: Overlap = "skip",
        catch_up_s: float = 3_600,
        jitter_s: float = 0,
        attributes: Mapping[str, Attribute] | None = None,
        is_paused: bool = False,
        if_exists: IfExists = "fail",
        book: str | None = None,
    ) -> Schedule:
        if len(payload) > 1:
            raise InvalidArgument(f"{self.name} takes at most one payload, not {len(payload)}", field="payload")
        spec = spec_of(
            cron=cron,
            every_s=every_s,
            offset_s=offset_s,
            zone=zone,
            overlap=overlap,
            catch_up_s=catch_up_s,
            jitter_s=jitter_s,
            now_us=clock_of(ctx).now_us(),
        )
        found, checked = self.schedule_handle(ctx, id, book=book), check_attributes(attributes)
        start = partial(
            CallsById(ctx).start,
            found.invocation_id,
            self,
            *payload,
            if_ended="again",
            book=book,
            name=found.id,
            attributes={**checked, ATTENDS: "schedule"},
        )
        await found.create(spec, start, checked, if_exists=if_exists, is_paused=is_paused)
        return found

    @overload
    def schedule_handle(self, ctx: Context, id: str, *, book: str | None = None) -> Schedule: ...

    @overload
    def schedule_handle(self, ctx: blocking.Context, id: str, *, book: str | None = None) -> BlockingSchedule: ...

    def schedule_handle(
        self,
        ctx: Context | blocking.Context,
        id: str,  # noqa: A002 - as everywhere
        *,
        book: str | None = None,
    ) -> Schedule | BlockingSchedule:
        """The schedule of that id, whether it was created or not. As `handle`."""
        info = Function.of(self).info
        where = book or info.book or ctx.logbook.name
        if isinstance(ctx, blocking.Context):
            return BlockingSchedule(ctx, self, check_key(id, "id", MAX_SCHEDULE_ID_CHARS), where)
        return Schedule(info.name, id, CallsById(ctx), ctx.logbook_named(where))

    def decode_result(self, payload: Payload) -> R:
        """A recorded result as the type that the function is annotated with."""
        found: R = Function.of(self).decode_result(payload)
        return found

    async def run(self, ctx: Context, *arguments: Any) -> Any:
        """The body of its logged calls."""
        return await run_workflow(ctx, self, arguments)


async def kill_first(handle: Handle[Any], if_ended: IfEnded) -> IfEnded:
    """End the workflow of that id if it runs, for a start that replaces it: what the start does about one that has
    ended. What was killed is begun again. So is, by default, what was killed before, maybe by the same start, whose
    answer was lost.
    """
    try:
        before = await handle.status()
        await handle.kill()
    except (NoSuchWorkflow, WorkflowEnded):
        return if_ended
    return "again" if before.status not in OVER or if_ended == "use" else if_ended


class _MayTake(Protocol[RCo]):
    """A function whose payload has a default value: it is started with and without one."""

    def __call__(self, payload: Any = ..., /) -> RCo:
        """Run it."""


_OPTIONS: Final = (
    *("name", "book", "run_timeout_s", "limit", "keep_s", "continue_after"),
    *("concurrency", "min_workers", "max_workers", "memory_bytes", "unknown_fields", "http"),
)


class _Decorator:
    """`@workflow(...)`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    @overload
    def __call__(self, fn: _MayTake[Coroutine[Any, Any, R]], /) -> Workflow[Any, R]: ...

    @overload
    def __call__(self, fn: Callable[[], Coroutine[Any, Any, R]], /) -> Workflow[None, R]: ...

    @overload
    def __call__(self, fn: Callable[[Pay], Coroutine[Any, Any, R]], /) -> Workflow[Pay, R]: ...

    @overload
    def __call__(self, fn: _MayTake[R], /) -> Workflow[Any, R]: ...

    @overload
    def __call__(self, fn: Callable[[], R], /) -> Workflow[None, R]: ...

    @overload
    def __call__(self, fn: Callable[[Pay], R], /) -> Workflow[Pay, R]: ...

    def __call__(self, fn: Callable[..., Any], /) -> Workflow[Any, Any]:
        options = dict(self._options)
        found: Workflow[Any, Any] = Workflow(fn, options)
        register_body(fn, found.run, found, **options)
        return found


@overload
def workflow(fn: _MayTake[Coroutine[Any, Any, R]], /) -> Workflow[Any, R]: ...


@overload
def workflow(fn: Callable[[], Coroutine[Any, Any, R]], /) -> Workflow[None, R]: ...


@overload
def workflow(fn: Callable[[Pay], Coroutine[Any, Any, R]], /) -> Workflow[Pay, R]: ...


@overload
def workflow(fn: _MayTake[R], /) -> Workflow[Any, R]: ...


@overload
def workflow(fn: Callable[[], R], /) -> Workflow[None, R]: ...


@overload
def workflow(fn: Callable[[Pay], R], /) -> Workflow[Pay, R]: ...


@overload
def workflow(
    *,
    name: str | None = None,
    book: str = "",
    run_timeout_s: float = RUN_TIMEOUT_S,
    limit: Limit | None = None,
    keep_s: float | None = None,
    continue_after: int = CONTINUE_AFTER,
    **options: Any,
) -> _Decorator: ...


def workflow(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a workflow of a function, `async def` or `def`, under its own name or `name`.

    `book` is the LogBook of its runs. `run_timeout_s`: how long one run may stay in a worker, before another one
    continues; a step may take a quarter of it, see "Long runs" in docs/workflows.md. `limit` says how many run
    at once, how often they begin, and which goes first. `keep_s`: for how long after its end its history is kept
    (by default `limits.history_s` of the system),
    `continue_after`: see `flow.continue_if_long`. Other options are those of `@function`, but for `retry`: a run that
    is cut off always begins again.
    """
    if "retry" in options:
        raise ConfigError(
            "@workflow has no option retry: give it to the steps, or catch what they raise", field="retry"
        )
    refuse_options("@workflow", (name for name in options if name not in (*_OPTIONS, "timeout_s")), _OPTIONS)
    limit = options.pop("limit", None)
    options.setdefault("timeout_s", options.pop("run_timeout_s", RUN_TIMEOUT_S))
    options["retry"] = _LOSSES
    options["use"] = Use(
        library=LIBRARY, decorator="@workflow", settings=Settings(None if limit is None else check_limit(limit))
    )
    decorator = _Decorator(options)
    if fn is None:
        return decorator
    found: Workflow[Any, Any] = Workflow(fn, options)
    register_body(fn, found.run, found, **options)
    return found
