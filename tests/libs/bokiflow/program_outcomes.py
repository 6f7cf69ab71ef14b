"""What is predicted of a random program: what it returns, which effects it has, and how the sagas in it end.

An outcome is one exact value. Effects are exact, too, but for sagas that are ended at any moment (`is_raced`), where
how far they had come is a race. Allowed is then, for one number of parts: the effects of those parts in their order,
that of the next one or not, and the compensations of those parts, all of them, in the reverse order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.libs.bokiflow.programs import Program

CANCELLED = "WorkflowCancelled"
KILLED = "call_cancelled"
ROOT = "p"
"""The id of the workflow at the top."""


@dataclass(frozen=True)
class Message:
    """Something that a workflow is to be told: the kind of what waits for it, and its name."""

    flow_id: str
    kind: str
    name: str


@dataclass(frozen=True)
class Saga:
    """A saga as it stands in a program. `flow_id` is "" if nobody knows it."""

    flow_id: str
    label: str
    ending: str
    parts: list[Program]
    parent: str = ""
    """The id of the workflow that has started it and leaves it behind."""
    is_awaited: bool = False
    """Whether its parent waits until it rests before it continues."""
    is_within: bool = False
    """Whether its parent rests by waiting for its end."""

    @property
    def is_raced(self) -> bool:
        """Whether it is ended at any moment."""
        return self.ending == "interrupted" or (self.ending in ("left cancel", "left kill") and not self.is_awaited)

    @property
    def undoes(self) -> bool:
        """Whether its compensations run."""
        return self.ending not in ("returns", "killed", "left kill")

    @property
    def rests(self) -> bool:
        """Whether it comes to its rest for certain."""
        return self.ending not in ("returns", "fails") and not self.is_raced

    @property
    def own_parts(self) -> list[Program]:
        """Its parts without the saga within which it rests, if it does so."""
        return [part for part in self.parts if part[0] != "within"]

    @property
    def compensations(self) -> list[str]:
        """The labels of all its compensations, in their order."""
        return [f"undo {self.label} {number}" for number in reversed(range(len(self.own_parts)))]

    @property
    def final(self) -> str:
        """How it ends."""
        match self.ending:
            case "returns":
                return ""
            case "fails":
                return "ValueError"
            case "killed" | "left kill":
                return KILLED
            case _:
                return CANCELLED


@dataclass
class Prediction:
    """Of one program."""

    outcome: Any
    messages: list[Message] = field(default_factory=list)
    sagas: list[Saga] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)
    """Effects that happen under one key each, but for those of sagas that are raced."""
    puts: list[str] = field(default_factory=list)
    """Effects that happen once, or more often."""


def predict(program: Program) -> Prediction:
    """What is predicted of a program at the top."""
    found = Prediction(outcome(program))
    _visit(found, program, ROOT)
    return found


def _visit(found: Prediction, program: Program, flow_id: str) -> None:
    """Collect what is predicted of a program in that workflow."""
    kind, *parts = program
    match kind:
        case "act":
            found.acts.append(parts[0])
        case "put":
            found.puts.append(parts[0])
        case "receive" | "update" | "promise":
            found.messages.append(Message(flow_id, kind, parts[0]))
            if kind == "update":
                found.acts.append(f"update {parts[0]}")
        case "child":
            label, inner = parts
            _visit(found, inner, label)
        case "left":
            label, policy, is_awaited, (_, _, _, *inner) = parts
            _visit_saga(found, Saga(label, label, f"left {policy}", inner, flow_id, is_awaited))
        case "saga":
            label, ending, *inner = parts
            _visit_saga(found, Saga(flow_id, label, ending, inner))
        case "rounds":
            label, has_items, *rounds = parts
            found.messages += [Message(flow_id, "items", label)] * (has_items * len(rounds))
            for part in rounds:
                _visit(found, part, flow_id)
        case _:
            for part in parts:
                if isinstance(part, list):
                    _visit(found, part, flow_id)


def _visit_saga(found: Prediction, saga: Saga) -> None:
    found.sagas.append(saga)
    if saga.is_raced:
        return
    for part in saga.own_parts:
        _visit(found, part, saga.flow_id)
    if saga.undoes:
        found.acts += saga.compensations
    if saga.rests:
        found.acts.append(f"{saga.label} rests")
    if len(saga.own_parts) < len(saga.parts):
        _, (_, label, _, *inner) = saga.parts[-1]
        _visit_saga(found, Saga(label, label, "left cancel", inner, saga.flow_id, is_awaited=True, is_within=True))


def outcome(program: Program) -> Any:
    """What the program returns; of a workflow that fails or is ended, how."""
    kind, *parts = program
    match kind:
        case "act" | "put":
            return parts[0]
        case "compute":
            return parts[0] ** 2
        case "fail" | "break off":
            return f"ValueError {parts[0]}"
        case "sleep":
            return None
        case "receive" | "update":
            return f"said {parts[0]}"
        case "promise":
            return f"rejected: {parts[0]}" if parts[0].endswith("!") else f"said {parts[0]}"
        case "late":
            return "late"
        case "child":
            return outcome(parts[1])
        case "left":
            return "rests" if parts[2] else "left"
        case "in time" | "cancelled":
            return outcome(parts[0])
        case "saga":
            return Saga("", parts[0], parts[1], []).final or [outcome(part) for part in parts[2:]]
        case "rounds":
            label, has_items, *rounds = parts
            return [[f"{label}: {n}" if has_items else None, outcome(part)] for n, part in enumerate(rounds)]
        case _:
            return [outcome(part) for part in parts]
