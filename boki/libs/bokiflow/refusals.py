"""What the workflow library refuses, and what to do next.

BokiError
├── InvalidArgument
│   └── NotDeterministic    a workflow did what a replay could not repeat
├── FunctionFailed
│   └── StepFailed          a step failed permanently
├── NotFound
│   ├── NoSuchSchedule      no schedule of that id was created
│   └── NoSuchWorkflow      nothing was started under that id
├── Overloaded
│   └── NoThread            the process can start no thread for a `def`: another run continues the workflow
├── WrongState
│   ├── UnfinishedHandlers  the workflow returned while handlers of messages were running
│   └── WorkflowEnded       nothing can be said to it any more
├── Unreadable              what a workflow has read was trimmed, and a replay needs it: the workflow is paused
├── Diverged                the code does not do what the journal says: the workflow is paused
├── CompensationFailed      a workflow failed, and could not undo all that it had done
├── OutcomeUnknown          a step that may run at most once was cut off
├── WouldDeadlock           a workflow waits for no lock while an older one waits for one of its own
├── LockLost                a workflow that wrote to the store does not hold its lock any more
└── WorkflowCancelled       the workflow was cancelled by a request
"""

from __future__ import annotations

from boki import BokiError, FunctionFailed, InvalidArgument, NotFound, Overloaded, WrongState


class NotDeterministic(InvalidArgument):
    """A workflow reached out of itself, so that a replay could not repeat what it did. Nothing happened."""

    code = "not_deterministic"


class StepFailed(FunctionFailed):
    """A step failed permanently. `error_type` is the class of what it raised, `step` its name."""

    code = "step_failed"


class Diverged(BokiError):
    """The code of a workflow did something else than what its journal says; the workflow is paused.

    `recorded` and `started` name both sides.
    """

    code = "workflow_diverged"
    http_status = 409


class OutcomeUnknown(BokiError):
    """A step that may run at most once was cut off: it ran in part, in full or not at all, and will not run again."""

    code = "step_outcome_unknown"
    default_outcome = "unknown"


class WorkflowCancelled(BokiError):
    """The workflow was cancelled by a request, and what it had to clean up is cleaned up.

    A caller that waits for its end gets `FunctionFailed` with the name of this class as `error_type`, as of any error.
    """

    code = "workflow_cancelled"
    http_status = 409
    default_outcome = "failed"


class CompensationFailed(BokiError):
    """A workflow failed, and some of what it had done could not be undone. `compensations` says what."""

    code = "compensation_failed"
    default_outcome = "failed"


class WouldDeadlock(BokiError):
    """The workflow would wait for a lock while an older one waits for one that it holds: leave all, and begin again.

    It does not hold the lock that it asked for, and waits for it no more. It still holds the others.
    """

    code = "lock_would_deadlock"
    http_status = 409
    default_outcome = "not_applied"
    default_retryable = True


class LockLost(BokiError):
    """The workflow does not hold its lock any more, so what it wrote under it was refused. Nothing happened.

    It had been ended from outside, and the lock was granted to another workflow.
    """

    code = "lock_lost"
    http_status = 409
    default_outcome = "not_applied"


class WorkflowEnded(WrongState):
    """The workflow has ended, so that nothing can be said to it any more. Nothing happened."""

    code = "workflow_ended"


class NoSuchWorkflow(NotFound):
    """No workflow was started under that id, or it ended longer ago than calls are kept."""

    code = "no_such_workflow"


class NoSuchSchedule(NotFound):
    """No schedule was created under that id, or it was deleted."""

    code = "no_such_schedule"


class UnfinishedHandlers(WrongState):
    """The workflow returned or continued as new while handlers of its messages were still running: await them."""

    code = "unfinished_handlers"


def diverged(workflow: str, recorded: str, started: str) -> Diverged:
    """The error that names both sides."""
    return Diverged(
        f"workflow {workflow} diverged from its journal: recorded was {recorded}, and the code {started}. It is "
        "paused: deploy code that does what was recorded, or put the change behind flow.patched(...), then resume it",
        recorded=recorded,
        started=started,
    )


class Unreadable(BokiError):
    """A workflow read the log as of a moment that was trimmed since; nobody can replay it, so it is paused."""

    code = "workflow_unreadable"
    http_status = 409


class NoThread(Overloaded):
    """The process can start no thread for code of a `def` workflow, or for a step. It ends the run, or has the step
    wait, and does not end the workflow.
    """


def unreadable(workflow: str, seqnum: int, error: BokiError) -> Unreadable:
    """The error. `error` says what was trimmed."""
    return Unreadable(
        f"workflow {workflow} reads as of seqnum {seqnum}, which was trimmed ({error}). It is paused, because a replay "
        "cannot read the same: kill it and start it again, and keep what workflows read for longer than they take",
        seqnum=seqnum,
    )


def would_deadlock(key: str, held: str) -> WouldDeadlock:
    """The error. `held` is the lock that an older workflow waits for."""
    return WouldDeadlock(
        f"this workflow holds lock {held!r}, which an older one waits for, so it does not wait for lock {key!r}: leave "
        "the locks that it holds, and take all of them again",
        key=key,
        held=held,
    )


def lock_lost(key: str, token: int) -> LockLost:
    """The error."""
    return LockLost(
        f"lock {key!r} was granted to another workflow after this one had got it at seqnum {token}: nothing was "
        "written",
        key=key,
        token=token,
    )


def outside(what: str, remedy: str) -> InvalidArgument:
    """For what works only inside of a workflow."""
    return InvalidArgument(f"{what} was called outside of a workflow: {remedy}")


def cancelled(workflow: str, reason: str) -> WorkflowCancelled:
    """The error."""
    return WorkflowCancelled(f"workflow {workflow} was cancelled" + (f": {reason}" if reason else ""), reason=reason)


def unfinished(workflow: str, handlers: list[str]) -> UnfinishedHandlers:
    """The error that names them."""
    names = ", ".join(sorted(set(handlers)))
    return UnfinishedHandlers(
        f"workflow {workflow} returned or continued as new while handlers of {names} were running: wait for them "
        "before that, by await flow.wait_for(flow.all_handlers_finished)",
        outcome="failed",
        handlers=sorted(set(handlers)),
    )


def no_such_workflow(workflow: str, flow_id: str, book: str) -> NoSuchWorkflow:
    """The error. Each book has ids of its own."""
    return NoSuchWorkflow(
        f"no {workflow} was started under the id {flow_id!r} in book {book!r}, or it ended longer ago than calls are "
        "kept: start it, or name another book",
        workflow=workflow,
        id=flow_id,
        book=book,
    )
