"""Random workflow programs: steps, timers, children, messages, sagas that are cancelled, rounds, and all of it nested.

A program is a list: its kind, then its parts. What it returns, and what effects it has, is predicted by
`program_outcomes`; `program_runs` says to it what it is to be told, and compares.

Some kinds are whole workflows: `saga`, which compensates its parts unless it returns, and `rounds`, which continues as
new after each part. They stand at the top, and in a `child` or what is `left`.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final

from boki import BokiError, FunctionFailed
from boki.libs.bokiflow import StepFailed, flow, step, workflow
from boki.libs.bokiflow.hooks import Hooks
from tests.libs.bokiflow.crashes import timer

Program = list[Any]

EFFECTS: dict[str, list[str]] = {}
"""What was done, by key: the labels of each time. Keys stand in the order in which they were used first."""

WRONG: Final = "wrong"
"""The payload of an update that its validator refuses."""


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
    kind, *parts = program
    match kind:
        case "saga":
            return await run_saga(*parts)
        case "rounds":
            return await run_round(program)
        case _:
            found = await carry_out(program)
    await flow.wait_for(flow.all_handlers_finished)
    return found


async def run_saga(label: str, ending: str, *parts: Program) -> Any:
    """Each part has a compensation. If it does not return or fail by itself, it rests until it is ended."""
    found = []
    for number, part in enumerate(parts):
        if part[0] != "within":
            found.append(await carry_out(part))
            flow.compensate(act, f"undo {label} {number}")
    await flow.wait_for(flow.all_handlers_finished)
    match ending:
        case "returns":
            return found
        case "fails":
            raise ValueError(label)
    await act(f"{label} rests")
    if parts and parts[-1][0] == "within":
        await flow.call(run_program, parts[-1][1], id=parts[-1][1][1])
    return await asyncio.Event().wait()


async def run_round(program: Program) -> Any:
    """Carry out the first part that is not known yet, with an item that belongs to the id; then continue as new."""
    kind, label, has_items, *parts = program
    number = next(number for number, part in enumerate(parts) if part[0] != "known")
    item = await flow.receive(f"items of {label}") if has_items else None
    parts[number] = ["known", [item, await carry_out(parts[number])]]
    await flow.wait_for(flow.all_handlers_finished)
    if number + 1 < len(parts):
        flow.continue_as_new([kind, label, has_items, *parts])
    return [part[1] for part in parts]


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
        case "update":
            return await updated(parts[0])
        case "promise":
            return await promised(parts[0])
        case "child":
            return await called(*parts)
        case "left":
            return await leave(*parts)
        case "late":
            try:
                async with asyncio.timeout(parts[0]):
                    await asyncio.Event().wait()
            except TimeoutError:
                return "late"
        case _:
            return await combine(kind, parts)
    return None


async def combine(kind: str, parts: list[Program]) -> Any:
    """Programs that are made of others."""
    match kind:
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


async def locked(parts: list[Program]) -> list[Any]:
    """One after the other, in the order in which they asked."""
    lock, said = asyncio.Lock(), []

    async def one(part: Program) -> None:
        async with lock:
            said.append(await carry_out(part))

    await asyncio.gather(*(one(part) for part in parts))
    return said


async def updated(name: str) -> str:
    """Wait for an update; its handler has an effect, and its answer says of what."""
    said: list[str] = []

    def check(payload: str) -> None:
        if payload == WRONG:
            raise ValueError(payload)

    async def answer(payload: str) -> str:
        done = await act(f"update {name}")
        said.append(payload)
        return f"{done}: {payload}"

    flow.on_update(name, answer, validator=check)
    await flow.wait_for(lambda: bool(said))
    return said[0]


async def promised(name: str) -> str:
    """The value of a promise, or the error that it is rejected with."""
    try:
        return str(await flow.promise(name))
    except FunctionFailed as error:
        return f"rejected: {error}"


async def called(label: str, program: Program) -> Any:
    """What a child returns, or how it ends. Without a label it has no id that anybody could know."""
    try:
        return await flow.call(run_program, program, id=label or None)
    except BokiError as error:
        return ending_of(error)


async def leave(label: str, policy: str, is_awaited: bool, saga: Program) -> str:
    """Start a saga that rests, and leave it behind, as soon as it rests or at once."""
    await flow.start(run_program, saga, id=label, parent_close=policy)  # type: ignore[arg-type] # it is one of those
    return str(await flow.receive(f"{label} is resting")) if is_awaited else "left"


def ending_of(error: BokiError) -> str:
    """How a workflow has ended that raised this."""
    return str(error.details.get("error_type") or error.code)


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
