"""Runs a random program: says to it at random times what it is to be told, ends what is to be ended, and compares."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final

from boki import CallCancelled, DeadlineExceeded, FunctionFailed
from boki.extending import OVER
from boki.libs.bokiflow import Handle, NoSuchWorkflow, WorkflowEnded
from boki.libs.bokiflow.hooks import installed
from tests.libs.bokiflow.clustered import until_known
from tests.libs.bokiflow.program_generator import Generator
from tests.libs.bokiflow.program_outcomes import ROOT, Message, Prediction, Saga, predict
from tests.libs.bokiflow.programs import EFFECTS, WRONG, Mishaps, Program, ending_of, run_program

LONGEST_S: Final = 5e6
"""A workflow that has not ended after this time never will."""
_LOOKS: Final = 400


class Hangs(AssertionError):
    """Something that was predicted to happen has not happened."""


class ProgramRun:
    """One program with its user."""

    def __init__(
        self,
        ctx: Any,
        generator: Generator,
        pauses_s: Sequence[float],
        pause: Callable[[], Awaitable[object]],
        longest_s: float = LONGEST_S,
    ) -> None:
        """`pauses_s` are between what the user does. `pause`: before what was refused is tried again; at once in
        several tasks. `longest_s`: what has not ended after this time never will.
        """
        self._longest_s = longest_s
        self.program: Program = generator.root()
        self._predicted: Prediction = predict(self.program)
        self._ctx = ctx
        self._rng: Random = generator.rng
        self._pauses_s = [pause_s for pause_s in pauses_s if pause_s <= generator.longest_s]
        self._pause = pause
        self._updates: list[asyncio.Task[None]] = []
        self._items: Counter[str] = Counter()
        self._early: list[Saga] = []
        """To be interrupted, and not started yet."""

    async def run(self) -> None:
        """Run it, and compare all that was predicted."""
        EFFECTS.clear()
        try:
            with installed(Mishaps(self._rng)):
                await self._talk()
                await self._end_those_that_rest()
                await self._compare_ends()
        finally:
            for task in self._updates:
                task.cancel()
            await asyncio.gather(*self._updates, return_exceptions=True)
        self._compare_effects()

    async def _talk(self) -> None:
        """Start it, and say to it what it is to be told, some of that before it is started."""
        messages = list(self._predicted.messages)
        self._rng.shuffle(messages)
        early = self._rng.randint(0, len(messages))
        for message in messages[:early]:
            await self._tell(message)
        await self._until_done(partial(run_program.start, self._ctx, self.program, id=ROOT))
        ends = [saga for saga in self._predicted.sagas if saga.ending == "interrupted"]
        for left in self._shuffled(messages[early:], ends):
            await self._ctx.clock.advance(self._rng.choice(self._pauses_s))
            await (self._interrupt(left) if isinstance(left, Saga) else self._tell(left))

    def _shuffled(self, messages: list[Message], ends: list[Saga]) -> list[Message | Saga]:
        found: list[Message | Saga] = [*messages, *ends]
        self._rng.shuffle(found)
        return found

    def _handle(self, flow_id: str) -> Handle[Any]:
        return run_program.handle(self._ctx, flow_id)

    async def _until_done(self, act: Callable[[], Awaitable[Any]]) -> Any:
        return await until_known(act, self._pause)

    # messages

    async def _tell(self, message: Message) -> None:
        """Send a message; those that are answered are not waited for."""
        handle, name = self._handle(message.flow_id), message.name
        match message.kind:
            case "receive":
                for _ in range(self._rng.choice((1, 1, 2))):
                    await self._until_done(partial(handle.signal, name, f"said {name}", key=name))
            case "items":
                number = self._items[name]
                self._items[name] += 1
                item = f"{name}: {number}"
                await self._until_done(partial(handle.signal, f"items of {name}", item, key=item))
            case "promise":
                await self._settle(handle, name)
            case "update":
                task = asyncio.create_task(
                    self._update(handle, name, is_refused_first=self._rng.random() < 0.5), name=name
                )
                self._updates.append(task)

    async def _settle(self, handle: Handle[Any], name: str) -> None:
        """The first value or error counts."""
        if name.endswith("!"):
            await self._until_done(partial(handle.reject, name, FunctionFailed(name)))
        else:
            await self._until_done(partial(handle.resolve, name, f"said {name}"))
        await self._until_done(partial(handle.resolve, name, "too late"))

    async def _update(self, handle: Handle[Any], name: str, *, is_refused_first: bool) -> None:
        """Sent twice at once and again later, it is answered the same; its validator refuses another one."""
        if is_refused_first:
            try:
                found = await self._until_done(partial(handle.update, name, WRONG, id=f"{name} {WRONG}"))
            except FunctionFailed as error:
                found = error.details.get("error_type")
            assert found == "ValueError", found
        send = partial(self._until_done, partial(handle.update, name, f"said {name}", id=name))
        found = [*await asyncio.gather(send(), send()), await send()]
        assert found == [f"update {name}: said {name}"] * 3, found

    # ends

    async def _interrupt(self, saga: Saga) -> None:
        """Cancel it, wherever it is, or as soon as it was started."""
        try:
            with suppress(WorkflowEnded):  # by a request that was not answered
                await self._until_done(partial(self._handle(saga.flow_id).cancel, "enough"))
        except NoSuchWorkflow:
            self._early.append(saga)

    async def _end_those_that_rest(self) -> None:
        """End each saga when it rests, or tell the parent that waits for that."""
        waiting = [saga for saga in self._predicted.sagas if saga.rests and saga.ending != "left abandon"]
        waiting += [saga for saga in self._predicted.sagas if saga.ending == "left abandon" and saga.is_awaited]
        for _ in range(_LOOKS):
            early, self._early = self._early, []
            for saga in early:
                await self._interrupt(saga)
            resting = [saga for saga in waiting if self._is_resting(saga)]
            for saga in resting:
                await self._end(saga)
                waiting.remove(saga)
            if not waiting and not self._early:
                return
            await self._ctx.clock.advance(self._rng.choice(self._pauses_s) if resting else self._pauses_s[-1])
        raise Hangs(f"{[saga.label for saga in (*waiting, *self._early)]} did not come to rest")

    def _is_resting(self, saga: Saga) -> bool:
        return not self._at_rest(saga) - {labels[0] for labels in EFFECTS.values()}

    def _at_rest(self, saga: Saga) -> set[str]:
        """What is done when it rests, and all that it rests within."""
        inner = [part[1][1] for part in saga.parts if part[0] == "within"]
        return {f"{label} rests" for label in (saga.label, *inner)}

    async def _end(self, saga: Saga) -> None:
        handle = self._handle(saga.flow_id)
        match saga.ending:
            case "cancelled" | "killed":
                with suppress(WorkflowEnded):
                    await self._until_done(handle.kill if saga.ending == "killed" else handle.cancel)
            case _ if not saga.is_within:
                name = f"{saga.label} is resting"
                parent = self._handle(saga.parent)
                await self._until_done(partial(parent.signal, name, "rests", key=name))

    # comparing

    async def _compare_ends(self) -> None:
        found = await self._end_of(ROOT)
        assert found == self._predicted.outcome, f"ended with {found!r}, and not {self._predicted.outcome!r}"
        await self._ctx.clock.advance(self._pauses_s[-1])
        for saga in self._predicted.sagas:
            if saga.ending == "left abandon":
                await self._end_abandoned(saga)
        for saga in self._predicted.sagas:
            if saga.flow_id and saga.final:
                ended = await self._end_of(saga.flow_id)
                assert ended == saga.final, f"{saga.label} ({saga.ending}) ended with {ended!r}, and not {saga.final!r}"
        for _ in range(_LOOKS):
            if all(task.done() for task in self._updates):
                break
            await self._ctx.clock.advance(self._pauses_s[-1])
        if not all(task.done() for task in self._updates):
            raise Hangs(f"not answered: {[task.get_name() for task in self._updates if not task.done()]}")
        for task in self._updates:
            task.result()

    async def _end_abandoned(self, saga: Saga) -> None:
        """Its parent has ended, and it has not."""
        for _ in range(_LOOKS):
            if self._is_resting(saga):
                break
            await self._ctx.clock.advance(self._pauses_s[-1])
        handle = self._handle(saga.flow_id)
        status = (await self._until_done(handle.status)).status
        assert status not in OVER, f"{saga.label} was left, and is {status}"
        with suppress(WorkflowEnded):
            await self._until_done(handle.cancel)

    async def _end_of(self, flow_id: str) -> Any:
        """What it returned, or how it ended."""
        return await self._until_done(partial(self._ended, self._handle(flow_id)))

    async def _ended(self, handle: Handle[Any]) -> Any:
        try:
            return await handle.result(wait_s=self._longest_s)
        except (FunctionFailed, CallCancelled) as error:
            return ending_of(error)
        except DeadlineExceeded as error:
            if "has not ended" in error.message:
                raise Hangs(str(error)) from None
            raise

    def _compare_effects(self) -> None:
        """Each effect that was predicted has happened under one key, in order, and no other one."""
        for labels in EFFECTS.values():
            assert len(set(labels)) == 1, f"one key stands for {labels}"
        seen = [labels[0] for labels in EFFECTS.values()]
        for saga in self._predicted.sagas:
            if saga.is_raced:
                allowed = allowed_effects(saga)
                own = [label for label in seen if label in set().union(*allowed)]
                assert own in allowed, f"{saga.label} ({saga.ending}) did {own}"
                seen = [label for label in seen if label not in own]
            elif saga.undoes:
                undone = [label for label in seen if label in saga.compensations]
                assert undone == saga.compensations, f"{saga.label} ({saga.ending}) did {undone}"
        acts = Counter(label for label in seen if label not in self._predicted.puts)
        expected = Counter(self._predicted.acts)
        assert acts == expected, f"too many: {acts - expected}, too few: {expected - acts}"
        assert {*seen} == {*expected, *self._predicted.puts}


def allowed_effects(saga: Saga) -> list[list[str]]:
    """The effects that a saga may have had that was ended at any moment."""
    acts = [part[1] if part[0] == "act" else "" for part in saga.parts] + [f"{saga.label} rests"]
    found = []
    for count in range(len(saga.parts) + 1):
        undone = saga.compensations[len(saga.parts) - count :] if saga.undoes else []
        for begun in (acts[:count], acts[: count + 1]):  # the next one may have been cut off before its record
            found.append([label for label in begun if label] + undone)
    return found
