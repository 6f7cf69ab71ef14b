"""Random workflow programs whose outcome is known beforehand: steps, timers, children, signals, cancellations, nested.

A program is a list: its kind, then its parts. `outcome` says what it returns, `labels` what effects it has.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from boki.libs.bokiflow import StepFailed, flow, step, workflow
from boki.libs.bokiflow.hooks import Hooks
from tests.libs.bokiflow.crashes import timer

Program = list[Any]

EFFECTS: dict[str, list[str]] = {}
"""What was done, by key: the labels of each time."""


@step
async def act(label: str) -> str:
    """An effect under a key."""
    EFFECTS.setdefault(step.key, []).append(label)
    await asyncio.sleep(0)
    return label


@step(idempotent=True)
async def put(label: str) -> str:
    EFFECTS.setdefault(step.key, []).append(label)
    return label


@step(pure=True)
async def compute(n: int) -> int:
    return n * n


@step
def fail(label: str) -> str:
    raise ValueError(label)


@step
async def break_off(label: str) -> str:
    raise ValueError(label)


@workflow
async def run_program(program: Program) -> Any:
    """Carries out a program."""
    return await carry_out(program)


async def carry_out(program: Program) -> Any:
    kind, *parts = program
    match kind:
        case "act":
            return await act(parts[0])
        case "put":
            return await put(parts[0])
        case "compute":
            return await compute(parts[0])
        case "fail" | "break off":
            try:
                return await flow.run(fail if kind == "fail" else break_off, parts[0])
            except StepFailed as error:
                return f"{error.error_type} {parts[0]}"
        case "sleep":
            await flow.sleep(parts[0])
            return None
        case "receive":
            return await flow.receive(parts[0])
        case "child":
            return await flow.call(run_program, parts[0])
        case "sequence":
            return [await carry_out(part) for part in parts]
        case "together":
            return await asyncio.gather(*(carry_out(part) for part in parts))
        case "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(carry_out(part)) for part in parts]
            return [task.result() for task in tasks]
        case "in time":
            async with asyncio.timeout(1e9):
                return await carry_out(parts[0])
        case "late":
            try:
                async with asyncio.timeout(parts[0]):
                    await asyncio.Event().wait()
            except TimeoutError:
                return "late"
        case "cancelled":
            task = asyncio.create_task(timer(1e9))
            found = await carry_out(parts[0])
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return found
        case "locked":
            return await locked(parts)
        case _:
            raise AssertionError(kind)
    return None


async def locked(parts: list[Program]) -> list[Any]:
    """One after the other, in the order in which they asked."""
    lock, said = asyncio.Lock(), []

    async def one(part: Program) -> None:
        async with lock:
            said.append(await carry_out(part))

    await asyncio.gather(*(one(part) for part in parts))
    return said


def outcome(program: Program) -> Any:
    """What the program returns."""
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
        case "receive":
            return f"said {parts[0]}"
        case "late":
            return "late"
        case "child" | "in time" | "cancelled":
            return outcome(parts[0])
        case _:
            return [outcome(part) for part in parts]


def atoms(program: Program, *kinds: str) -> list[Any]:
    """The first parts of all atoms of these kinds."""
    kind, *parts = program
    own = [parts[0]] if kind in kinds else []
    return own + [found for part in parts if isinstance(part, list) for found in atoms(part, *kinds)]


class Generator:
    """Makes programs by a seed."""

    def __init__(self, seed: int, longest_s: float = 1e9, *, threads: bool = True) -> None:
        """`longest_s`: no timer is longer. `threads`: some steps run in one."""
        self.rng = Random(seed)
        self._longest_s = longest_s
        self._failing = "fail" if threads else "break off"
        self._count = 0

    def program(self, depth: int = 3, *, is_child: bool = False) -> Program:
        """A program; children receive no signals, because nobody knows their ids."""
        rng = self.rng
        self._count += 1
        label = f"#{self._count}"
        if depth == 0 or rng.random() < 0.3:
            atoms: list[Program] = [
                ["act", label],
                ["put", label],
                ["compute", self._count],
                [self._failing, label],
                ["sleep", min(rng.choice([0.0, 0.05, 1.0, 60.0, 86_400.0]), self._longest_s)],
                ["late", min(rng.choice([0.05, 5.0, 3_600.0]), self._longest_s)],
            ]
            return rng.choice(atoms if is_child else [*atoms, ["receive", label]])
        kind = rng.choice(["sequence", "sequence", "together", "group", "in time", "cancelled", "locked", "child"])
        if kind == "child":
            return [kind, self.program(depth - 1, is_child=True)]
        count = 1 if kind in ("in time", "cancelled") else rng.randint(1, 4)
        return [kind, *(self.program(depth - 1, is_child=is_child) for _ in range(count))]


class Mishaps(Hooks):
    """Loses processes around steps at random, and forces replays."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._left = rng.choice([0, 1, 3])
        self.replays = rng.random() < 0.5

    def dies(self, moment: str, step: str) -> bool:
        is_now = self._left > 0 and self._rng.random() < 0.2
        self._left -= is_now
        return is_now
