"""What the commands of a workflow are to do outside of its body. Values; `run.py` carries them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final, Literal, TypedDict, TypeVar, get_args

from boki.extending import REPLAYED, Attribute, Function, result_of
from boki.libs.bokiflow.asking import StoreWork
from boki.libs.bokiflow.digests import digest_of
from boki.libs.bokiflow.joins import Base
from boki.libs.bokiflow.records import Result
from boki.libs.bokiflow.stepping import Step

T = TypeVar("T")

_ATOMS: Final = frozenset((str, bytes, int, float, bool, type(None)))
"""Types of arguments that cannot be changed."""
JOINS: Final = "boki:joins"
"""The attribute of a child that works in the transaction of its parent."""
ParentClose = Literal["cancel", "kill", "abandon"]
"""The outcome of a child workflow when its parent has ended first: it is asked to cancel, killed, or continues."""


class CallOptions(TypedDict, total=False):
    """Options of `flow.call` and `flow.start`."""

    id: str | None
    """Of a child workflow; None: it has an id of its own."""
    book: str | None
    """The LogBook of the call; None: what the function names, else the workflow's."""
    parent_close: ParentClose


CHILD: Final = "boki:child"
"""The attribute of a call that a workflow has started: the number of its command, and its outcome."""


def child_of(attributes: Mapping[str, Attribute]) -> tuple[int, ParentClose]:
    """Which command of its parent a call is, and its policy: a function cannot be asked to cancel itself."""
    number, _, policy = str(attributes.get(CHILD, "")).partition(" ")
    if policy == "cancel" and attributes.get(REPLAYED) is False:
        policy = "kill"
    if number.isdecimal() and policy in get_args(ParentClose):
        return int(number), policy  # type: ignore[return-value] # it was looked at
    return 0, "cancel"


def copied(values: T) -> tuple[T, bool]:
    """A copy of arguments, and whether it is one: their classes may not allow a copy."""
    try:
        return deepcopy(values), True
    except Exception:  # noqa: BLE001 - as above; who passes them on says so
        return values, False


class StepWork:
    """One call of a step."""

    __slots__ = ("args", "digest", "is_own", "kwargs", "name", "step")

    def __init__(self, step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.step = step
        self.name = step.name
        self.args = args
        self.kwargs = kwargs
        self.is_own = False
        """Whether the body has no part of the arguments."""
        self.digest = step.digest(args, kwargs)

    def keep(self) -> None:
        """It may be carried out after the body has changed what it passed."""
        if not self.is_fixed:
            (self.args, self.kwargs), self.is_own = copied((self.args, self.kwargs))

    @property
    def is_fixed(self) -> bool:
        """Whether the arguments cannot be changed."""
        return not self.kwargs and _ATOMS.issuperset(map(type, self.args))

    @property
    def waits(self) -> bool:
        """Whether it begins only when all that was recorded before it is durable."""
        options = self.step.options
        return not (options.pure or options.idempotent)

    @property
    def is_pure(self) -> bool:
        """Whether nothing waits for its record."""
        return self.step.options.pure

    def value(self, result: Result) -> Any:
        """See `boki.libs.bokiflow.machine.Work`."""
        return self.step.decode(result)


class CallWork:
    """A logged call of a function or a workflow: it is started, or its end is awaited, or both."""

    __slots__ = (
        "awaits",
        "base",
        "book",
        "call_name",
        "digest",
        "invocation_id",
        "is_workflow",
        "name",
        "parent_close",
        "payload",
        "sent",
        "starts",
        "target",
    )

    waits = True
    is_pure: bool = False

    def __init__(
        self,
        target: Callable[..., Any] | str,
        payload: tuple[Any, ...],
        invocation_id: str,
        call_name: str,
        *,
        starts: bool,
        awaits: bool,
        parent_close: ParentClose,
        book: str | None,
    ) -> None:
        known = target if isinstance(target, str) else Function.of(target).info.name
        self.is_workflow = None if isinstance(target, str) else hasattr(target, "is_workflow")
        """None: it is known by its name alone, and says so where the call is accepted (`REPLAYED`)."""
        self.name = f"{'call' if starts and awaits else 'start' if starts else 'wait for'} {known}"
        self.digest = digest_of((*payload, invocation_id), {}, known)
        self.target = target
        self.payload = payload
        """What identifies it, with the id: the body's own."""
        self.sent = payload
        """What it is started with."""
        self.invocation_id = invocation_id
        self.call_name = call_name
        self.starts = starts
        self.awaits = awaits
        self.parent_close = parent_close
        self.book = book
        self.base: Base | None = None
        """What it begins with, if it joins the transaction of its parent."""

    def keep(self) -> None:
        """See `StepWork.keep`."""
        if self.starts and not _ATOMS.issuperset(map(type, self.payload)):
            self.sent, _ = copied(self.payload)

    @property
    def closes_by(self) -> ParentClose:
        """Its outcome when its parent has ended: a function cannot be asked to cancel itself."""
        return "kill" if self.parent_close == "cancel" and self.is_workflow is False else self.parent_close

    def value(self, result: Result) -> Any:
        """See `boki.libs.bokiflow.machine.Work`."""
        if result.failure is not None:
            raise result.failure.error()
        if result.value is None or self.base is not None:
            return result.value  # of a joined one, with what it has written
        if isinstance(self.target, str):
            return result_of(result.value, f"result of {self.target}")
        return Function.of(self.target).decode_result(result.value)


Works = StepWork | CallWork | StoreWork
