"""Data directories that earlier versions wrote open with today's code, and everything is found in them.

They were written by `tests/old_data/write.py` with the code of the commit that is in their name, and stand in the year
2090, so that nothing in them runs out.
"""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boki import BlockingClient, Client, ConditionFailed, Expect, NotFound, Trimmed
from boki.books.functions.bundle import bundle_hash
from boki.books.functions.version_book import VersionBook
from boki.config.loading import DevConfig
from boki.launch.child import Child
from boki.libs.bokiqueue import Queue
from boki.node.local_log import LocalLog
from tests.old_data.write import BUNDLES, FUNCTIONS, YEAR_S

OLD = sorted((Path(__file__).parent / "old_data").glob("*.tar.xz"))
MAX_BYTES = 1 << 20


def test_there_is_old_data_and_it_is_small() -> None:
    """The oldest format that must stay readable is that of commit 81b6e90."""
    assert "81b6e90.tar.xz" in [path.name for path in OLD]
    assert all(path.stat().st_size < MAX_BYTES for path in OLD)


@pytest.fixture(params=OLD, ids=lambda path: path.name)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A data directory of that version."""
    with tarfile.open(request.param) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / "data"


@pytest.fixture
def url(opened: Path, tmp_path: Path) -> Iterator[str]:
    """A system of today on that data, in a process of its own."""
    functions = tmp_path / "functions"
    functions.mkdir()
    (functions / "old.py").write_text(FUNCTIONS)
    with Child(DevConfig(data=opened, functions=functions, port=0, reload=False)).start() as child:
        yield child.url


def test_everything_that_an_earlier_version_wrote_is_found(url: str) -> None:
    """Records, calls, rules and queues; and what was decided then stays decided."""
    with BlockingClient(url) as client:
        check_log(client)
        check_calls(client)
        check_rules(client)
    for name in ("one", "three"):
        asyncio.run(check_queue(url, name))


def check_log(client: BlockingClient) -> None:
    """Tags, order, neighbours, keys, conditions, counts and trims."""
    book = client.logbook("plain")
    records = [record for record in book.read().records if "!count" not in record.tags]
    assert [record.data for record in records] == [b"first", b"second", b"untagged", b"keyed", b"conditional"]
    assert [record.data for record in book.read("both").records] == [b"first", b"second"]
    assert records[2].seqnum == records[1].seqnum + 1
    assert book.append(b"again", key="the key") == records[3].seqnum
    with pytest.raises(ConditionFailed) as refused:
        book.append(b"again", tags=["chain"], when=Expect("chain", 0))
    assert refused.value.actual_seqnum == records[4].seqnum
    assert [int(record.data) for record in book.read("!count").records] == list(range(300))
    assert book.append(b"after all", tags=["chain"], when=Expect("chain", records[4].seqnum)) > records[4].seqnum
    trimmed = client.logbook("trimmed")
    assert [record.data for record in trimmed.read("t").records] == [b"5", b"6", b"7", b"8", b"9"]
    with pytest.raises((Trimmed, NotFound)):
        trimmed.get(trimmed.read("t").records[0].seqnum - 3)


def check_calls(client: BlockingClient) -> None:
    """Those that have ended say how; those that are delayed still are; a key stands for its call."""
    done = [client.invoke_later("double", number, key=f"double {number}") for number in range(20)]
    for number, invocation_id in enumerate(done):
        state = client.invocation(invocation_id)
        assert (state.state, state.attempts, state.result) == ("done", 1, 2 * number)
    failed = client.invocation(client.invoke_later("double", "no number", key="fail"))
    assert failed.state == "failed"
    assert failed.error is not None
    assert failed.error.code == "invalid_argument"
    later = [client.invoke_later("double", 100 + number, delay_s=YEAR_S, key=f"later {number}") for number in range(5)]
    assert {client.invocation(invocation_id).state for invocation_id in later} == {"accepted"}
    listed = {state.id: state.state for state in client.calls(limit=100).calls}
    assert set(later) < set(listed)
    assert len(listed) == 26
    client.cancel(later[0])
    assert client.invocation(later[0]).state == "cancelled"


def check_rules(client: BlockingClient) -> None:
    """What each book keeps: the last rule counts, and a rule that was lifted is none."""
    rules = {info.name: (info.retention_age_s, info.retention_size_bytes) for info in client.books()}
    assert rules["aged"] == (10 * YEAR_S, None)
    assert rules["sized"] == (None, 10**9)
    assert rules["free"] == (None, None)


async def check_queue(url: str, name: str) -> None:
    """Each message is where it was: done, ready, delayed, leased, dead; and a key pushes nothing twice."""
    async with Client(url) as client:
        queue: Queue[Any] = Queue(client.logbook("orders"), name)
        others: Queue[Any] = Queue(client.logbook("orders"), name, group="others")
        assert (await queue.stats()).shards == (1 if name == "one" else 3)
        assert await client.logbook("orders").check_tail(f"!qc:{name}:0") is not None, "it begins from a checkpoint"
        await queue.push({"number": 102}, key="pushed once")
        dead = await queue.dead_letters()
        assert sorted(letter.reason for letter in dead) == ["the first", "the second"]
        left = []
        while (message := await queue.pop()) is not None:
            left.append(message.value["number"])
        assert len(left) == 60 - 40 - 2 - 3 + 1
        assert 102 in left
        (group,) = [group for group in (await queue.stats()).groups if not group.name]
        assert (group.in_flight, group.delayed, group.dead, group.done) == (3, 2, 2, 40 + len(left))
        seen = []
        while messages := await others.pop_many(100):
            seen += [message.value["number"] for message in messages]
        assert len(seen) == len(set(seen)) == 60 - 15 + 1
        assert {*left, *seen} <= {*range(60), 102}
        assert await queue.redrive() == 2
        again = [await queue.pop() for _ in range(3)]
        assert [message is not None for message in again] == [True, True, False]


def test_functions_that_an_earlier_version_deployed_are_found(opened: Path) -> None:
    """Their bundles, which of them runs, and the numbers continue."""

    async def look() -> None:
        log = await LocalLog.start(DevConfig(data=opened))
        try:
            book = VersionBook(log.port)
            versions = await book.versions()
            assert [info.number for info in versions.infos()] == [2, 1]
            assert versions.active is not None
            assert versions.active.number == 1
            for version, bundle in zip(versions.kept, BUNDLES, strict=True):
                assert await book.fetch(version) == bundle
                assert version.bundle_hash == bundle_hash(bundle)
            assert (await book.activate(await book.upload(b"a third"))).number == 3
        finally:
            await log.stop()

    asyncio.run(look())
