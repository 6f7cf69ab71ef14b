"""Workflows whose histories are kept in `histories/RELEASE`, one for each feature and release: later versions of Boki
must replay them.

`python -m tests.libs.bokiflow.golden` records those that are missing of the version in `pyproject.toml`. What exists is
never recorded again: a history that does not replay any more is a workflow of a user that an upgrade would pause.
"""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import boki.testing
from boki import BokiError, Retry
from boki.extending import Function, calls_reporting_to, ends_of
from boki.libs.bokiflow import Handle, Limit, OutcomeUnknown, StepFailed, Workflow, flow, step, workflow
from boki.libs.bokiflow.recorded import Recorded, body_has_ended, encode, record
from tests.libs.bokiflow import golden_attendants, golden_contended
from tests.libs.bokiflow.golden_blocking import blocking, halve
from tests.libs.bokiflow.golden_contended import BEHIND, CONTENDED, contend, recorded_as_then
from tests.libs.bokiflow.golden_state import cond_writes, joined, joins, log_reads, store_reads, transaction
from tests.libs.bokiflow.golden_steered import FAILING, STEERED, steer
from tests.libs.bokiflow.golden_upgraded import moved, upgraded

FOLDER = Path(__file__).parent / "histories"


@step
async def double(n: int) -> int:
    return 2 * n


@step(pure=True)
async def square(n: int) -> int:
    return n * n


@step(idempotent=True)
async def put(n: int) -> int:
    return n


@step(at_most_once=True)
async def launch(n: int) -> int:
    return n


@step(retry=Retry(attempts=2, first_s=1, jitter=0))
async def fail(why: str) -> None:
    raise ValueError(why)


@step(retry=Retry(attempts=3, first_s=60, jitter=0))
async def recover() -> int:
    if step.attempt < 3:
        raise ConnectionError("not yet")
    return step.attempt


@workflow
async def steps(n: int) -> int:
    return await double(await square(await put(await flow.run(halve, n))))


@workflow
async def together(n: int) -> list[int]:
    return list(await asyncio.gather(*(double(number) for number in range(n))))


@workflow
async def task_group(n: int) -> int:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(double(number)) for number in range(n)]
    return sum(task.result() for task in tasks)


@workflow
async def timers(n: int) -> int:
    await flow.sleep(n)
    try:
        async with asyncio.timeout(5):
            await flow.receive("never")
    except TimeoutError:
        n += 1
    return await double(n)


@workflow
async def at_most_once(n: int) -> int:
    try:
        return await launch(n)
    except OutcomeUnknown:
        return -1


@workflow
async def retries(_n: int) -> int:
    return await recover()


@workflow
async def compensations(n: int) -> int:
    flow.compensate(double, n)
    try:
        await fail("no room")
    except BokiError:
        await put(n)
        raise
    return n


@workflow
async def signals(n: int) -> list[Any]:
    return [await double(await flow.receive("more")) for _ in range(n)]


@workflow
async def updates(n: int) -> int:
    total = n

    async def add(more: int) -> int:
        nonlocal total
        total += await double(more)
        return total

    flow.on_update("add", add)
    flow.on_query("total", lambda _payload: total)
    await flow.wait_for(lambda: total >= 10)
    return total


@workflow
async def promises(n: int) -> Any:
    return [await double(n), await double(await flow.promise("answer"))]


@workflow
async def chance(n: int) -> list[Any]:
    return [await put(flow.random().randrange(n)), await put(flow.uuid().int % 1_000), flow.now().year]


@workflow
async def patches(n: int) -> int:
    return await (double(n) if flow.patched("doubles") else square(n))


@workflow
async def children(n: int) -> int:
    child = await flow.start(steps, n)
    found: int = await flow.call(steps, n + 2) + await child.result()
    return found


@workflow
async def again(n: int) -> int:
    found = await double(n)
    if n < 3:
        flow.continue_as_new(n + 1)
    return found


@workflow
async def locks(n: int) -> int:
    async with flow.lock("room"):
        found = await double(n)
    async with flow.lock("room"):
        return await double(found)


@workflow
async def writes(n: int) -> int:
    await flow.store.write("room", n)
    return await double(n)


@workflow(limit=Limit(concurrency=1))
async def limited(n: int) -> int:
    return await double(n)


@workflow
async def cancels(n: int) -> int:
    await double(n)
    try:
        await flow.receive("never")
    finally:
        await put(n)
    return 0


@workflow
async def rewound(n: int) -> int:
    return await double(await square(await put(n)))


@step(retry=Retry(attempts=2, first_s=1, jitter=0))
async def beat(n: int) -> int:
    if step.details is None:
        step.heartbeat(n)
        raise ConnectionError("not yet")
    found: int = step.details
    return found


@step(timeout_s=5)
async def slow(_n: int) -> None:
    await asyncio.Event().wait()


@workflow
async def heartbeats(n: int) -> int:
    return await double(await beat(n))


@workflow
async def step_timeouts(n: int) -> int:
    try:
        await slow(n)
    except StepFailed:
        n += 1
    return await double(n)


@workflow
async def signal_handlers(n: int) -> list[int]:
    got: list[int] = []

    async def take(more: int) -> None:
        got.append(await double(more))

    flow.on_signal("more", take)
    await flow.wait_for(lambda: len(got) >= n)
    return got


@workflow
async def scheduled(n: int) -> str:
    return f"{await double(n)} of {flow.id}"


async def _say(handle: Handle[Any]) -> None:
    """What others say to the workflow while it runs: to each what it waits for."""
    match handle.workflow:
        case "signals" | "signal_handlers":
            for number in range(3):
                await handle.signal("more", number)
        case "updates":
            await handle.update("add", 2)
            await handle.update("add", 2)
        case "promises":
            await handle.resolve("answer", 42)
        case "cancels":
            await handle.cancel("enough")
        case "rewound":
            await handle.result()
            await handle.rewind(2)
        case _:
            pass


FEATURES: dict[str, Workflow[int, Any]] = {
    one.name: one
    for one in (
        *(steps, together, task_group, timers, at_most_once, retries, compensations),
        *(signals, updates, promises, chance, patches, children, again, blocking),
        *(locks, writes, limited, cancels, rewound),
        *(heartbeats, step_timeouts, signal_handlers, scheduled),
        *(transaction, store_reads, log_reads, cond_writes, joins, joined),
        *(*STEERED, *CONTENDED, upgraded),
    )
}
"""Each is started with 3."""
FIRST = "0.1.0"
SINCE: dict[str, str] = {}
"""The release that has brought a feature, or an attendant, if that is not the first one."""


def release_now() -> str:
    """The version that this code is, or will be released as."""
    pyproject = Path(__file__).parents[3] / "pyproject.toml"
    version: str = tomllib.loads(pyproject.read_text())["project"]["version"]
    return version


def files_of(release: str) -> list[str]:
    """The names of the files that the folder of this release has."""
    names = [*FEATURES, *(f"{kind}.attendant" for kind in golden_attendants.ATTENDANTS)]
    return [f"{name}.json" for name in names if parts_of(SINCE.get(name, FIRST)) <= parts_of(release)]


def parts_of(release: str) -> tuple[int, ...]:
    """By which releases are ordered."""
    return tuple(map(int, release.split(".")))


async def recorded(name: str) -> Recorded:
    """Run that workflow, and record it."""
    if name == upgraded.name:
        return await moved()
    async with boki.testing.context() as ctx:
        with recorded_as_then(name):
            handle = await _ended(ctx, name)
        flow_id, run = handle.id, handle.invocation_id
        if name == "joined":
            [run] = await calls_reporting_to(ctx.logbook_named(ends_of(run).book), run)
            flow_id = run
        state = await handle.status()
        return await record(
            ctx.logbook_named(state.book),
            *(name, flow_id, run),
            has_ended=body_has_ended(state.status, "" if state.failure is None else state.failure.code),
            payload=Function.of(FEATURES[name]).encode_payload(3),
            code=FEATURES[name],
        )


async def _ended(ctx: boki.testing.Context, name: str) -> Handle[Any]:
    """The workflow, when all has been done to it."""
    handle = await _begun(ctx, name)
    await _say(handle)
    handle = await steer(ctx, handle)
    await contend(ctx, handle)
    try:
        await handle.result()
    except BokiError:
        assert name in ("compensations", "cancels", *FAILING, *golden_contended.FAILING)
    return handle


async def _begun(ctx: boki.testing.Context, name: str) -> Handle[Any]:
    """The workflow, or who calls it."""
    if name == "scheduled":
        schedule = await scheduled.schedule(ctx, 3, id="golden", cron="0 0 1 1 *")
        handle = scheduled.handle(ctx, await schedule.trigger(key="now"))
        await ctx.clock.advance(1)
        return handle
    if name in ("refused", *BEHIND):
        await FEATURES[name].start(ctx, 3, id="the first")
        await ctx.clock.advance(1)
    if name == "log_reads":
        await ctx.logbook.append(b"7", ["notes"])
    return await FEATURES["joins" if name == "joined" else name].start(ctx, 3, id="golden")


async def _record_missing() -> None:
    folder = FOLDER / release_now()
    folder.mkdir(parents=True, exist_ok=True)
    for name in FEATURES:
        path = folder / f"{name}.json"
        if not path.exists():
            path.write_bytes(encode(await recorded(name)))
    for kind in golden_attendants.ATTENDANTS:
        path = folder / f"{kind}.attendant.json"
        if not path.exists():
            path.write_bytes(golden_attendants.encode(await golden_attendants.followed(kind)))


if __name__ == "__main__":
    asyncio.run(_record_missing())
