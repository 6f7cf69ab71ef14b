"""Handles of workflows and schedules for `def` functions and `def` steps.

Each method runs the one of the same name of the `async` class, by `boki.blocking.run`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from boki import BokiError, Context, blocking
from boki.extending import Function, invocation_id_of
from boki.libs.bokiflow import handles
from boki.libs.bokiflow.handles import WorkflowState
from boki.libs.bokiflow.schedules import handle as schedules
from boki.libs.bokiflow.schedules.handle import ScheduleState
from boki.libs.bokiflow.schedules.spec import Overlap
from boki.libs.bokiflow.stepping import refuse_in_body
from boki.libs.bokiflow.upgrading import Upgrade

R = TypeVar("R")
T = TypeVar("T")


class HasHandles(Protocol[R]):
    """A workflow, as its handles need it."""

    def handle(self, ctx: Context, flow_id: str, /, *, book: str | None = None) -> handles.Handle[R]:
        """See `Workflow.handle`."""

    def schedule_handle(self, ctx: Context, schedule_id: str, /, *, book: str | None = None) -> schedules.Schedule:
        """See `Workflow.schedule_handle`."""


class _BlockingHandle(Generic[R]):
    """What stands behind a `Handle`."""

    def __init__(self, ctx: blocking.Context, code: HasHandles[R], flow_id: str, book: str) -> None:
        self._ctx = ctx
        self._code = code
        self.workflow = Function.of(code).info.name
        """The name of the workflow."""
        self.id = flow_id
        """The id that it was given when it was started."""
        self.invocation_id = invocation_id_of(self.workflow, book, flow_id)
        """The id of its logged call."""
        self.book = book

    def __repr__(self) -> str:
        return f"<{self.workflow} {self.id!r}>"

    def _run(self, work: Callable[[handles.Handle[R]], Awaitable[T]]) -> T:
        refuse_in_body("a method of a handle")
        return blocking.run(self._ctx, lambda ctx: work(self._code.handle(ctx, self.id, book=self.book)))

    def _like(self, other: handles.Handle[R]) -> Handle[R]:
        return Handle(self._ctx, self._code, other.id, other.book)


class _BlockingSchedule:
    """What stands behind a `Schedule`."""

    def __init__(self, ctx: blocking.Context, code: HasHandles[Any], schedule_id: str, book: str) -> None:
        self._ctx = ctx
        self._code = code
        self._book = book
        self.workflow = Function.of(code).info.name
        """The name of the workflow that it starts."""
        self.id = schedule_id
        """The id that it was given when it was created."""
        self.invocation_id = schedules.schedule_call_id(self.workflow, book, schedule_id)
        """The id of the logged call that attends to it."""

    def __repr__(self) -> str:
        return f"<schedule {self.id!r} of {self.workflow}>"

    def _run(self, work: Callable[[schedules.Schedule], Awaitable[T]]) -> T:
        refuse_in_body("a method of a schedule")
        return blocking.run(self._ctx, lambda ctx: work(self._code.schedule_handle(ctx, self.id, book=self._book)))


# Below: made from `boki.libs.bokiflow.handles` and `schedules.handle` by `python -m tests.unasync`.


class Handle(_BlockingHandle[R]):
    """A workflow by its id. It may have ended, or not have been started yet: then it has only its inbox."""

    def status(self) -> WorkflowState:
        """What is known of it. `NoSuchInvocation` if it was never started, or ended longer ago than calls are kept."""
        return self._run(lambda found: found.status())

    def result(self, *, wait_s: float | None = None) -> R:
        """What it returned, once it has ended; raises what it ended with. The handle of a start that was answered with
        a result gives that first.

        `DeadlineExceeded` after `wait_s`, or at the deadline of the calling function: the workflow continues.
        """
        return self._run(lambda found: found.result(wait_s=wait_s))

    def signal(self, name: str, payload: Any = None, *, key: str | None = None) -> None:
        """Send a message without an answer. It is kept until the workflow takes it, also if that is yet to be started.

        `key`: the same key within 24 hours sends nothing again. `WorkflowEnded` if it has ended, unless the key was
        used before: that message may be what has ended it.
        """
        self._run(lambda found: found.signal(name, payload, key=key))

    def update(
        self,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,  # noqa: A002 - as everywhere
        wait_s: float | None = None,
    ) -> Any:
        """Send a message and wait for its answer; raises what the handler, or its validator, raised.

        `id`: the same id within 24 hours sends nothing again, and gives the same answer, also if the workflow has
        continued as new since; `KeyReused` if it was another update. `Trimmed` if that answer is not kept any more.
        `DeadlineExceeded` if the answer has not come after `wait_s`, or at the deadline of the calling function: the
        update was sent, and its id is in the error.
        """
        return self._run(lambda found: found.update(name, payload, id=id, wait_s=wait_s))

    def query(self, name: str, payload: Any = None) -> Any:
        """What its handler of that query says now, by a replay that the workflow does not notice: in this process, or
        with the version that the workflow is pinned to.

        Also of one that has ended. `InvalidArgument` if it has no such query, `DeadlineExceeded` if that version does
        not answer within a minute.
        """
        return self._run(lambda found: found.query(name, payload))

    def resolve(self, promise: str, value: Any = None) -> None:
        """Give the promise of that name its value. The first value or error counts, and again does nothing, unless the
        workflow has continued as new: the promise of that name is another one then.

        `WorkflowEnded` if it has ended, and no workflow of this id was given the promise before.
        """
        self._run(lambda found: found.resolve(promise, value))

    def reject(self, promise: str, error: BokiError) -> None:
        """Have the promise of that name raise this error. As `resolve`."""
        self._run(lambda found: found.reject(promise, error))

    def cancel(self, reason: str = "") -> None:
        """Ask it to end: its body is cancelled as a task is, and undoes what it has done. Again: nothing more happens.

        `WorkflowEnded` if it has ended.
        """
        self._run(lambda found: found.cancel(reason))

    def kill(self) -> None:
        """End it as it is: nothing is undone. Its children are treated as their `parent_close` says, soon after.

        Again: nothing more happens. `WorkflowEnded` if it has ended before.
        """
        self._run(lambda found: found.kill())

    def pause(self, reason: str = "") -> None:
        """Let the steps that run come to their end, and begin nothing more until `resume`. Messages are kept."""
        self._run(lambda found: found.pause(reason))

    def resume(self) -> None:
        """Continue after `pause`, or after the code was corrected that had diverged."""
        self._run(lambda found: found.resume())

    def rewind(self, step: int | None = None) -> int:
        """Have it continue in front of that step: what it did from there on is forgotten, and done again.

        It must have ended, or be paused. `step` is a number as `boki flow show` prints it; None is the last step that
        failed, else nothing is forgotten and only the end is. The number is returned. Effects are not undone, and steps
        that are done again have new keys. Messages that it was given later are given again.

        `WrongState` if it runs, or a child runs that it would start again; `InvalidArgument` for a step that it has
        not, or beside which others ran that ended after it.
        """
        return self._run(lambda found: found.rewind(step))

    def fork(self, step: int | None = None, *, id: str | None = None) -> Handle[R]:  # noqa: A002
        """Begin a workflow of another id with the history of this one in front of that step, messages included.

        `step` is as for `rewind`. This one may run, and continues as it is. `AlreadyExists` if the id is in use.
        """
        return self._like(self._run(lambda found: found.fork(step, id=id)))

    def upgrade(self, version: int | None = None, *, dry_run: bool = False) -> Upgrade:
        """Have it continue with that deployed version of the code, or the one that runs now, if what is recorded of it
        does not diverge under that. `dry_run`: only tell whether it does not.

        `Diverged`, with both sides named, and it stays where it is. `WrongState` if it ran all the time, or has ended.
        """
        return self._run(lambda found: found.upgrade(version, dry_run=dry_run))


class Schedule(_BlockingSchedule):
    """A schedule by its id. It may not have been created yet."""

    def state(self) -> ScheduleState:
        """What is known of it. `NoSuchSchedule`"""
        return self._run(lambda found: found.state())

    def pause(self, reason: str = "") -> None:
        """Let ticks pass by until `resume`. What runs continues, and what waits for it is started."""
        self._run(lambda found: found.pause(reason))

    def resume(self) -> None:
        """Let ticks count again, from now on: those that have passed stay out."""
        self._run(lambda found: found.resume())

    def trigger(self, *, key: str | None = None, overlap: Overlap | None = None) -> str:
        """Start the workflow now, also while paused: its id. The same key starts it once.

        `overlap` stands in for the schedule's policy: with "skip", the workflow is not started while another one runs.
        """
        return self._run(lambda found: found.trigger(key=key, overlap=overlap))

    def backfill(self, start: datetime, end: datetime, *, overlap: Overlap | None = None) -> int:
        """Start the workflows of the ticks from `start` to before `end`: how many ticks that is.

        One after the other, or all together if the schedule allows overlaps; `overlap` says otherwise. What comes
        meanwhile, ticks and triggers, is decided by the schedule's own policy: one that skips leaves out its ticks
        while a workflow of the past runs. A tick that was started before, however long ago, is not started again. At
        most 10,000 ticks at once.
        """
        return self._run(lambda found: found.backfill(start, end, overlap=overlap))

    def delete(self) -> None:
        """Start nothing any more. What runs continues. Again: `NoSuchSchedule`."""
        self._run(lambda found: found.delete())
