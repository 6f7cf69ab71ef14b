"""Every fold of the system keeps the promises of a fold: pure, resumable, and commands counted once."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import boki.testing
from boki import BokiError, Record
from boki.libs.bokiqueue import Queue
from boki.libs.bokiqueue.following import Following, queues_of
from boki.libs.bokiqueue.records import Act, sound
from boki.libs.bokistore import Store
from boki.log.chunk import Group, encode_chunk
from boki.log.operations import Answer, Append, Operation
from boki.testing.folds import Subject, check_counted_once, check_resumes, check_same_everywhere
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process
from tests.libs.fold import subjects

GAP = encode_chunk("gap", [Group([(b"", ())])])


class Spaced(Process):
    """A process whose appends leave room behind each record."""

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        answer = await super().request(operation, positions, timeout_s)
        if isinstance(operation, Append):
            await self.port.request(Append("gap", GAP), {}, timeout_s)
        return answer


async def shard_records(seed: int, rounds: int = 40) -> list[Record]:
    """The stream of a queue that consumers of two groups have used."""
    rng = Random(seed)
    port = MemoryPort()
    queues: list[Queue[int]] = [Queue(Spaced(port).logbook(), "q") for _ in range(2)]
    for number, queue in enumerate(queues):
        queues_of(queue.logbook).put("test", "q", Following("q", 1, taker=b"taker %d" % number))
    await queues[0].create()
    for name in ("", "g"):
        await queues[0].create_group(name)
    for number in range(rounds):
        queue = rng.choice(queues)
        group: Queue[int] = Queue(queue.logbook, "q", group=rng.choice(["", "g"]))
        match rng.choice(["push", "push", "pop", "lease", "nack", "ack", "bury", "time"]):
            case "push":
                await queue.push(number, delay_s=rng.choice([0, 0, 40]), ttl_s=rng.choice([0, 0, 60]))
            case "pop":
                await group.pop()
            case "time":
                await port.clock.advance(rng.choice([1, 30, 60]))
            case verb:
                if (message := await group.lease(30)) is not None and verb != "lease":
                    options = {"reason": "no"} if verb == "bury" else {}
                    await getattr(group, verb)(message, **options)
    return (await queues[0].logbook.read("!q:q:0")).records


PURE: list[tuple[Subject[Any], list[Record]]] = [
    (subjects.VERSIONS, subjects.version_records(1)),
    (subjects.RETENTION, subjects.rule_records(1)),
    (subjects.CALLS, subjects.call_records(1)),
    (subjects.SINK, subjects.sink_records(1)),
    (subjects.JOURNAL, subjects.journal_records(1)),
]


@pytest.mark.parametrize(("subject", "records"), PURE, ids=lambda value: getattr(value, "where", ""))
def test_the_fold_is_the_same_everywhere(subject: Subject[Any], records: list[Record]) -> None:
    """In this process and in others with other hash seeds, and when records are applied a second time."""
    check_same_everywhere(subject, records)


@asynchronous
async def test_a_shard_of_a_queue_is_the_same_everywhere_and_resumes_from_any_checkpoint() -> None:
    """Whatever consumers did; a repetition of what one of its consumers has asked for has no effect."""
    for seed in range(3):
        records = await shard_records(seed)
        check_resumes(subjects.SHARD, records)
        if not seed:
            check_same_everywhere(subjects.SHARD, records)

        def is_act(record: Record) -> bool:
            return isinstance(sound(record), Act)

        assert check_counted_once(subjects.SHARD, records, is_act, subjects.shard_effects) > 10


@asynchronous
async def test_an_object_of_a_store_is_the_same_everywhere_and_resumes_from_any_checkpoint() -> None:
    """Whatever was changed, deleted and refused."""
    rng = Random(1)
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        one, other = store.object("x"), store.object("y")
        for number in range(60):
            path = rng.choice(["", "a", "a.b", "list"])
            try:
                match rng.choice(["set", "increment", "append", "delete", "both"]):
                    case "set":
                        await one.set(path, rng.choice([{}, {"a": {"b": number}, "list": []}, number, "text"]))
                    case "increment":
                        await one.increment(path, number)
                    case "append":
                        await one.append("list", number)
                    case "delete":
                        await one.delete(path)
                    case "both":
                        async with store.transaction() as txn:
                            await txn.object("x").set("a", {"b": number})
                            await txn.object("y").set("", number)
            except (BokiError, TypeError):
                pass  # it did not fit: its record may stand in the row all the same
        await other.delete("")
        records = (await ctx.logbook.read("!o:x")).records
    assert len(records) > 20
    check_resumes(subjects.OBJECT, records)
    check_same_everywhere(subjects.OBJECT, records)


@pytest.mark.parametrize("seed", range(20))
def test_logged_calls_resume_from_any_checkpoint(seed: int) -> None:
    """An engine that begins from one knows the same unfinished calls as one that has read the whole book."""
    check_resumes(subjects.CALLS, subjects.call_records(seed))
