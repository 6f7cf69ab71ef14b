"""Handles of replicated objects (`machines`), for plain functions: made from `replicas`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from boki.libs.bokistore import machines
from boki.libs.bokistore.machines import Machine, Machines, ReplicatedObject
from boki.libs.bokistore.way_blocking import Way

T = TypeVar("T", bound=ReplicatedObject)
P = ParamSpec("P")
R = TypeVar("R")


class Replica(Generic[T]):
    """A replicated object: `auction.call(Auction.bid, "ada", 30)`."""

    def __init__(self, way: Way, name: str, kind: type[T]) -> None:
        self._way = way
        self._machine: Machine = way.logbook.session.shared(Machines).find(way.logbook.name, name, kind)

    @property
    def name(self) -> str:
        """The object's name."""
        return self._machine.name

    def call(self, method: Callable[Concatenate[T, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a mutator in the order of the log; what it returned, as JSON has it.

        `WrongShape` says what it raised; then the object is as it was. If the answer to the append is lost the outcome
        is unknown.
        """
        work = machines.call(self._machine, machines.name_of(method), args, kwargs, self._way.new_nonce())
        result: R = self._way.run(work)
        self._way.run(machines.save(self._machine))
        return result

    def ask(self, method: Callable[Concatenate[T, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call an accessor on all that this call can see; what it returned, as JSON has it."""
        answer: Any = self._way.run(machines.ask(self._machine, machines.name_of(method), args, kwargs))
        found: R = answer
        return found
