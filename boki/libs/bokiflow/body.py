"""What the body of one workflow may ask of its execution: `flow` speaks to the `Body` of the code that calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any, Final, NoReturn, get_args
from uuid import UUID

from boki import InvalidArgument, TooLarge, WrongState
from boki.extending import Function, Payload, invocation_id_of
from boki.libs.bokiflow.history import Scopes
from boki.libs.bokiflow.locks.work import LeaveWork, TakeWork, request_of
from boki.libs.bokiflow.machine import CommandFuture, Machine
from boki.libs.bokiflow.refusals import CompensationFailed, NotDeterministic, outside, unfinished
from boki.libs.bokiflow.stepping import Step
from boki.libs.bokiflow.threads import BodyThread
from boki.libs.bokiflow.work import CallWork, ParentClose, StepWork

_NO_PAYLOAD: Final = Payload("bytes", b"")
PAYLOAD_MARK: Final = "payload"
"""The mark under which the journal of a workflow with queries keeps its payload."""


class ContinueAsNew(BaseException):
    """Raised by `flow.continue_as_new`. It is no `Exception`, so that the body does not swallow it."""

    def __init__(self, payload: Payload, taken_count: int) -> None:
        """`payload` is encoded: the body, while it is unwound, may still change what it has passed. `taken_count`:
        number of messages that the body had taken at the call. The payload may depend on them.
        """
        super().__init__("the workflow continues as new")
        self.payload = payload
        self.taken_count = taken_count


class Body:
    """The body of one execution. `run` is what its machine runs."""

    payload: Payload | None = None
    """What the workflow was begun with; None: it need not be kept for queries."""
    is_continued = False
    """Whether it continues what another body has begun, which may have left children."""
    life = 0
    """Tells the starts of its id apart; 0: not known."""
    most_payload_bytes = 1 << 62
    """What a record holds of a payload for the next round, at most."""

    def __init__(
        self, scopes: Scopes, flow_id: str, book: str, fn: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> None:
        self.scopes = scopes
        """What the numbers of its commands and calls are unique in."""
        self.continue_after = 0
        """After this many steps, timers and calls it may begin as new by itself; 0: never."""
        self.flow_id = flow_id
        self.book = book
        self.machine: Machine
        self._fn = fn
        self._arguments = arguments
        self._compensations: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._random: Random | None = None
        self._random_scope = ""
        self._call_count = 0
        self._lock_count = 0
        self.children: dict[str, CallWork] = {}
        """Calls that were started and have not ended, as far as the body knows."""
        self.joined: Any = None
        """The part of its parent's transaction in which it works: an `OpenTransaction`, or None."""

    @property
    def scope(self) -> str:
        """The scope of what the body starts next."""
        return self.scopes.at(self.machine.next_n)

    async def run(self) -> Any:
        """The user's function; if it fails, what it has done is compensated in reverse. In the end it holds no lock."""
        try:
            found = await self._run()
        except GeneratorExit:
            raise
        except BaseException as error:
            if isinstance(error, ContinueAsNew):
                self.machine.mailbox.end_by(error.taken_count)
            await self._leave_locks()
            raise
        await self._leave_locks()
        return found

    async def _run(self) -> Any:
        try:
            if inspect.iscoroutinefunction(self._fn):
                found = await self._fn(*self._arguments)
            else:
                found = await BodyThread(self._fn, self._arguments).run(self.step, self.machine.lose)
        except (GeneratorExit, ContinueAsNew):
            raise
        except BaseException as raised:
            error = _ungrouped(raised)
            if not isinstance(error, ContinueAsNew):
                self.machine.is_ending = True  # else a request to cancel would leave the rest undone
                await self._compensate(error)
            if error is raised:
                raise
            raise error from None
        self.machine.is_ending = True
        return found

    async def _compensate(self, cause: BaseException) -> None:
        failed = []
        while self._compensations:
            fn, args, kwargs = self._compensations.pop()
            try:
                await self.step(fn, args, kwargs)
            except (GeneratorExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - the others are still to be made
                failed.append(f"{_name_of(fn)}: {str(error) or type(error).__name__}")
        if failed:
            raise CompensationFailed(
                f"workflow {self.machine.name} failed ({type(cause).__name__}: {cause}), and could not undo all that "
                f"it had done: {'; '.join(failed)}",
                compensations=failed,
            ) from cause

    # locks

    async def take_lock(self, key: str) -> int:
        """The token of the lock, once it is this workflow's. `WouldDeadlock`: it is not, and will not be."""
        machine, locks = self.machine, self.machine.mailbox.locks
        machine.is_time_used = True
        self._lock_count += 1
        request_id = locks.keys[key] = f"{self.scope}:L{self._lock_count}"
        run_id = self.scope.partition(":")[0]
        request = request_of(request_id, run_id, machine.began_us, machine.name, self.flow_id, self.life)
        try:
            is_certain: bool = await machine.start(TakeWork(key, request))
            token: int = await locks.wait(key, request_id, is_certain=is_certain)
        except GeneratorExit:
            raise
        except BaseException:
            await self.leave_lock(key)
            raise
        return token

    async def leave_lock(self, key: str) -> None:
        """Leave the lock, or the queue for it. Several tasks may do so at once, such as one that the body has left."""
        locks = self.machine.mailbox.locks
        request = locks.keys.get(key)
        if request is None:
            return
        await self.machine.start(LeaveWork(key, request))
        locks.leave(key, request)

    async def _leave_locks(self) -> None:
        for key in list(self.machine.mailbox.locks.keys):
            await self.leave_lock(key)

    # steps and calls

    async def step(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a step of either kind, or a function of the workflow's own: in a thread, if the body is a `def`."""
        if isinstance(fn, Step):
            return await self.begin(StepWork(fn, args, kwargs))
        if self._runs_in_thread(fn):
            found = await BodyThread(partial(fn, **kwargs), args).run(self.step, self.machine.lose)
        else:
            found = fn(*args, **kwargs)
        return await found if inspect.isawaitable(found) else found

    def _runs_in_thread(self, fn: Callable[..., Any]) -> bool:
        """Whether a function of a `def` body is a part of it, which may ask for steps. In what was recorded before that
        was so, it was called in the loop, and what it asked for was refused.
        """
        if inspect.iscoroutinefunction(self._fn) or inspect.iscoroutinefunction(fn):
            return False
        return bool(self.machine.decide("functions in threads", new=True, old=False))

    def begin(self, work: StepWork | CallWork) -> CommandFuture:
        """Start a step or a call, with its arguments as they are now."""
        if self.machine.next_end is None:
            work.keep()
        return self.machine.start(work)

    def start_step(self, step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A step was called as a function."""
        if step.is_async:
            return self.step(step, args, kwargs)
        raise NotDeterministic(
            f"step {step.name} is a plain def, and this workflow is an async def, which it would block: "
            f"write await flow.run({step.name}, ...)"
        )

    def call(
        self,
        target: Callable[..., Any] | str,
        payload: tuple[Any, ...],
        name: str | None,
        *,
        awaits: bool,
        parent_close: ParentClose,
        book: str | None,
    ) -> CallWork:
        """The work of a call. Its id is made of its name, else of this scope and the number of the call."""
        if parent_close not in get_args(ParentClose):
            known = ", ".join(get_args(ParentClose))
            raise InvalidArgument(f"parent_close is one of {known}, not {parent_close!r:.40}", field="parent_close")
        if isinstance(target, Step):
            raise InvalidArgument(
                f"{target.name} is a step, which has no call of its own: write await {target.name}(...), "
                f"or await flow.run({target.name}, ...) if it is a plain def",
                field="target",
            )
        self._call_count += 1
        if name is None:
            call_id = invocation_id_of(self.scope, str(self._call_count))
            return CallWork(
                target, payload, call_id, "", starts=True, awaits=awaits, parent_close=parent_close, book=book
            )
        where = book or self.book
        if isinstance(target, str):
            known = target
        else:
            info = Function.of(target).info
            known, where = info.name, book or info.book or self.book
        return CallWork(
            target,
            payload,
            invocation_id_of(known, where, name),
            name,
            starts=True,
            awaits=awaits,
            parent_close=parent_close,
            book=book,
        )

    async def awaited(self, work: CallWork) -> Any:
        """What a call ends with. If its end is not awaited any more, it is one of those that are left."""
        self.children[work.invocation_id] = work
        try:
            found = await self.begin(work)
        except Exception:
            self.children.pop(work.invocation_id, None)
            raise
        self.children.pop(work.invocation_id, None)
        return found

    def on_query(self, name: str, handler: Callable[[Any], Any]) -> None:
        """Answer queries of that name. The journal keeps the payload then, so that others can replay it."""
        self.machine.mailbox.queries[name] = handler
        if self.payload is not None:
            self.machine.keep(PAYLOAD_MARK, self.payload)

    def compensate(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Have this be run if the workflow fails from here on."""
        self._compensations.append((fn, args, kwargs))

    def forget_compensations(self) -> None:
        """See `flow`."""
        self._compensations.clear()

    # determinism

    def now(self) -> datetime:
        """The workflow's time."""
        self.machine.is_time_used = True
        return datetime.fromtimestamp(self.machine.now_us / 1e6, UTC)

    @property
    def random(self) -> Random:
        """The workflow's random numbers."""
        if self._random is None or self._random_scope != self.scope:
            self.machine.is_time_used = True
            self._random_scope = self.scope
            self._random = Random(f"{self.scope} {self.machine.began_us}")
        return self._random

    def uuid(self) -> UUID:
        """A random UUID."""
        return UUID(int=self.random.getrandbits(128), version=4)

    @property
    def may_have_children(self) -> bool:
        """Whether it may leave children that are to be treated as their policies say."""
        return bool(self.children) or self.is_continued

    @property
    def is_long(self) -> bool:
        """Whether it may begin as new by itself here: not while a handler runs, whose work would be lost, nor with
        compensations.
        """
        machine, mailbox = self.machine, self.machine.mailbox
        if not self.continue_after or machine.event_count < self.continue_after or not machine.may_continue:
            return False
        if self._compensations:  # they would be forgotten, or not, as the journal is long
            return False
        return mailbox.is_in_handler or not mailbox.running_handlers

    def continue_as_new(self, payload: tuple[Any, ...]) -> NoReturn:
        """See `flow`."""
        if self.joined is not None:
            raise WrongState("a workflow that is part of a transaction cannot continue as new: call it outside of it")
        machine, mailbox = self.machine, self.machine.mailbox
        if mailbox.is_in_handler:  # where it is refused
            raise ContinueAsNew(_NO_PAYLOAD, mailbox.taken_count)
        if self._compensations:
            names = ", ".join(dict.fromkeys(_name_of(fn) for fn, _, _ in self._compensations))
            raise WrongState(
                f"workflow {machine.name} cannot continue as new: it would forget its compensations ({names}). If "
                "what was done stays, say flow.forget_compensations(), else have a child workflow do it: flow.call(...)"
            )
        handlers = mailbox.running_handlers
        if handlers:  # what they still do would not be in the payload, and their updates would be answered
            raise unfinished(machine.name, handlers)
        handed_over = self._encoded(payload)
        raise ContinueAsNew(handed_over, mailbox.hand_over())

    def _encoded(self, payload: tuple[Any, ...]) -> Payload:
        """The payload as the next round gets it. Raises what it cannot be handed over by: to the body, as any error."""
        if len(payload) > 1:
            raise InvalidArgument(
                f"flow.continue_as_new takes at most one payload, not {len(payload)}", field="payload"
            )
        known = Function.of(self._fn)
        encoded = known.encode_payload(payload[0]) if payload else _NO_PAYLOAD
        known.arguments(encoded)  # what the next round cannot take would end it before its body begins
        most_bytes = self.most_payload_bytes
        if len(encoded.data) > most_bytes:
            raise TooLarge(
                f"the payload of flow.continue_as_new has {len(encoded.data):,} bytes, and may have {most_bytes:,}: "
                "keep what is larger in an object or a LogBook, and hand over where it is",
                field="payload",
                limit=most_bytes,
            )
        return encoded


def _ungrouped(error: BaseException) -> BaseException:
    """What counts of the errors of a `TaskGroup` in which a task has the workflow continue as new: the other ones, if
    there are any.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    again, others = error.split(ContinueAsNew)
    if again is None or others is not None:
        return others or error
    found: BaseException = again
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _name_of(fn: Callable[..., Any]) -> str:
    """Of a compensation, for people."""
    return str(getattr(fn, "name", None) or getattr(fn, "__name__", fn))


BODY: ContextVar[Body | None] = ContextVar("boki_flow_body", default=None)


def body_of(what: str) -> Body:
    """The body whose code is running; `InvalidArgument` if there is none."""
    body = BODY.get()
    if body is None:
        raise outside(what, "call it in a function under @workflow")
    return body
