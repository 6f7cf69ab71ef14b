"""A process that keeps a log and appends to it until it is killed: `python -m tests.e2e.appender SETTINGS-JSON`.

It speaks in lines on its standard output, each one system call: first `have BOOK SEQNUM ID` for every record that it
finds, then `ready`, then `ack BOOK SEQNUM ID` for every append that has returned; `trimming SEQNUM` before and
`trimmed SEQNUM` after a trim of the book `trimmed`; `stopped` when it has stopped a node. With `forgetful`, its
databases forget at a kill what no returned sync had covered; with `unsynced`, that role's are never synced at all.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

import boki.host.disk
import boki.node.local_log
from boki.api.append_gatherer import AppendGatherer
from boki.api.deadline import Caller
from boki.api.logbook import LogBook, LogSession
from boki.config.loading import DevConfig
from boki.errors import BokiError
from boki.node.local_log import LocalLog
from tests.forgetful import ForgetfulDb

BOOKS = ("one", "two", "three")
TRIMMED = "trimmed"
APPENDERS = 24


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def append_for_ever(log: LogBook, number: int, numbers: count[int], start: int) -> None:
    for n in numbers:
        name = f"{start}-{number}-{n}"
        match number % 3:
            case 0:
                say("ack", log.name, await log.append(name.encode(), tags=[f"t{n % 5}"]), name)
            case 1:
                names = [f"{name}-{i}" for i in range(3)]
                seqnums = await log.append_many([(text.encode(), ["many"]) for text in names])
                for seqnum, text in zip(seqnums, names, strict=True):
                    say("ack", log.name, seqnum, text)
            case 2:
                seqnum = await log.append(name.encode(), key=name)
                again = await log.append(name.encode(), key=name)
                assert again == seqnum, "a key was forgotten"
                say("ack", log.name, seqnum, name)


async def append_and_trim(log: LogBook, start: int) -> None:
    """A book that stays short, so that whole batches are freed between the others."""
    for n in count():
        seqnums = []
        for i in range(5):
            name = f"{start}-trim-{n}-{i}"
            seqnums.append(await log.append(name.encode(), tags=["t"]))
            say("ack", log.name, seqnums[-1], name)
        say("trimming", seqnums[-1])
        await log.trim(seqnums[-1])
        say("trimmed", seqnums[-1])


async def main(settings: dict[str, Any]) -> None:
    config = DevConfig(data=Path(settings["data"]), replicas=settings["replicas"], logs=settings["logs"])
    local = await LocalLog.start(config)
    access = LogSession(local.port, AppendGatherer(local.port), Caller())
    for name in (*BOOKS, TRIMMED):
        start = 0
        while (page := await access.logbook(name).read(start=start)).records:
            for record in page.records:
                say("have", name, record.seqnum, record.data.decode())
            start = page.next_start
    say("ready")
    if settings.get("stop_node"):
        asyncio.get_running_loop().call_later(0.05, stop_node, local, settings["stop_node"])
    numbers = count()
    async with asyncio.TaskGroup() as group:
        for number in range(APPENDERS):
            log = access.logbook(BOOKS[number % len(BOOKS)])
            group.create_task(append_for_ever(log, number, numbers, settings["round"]))
        group.create_task(append_and_trim(access.logbook(TRIMMED), settings["round"]))


def stop_node(local: LocalLog, node: str) -> None:
    local.stop_node(node)
    say("stopped")


def without_sync(role: str) -> None:
    """Take the sync away from the databases of one role."""
    synced = ForgetfulDb.sync

    def sync(self: ForgetfulDb) -> None:
        if not self.path.name.startswith(role):
            synced(self)

    ForgetfulDb.sync = sync  # type: ignore[method-assign]


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    boki.node.local_log._START_TIMEOUT_S = given.get("start_timeout_s", 15.0)
    if given.get("forgetful"):
        boki.host.disk.RocksDb = ForgetfulDb  # type: ignore[misc, assignment]
    if given.get("unsynced"):
        without_sync(given["unsynced"])
    try:
        uvloop.run(main(given))
    except BokiError as error:
        say("failed", error)
        raise
