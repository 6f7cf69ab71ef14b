"""Where an append passes: the methods that are wrapped in a traced process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any, Final, NamedTuple

from boki.bench.tracing.marks import Recorder
from boki.errors import BokiError
from boki.log.batch import read_header

Value = Callable[[tuple[Any, ...]], int]


class Probe(NamedTuple):
    """A method of a class, passed when it is called, or when it returns."""

    name: str
    module: str
    method: str
    """Class.method"""
    at_end: bool = False
    value: Value | None = None
    """What is read from the arguments."""


def _sent_until(arguments: tuple[Any, ...]) -> int:
    """Of `Appends._send(self, writer, shard, now_us)`: the shard has given out local ids until there."""
    return int(arguments[2].next_lid)


def _stored_until(arguments: tuple[Any, ...]) -> int:
    """Of `StorageCore._store(self, batch, engine)`."""
    try:
        return read_header(arguments[1]).until_lid
    except BokiError:
        return 0


def _reported_until(arguments: tuple[Any, ...]) -> int:
    """Of `Primary.report(self, storage, shard, incarnation, stored_until)`."""
    return int(arguments[4])


PROBES: Final[tuple[Probe, ...]] = (
    Probe("called", "boki.api.append_gatherer", "AppendGatherer.add"),
    Probe("worker writes", "boki.worker.worker", "AsyncWorker._flush"),
    Probe("engine read", "boki.dispatch.server.worker_link", "WorkerLink.data_received"),
    Probe("batch sent", "boki.engine.appends", "Appends._send", at_end=True, value=_sent_until),
    Probe("batch taken in", "boki.storage.core", "StorageCore._store", value=_stored_until),
    Probe("sync began", "boki.host.rocksdb", "RocksDb.sync"),
    Probe("sync ended", "boki.host.rocksdb", "RocksDb.sync", at_end=True),
    Probe("report heard", "boki.sequencer.primary", "Primary.report", value=_reported_until),
    Probe("cut proposed", "boki.sequencer.core", "SequencerCore._propose"),
    Probe("cut taken in", "boki.sequencer.core", "SequencerCore._append"),
    Probe("cut committed", "boki.sequencer.core", "SequencerCore._publish"),
    Probe("cut applied", "boki.engine.index.index", "Index.apply", at_end=True),
    Probe("engine writes", "boki.dispatch.server.worker_link", "WorkerLink._flush"),
    Probe("worker read", "boki.worker.worker", "AsyncWorker.data_received"),
    Probe("answered", "boki.api.append_gatherer", "_Sent.told", at_end=True),
)
NUMBERS: Final = {probe.name: number for number, probe in enumerate(PROBES)}


def install(folder: str) -> None:
    """Wrap the methods of all probes in this process; its marks, and those of processes that it forks, go there."""
    recorder = Recorder(folder)
    for number, probe in enumerate(PROBES):
        owner, name = owner_of(probe)
        setattr(owner, name, wrapped(getattr(owner, name), number, probe, recorder.mark))


def owner_of(probe: Probe) -> tuple[type, str]:
    """The class of a probe's method, and the method's name."""
    owner, _, name = probe.method.rpartition(".")
    found: type = attrgetter(owner)(import_module(probe.module))
    return found, name


def wrapped(
    method: Callable[..., Any], number: int, probe: Probe, mark: Callable[[int, int], None]
) -> Callable[..., Any]:
    """The method, which marks that it is called or returns."""
    value = probe.value or _nothing

    @functools.wraps(method)
    def marked_first(*arguments: Any, **named: Any) -> Any:
        mark(number, value(arguments))
        return method(*arguments, **named)

    @functools.wraps(method)
    def marked_last(*arguments: Any, **named: Any) -> Any:
        result = method(*arguments, **named)
        mark(number, value(arguments))
        return result

    return marked_last if probe.at_end else marked_first


def _nothing(_arguments: tuple[Any, ...]) -> int:
    return 0
