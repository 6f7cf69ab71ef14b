"""The implementations of the log that the contract suite runs against.

To add one: a generator that yields a `Run` (it runs one scenario by name, in a LogBook that nobody else uses, and
raises if the scenario fails), in `IMPLEMENTATIONS`, with the capabilities it has. A test asks for the fixture of the
capability that it needs, so nothing is ever skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

import boki.testing
from boki.api import blocking_logbook
from boki.api.deadline import Caller, Deadline
from boki.testing.memory_port import ENDLESS_S, BlockingMemoryPort, MemoryPort
from tests.contract.awaitable import AwaitableLogs
from tests.contract.cluster import cluster, run_on_an_engine, run_through_gateway
from tests.contract.engines import two_engines
from tests.contract.functions import run_scenarios
from tests.contract.live import (
    EngineLogs,
    dev_system,
    local_log,
    run_in_worker,
    run_through_blocking_client,
    run_through_client,
)
from tests.contract.scenarios import SCENARIOS, TIMED

Run = Callable[[str], None]


@dataclass(frozen=True)
class Implementation:
    """A way to reach a log. `open` may take long: each is opened once for all scenarios of a module, and ends with it:
    a cluster that stands idle takes time from all tests after it.
    """

    open: Callable[[], AbstractContextManager[Run]]
    moves_time: bool = False


@contextmanager
def memory() -> Iterator[Run]:
    """MemoryLog, through the async LogBook."""

    async def run_scenario(name: str) -> None:
        async with boki.testing.context(book=book_for(name)) as ctx:
            await (SCENARIOS | TIMED)[name](ctx)

    yield lambda name: asyncio.run(run_scenario(name))


@contextmanager
def memory_blocking() -> Iterator[Run]:
    """MemoryLog, through the blocking LogBook, in threads."""

    async def run_scenario(name: str) -> None:
        port = MemoryPort()
        caller = Caller(deadline=Deadline(clock=port.clock.time), longest_poll_s=ENDLESS_S)
        access = blocking_logbook.LogSession(BlockingMemoryPort(port), caller)
        logs = AwaitableLogs(BlockingLogs(access, book_for(name)), port.run_in_thread)
        logs.clock = port.clock
        await (SCENARIOS | TIMED)[name](logs)
        port.close()

    yield lambda name: asyncio.run(run_scenario(name))


@contextmanager
def memory_in_function() -> Iterator[Run]:
    """MemoryLog, from inside an async function."""

    async def run_scenario(name: str) -> None:
        async with boki.testing.context() as ctx:
            assert not await ctx.invoke(run_scenarios.run_scenario, name, book=book_for(name))

    yield lambda name: asyncio.run(run_scenario(name))


@contextmanager
def engine(*stopped: str, **settings: int) -> Iterator[Run]:
    """The real log in one process: RocksDB, fsync, storage nodes, sequencers and an engine."""
    with local_log(*stopped, **settings) as (loop, service):
        yield lambda name: loop.run(SCENARIOS[name](EngineLogs(service, book_for(name))))


@contextmanager
def engines(*, has_index: bool, **settings: int) -> Iterator[Run]:
    """Operations that alternate between two engines; without `has_index` the second one relays to the first."""
    with two_engines(has_index=has_index, **settings) as (loop, port):
        yield lambda name: loop.run(SCENARIOS[name](EngineLogs(port, book_for(name))))


@contextmanager
def in_worker(function: str, *stopped: str, **settings: int) -> Iterator[Run]:
    """From inside a function in a forked worker process."""
    with dev_system(*stopped, **settings) as (loop, dev):
        yield lambda name: loop.run(run_in_worker(dev, function, name, book_for(name)))


@contextmanager
def through_client(**settings: int) -> Iterator[Run]:
    """From outside, through `boki.Client`."""
    with dev_system(**settings) as (loop, dev):
        yield lambda name: loop.run(run_through_client(dev, SCENARIOS[name], book_for(name)))


@contextmanager
def through_blocking_client(**settings: int) -> Iterator[Run]:
    """From outside, through `boki.BlockingClient`."""
    with dev_system(**settings) as (_, dev):
        yield lambda name: run_through_blocking_client(dev, SCENARIOS[name], book_for(name))


@contextmanager
def cluster_through_client(*flags: str) -> Iterator[Run]:
    """All roles as processes, from outside."""
    with cluster(*flags) as (loop, url):
        yield lambda name: loop.run(run_through_gateway(url, SCENARIOS[name], book_for(name)))


@contextmanager
def cluster_in_worker(function: str, *flags: str) -> Iterator[Run]:
    """All roles as processes, from inside a function, on whichever engine runs it."""
    with cluster(*flags) as (loop, url):
        yield lambda name: loop.run(run_on_an_engine(url, function, name, book_for(name)))


class BlockingLogs:
    """LogBooks by name over one access, as a blocking context has them."""

    def __init__(self, access: blocking_logbook.LogSession, book: str) -> None:
        self.logbook = access.logbook(book)
        self.logbook_named = access.logbook
        self.books = access.books


def book_for(scenario: str) -> str:
    """A LogBook for one run of a scenario."""
    return f"contract.{scenario}"


IMPLEMENTATIONS = {
    "memory": Implementation(memory, moves_time=True),
    "memory-in-function": Implementation(memory_in_function),
    "memory-blocking": Implementation(memory_blocking, moves_time=True),
    "engine": Implementation(engine),
    "engine-3-replicas-2-logs": Implementation(partial(engine, replicas=3, logs=2)),
    "2-engines-2-logs": Implementation(partial(engines, has_index=True, logs=2)),
    "2-engines-1-index": Implementation(partial(engines, has_index=False, logs=2)),
    "function": Implementation(partial(in_worker, "run_scenario")),
    "blocking-function": Implementation(partial(in_worker, "run_scenario_blocking")),
    "function-3-replicas-2-logs": Implementation(partial(in_worker, "run_scenario", replicas=3, logs=2)),
    "client": Implementation(through_client),
    "blocking-client": Implementation(through_blocking_client),
    "client-3-replicas-2-logs": Implementation(partial(through_client, replicas=3, logs=2)),
    "cluster-client-2-logs": Implementation(partial(cluster_through_client, "--logs", "2")),
    "cluster-function-1-index-of-2": Implementation(
        partial(cluster_in_worker, "run_scenario", "--logs", "2", "--index-replicas", "1")
    ),
    "engine-one-replica-stopped": Implementation(partial(engine, "storage-2", "sequencer-3", replicas=3, logs=2)),
}


def _open(request: pytest.FixtureRequest) -> Iterator[Run]:
    with IMPLEMENTATIONS[request.param].open() as run:
        yield run


def _parameters(names: list[str]) -> list[object]:
    """Each implementation is one group, so that it is opened in one process of a parallel test run."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(f"contract-{name}")) for name in names]


@pytest.fixture(scope="module", params=_parameters(list(IMPLEMENTATIONS)))
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a scenario against each implementation."""
    yield from _open(request)


@pytest.fixture(scope="module", params=_parameters([n for n, i in IMPLEMENTATIONS.items() if i.moves_time]))
def run_timed(request: pytest.FixtureRequest) -> Iterator[Run]:
    """The same, for those whose time can be moved."""
    yield from _open(request)
