"""BokiFlow: workflows that run exactly once, whatever crashes. See docs/workflows.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from boki.libs.bokiflow.client import FlowClient, FlowHandle
    from boki.libs.bokiflow.client_blocking import BlockingFlowClient, BlockingFlowHandle
    from boki.libs.bokiflow.client_schedules import FlowSchedule
    from boki.libs.bokiflow.client_schedules_blocking import BlockingFlowSchedule
    from boki.libs.bokiflow.flowing import Child, flow
    from boki.libs.bokiflow.gates.spec import Limit
    from boki.libs.bokiflow.handles import Handle, WorkflowState
    from boki.libs.bokiflow.locks.block import FlowLock, HeldLock
    from boki.libs.bokiflow.refusals import (
        CompensationFailed,
        Diverged,
        LockLost,
        NoSuchWorkflow,
        NotDeterministic,
        OutcomeUnknown,
        StepFailed,
        UnfinishedHandlers,
        WorkflowCancelled,
        WorkflowEnded,
        WouldDeadlock,
    )
    from boki.libs.bokiflow.stepping import Step, step
    from boki.libs.bokiflow.workflows import Workflow, workflow

__all__ = [
    "BlockingFlowClient",
    "BlockingFlowHandle",
    "BlockingFlowSchedule",
    "Child",
    "CompensationFailed",
    "Diverged",
    "FlowClient",
    "FlowHandle",
    "FlowLock",
    "FlowSchedule",
    "Handle",
    "HeldLock",
    "Limit",
    "LockLost",
    "NoSuchWorkflow",
    "NotDeterministic",
    "OutcomeUnknown",
    "Step",
    "StepFailed",
    "UnfinishedHandlers",
    "Workflow",
    "WorkflowCancelled",
    "WorkflowEnded",
    "WorkflowState",
    "WouldDeadlock",
    "flow",
    "step",
    "workflow",
]

_MODULES: Final = {
    **dict.fromkeys(("FlowClient", "FlowHandle"), "client"),
    **dict.fromkeys(("BlockingFlowClient", "BlockingFlowHandle"), "client_blocking"),
    "FlowSchedule": "client_schedules",
    "BlockingFlowSchedule": "client_schedules_blocking",
    **dict.fromkeys(("Child", "flow"), "flowing"),
    "Limit": "gates.spec",
    **dict.fromkeys(("FlowLock", "HeldLock"), "locks.block"),
    **dict.fromkeys(("Handle", "WorkflowState"), "handles"),
    **dict.fromkeys(("Step", "step"), "stepping"),
    **dict.fromkeys(("Workflow", "workflow"), "workflows"),
}


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the CLI imports `face` whenever it starts, and nothing else of the library.

    What has no module of its own there is an error, of `refusals`.
    """
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'refusals')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
