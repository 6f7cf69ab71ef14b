"""Write a small data directory, to be opened by later versions: run with the code of the commit that is to be kept.

    git clone . old && git -C old checkout 81b6e90
    PYTHONPATH=old python tests/old_data/write.py old.tar.xz

The clock of what is written stands in the year 2090. The log's time never goes back, so for whoever opens it before
then no delay, lease, key or result has run out, and the test sees the same whenever it runs.
"""

from __future__ import annotations

import asyncio
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from boki import Client, ConditionFailed, Expect
from boki.books.functions.version_book import VersionBook
from boki.config.loading import DevConfig
from boki.host import clock
from boki.launch.dev import Dev
from boki.libs.bokiqueue import Queue, folds
from boki.node.local_log import LocalLog

YEARS_64_US = 64 * 365 * 24 * 3600 * 1_000_000
YEAR_S = 365 * 24 * 3600.0
FUNCTIONS = '''
"""Functions whose calls stand in old data."""

from boki import Context, function


@function(book="orders")
async def double(ctx: Context, number: int) -> int:
    return 2 * number

'''
BUNDLES = [bytes(range(256)) * 40, b"the second version" * 100]


async def write_log(client: Client) -> None:
    """Records with tags, keys, conditions and a trim."""
    book = client.logbook("plain")
    first = await book.append(b"first", tags=["a", "both"])
    await book.append_many([(b"second", ["b", "both"]), b"untagged"])
    await book.append(b"keyed", tags=["a"], key="the key")
    await book.append(b"conditional", tags=["a", "chain"], when=Expect("chain", 0))
    try:
        await book.append(b"refused", tags=["chain"], when=Expect("chain", 0))
    except ConditionFailed:
        pass
    else:
        raise AssertionError("the condition did not hold")
    await book.append_many([(b"%d" % number, ["!count"]) for number in range(300)])
    trimmed = client.logbook("trimmed")
    seqnums = [await trimmed.append(b"%d" % number, tags=["t"]) for number in range(10)]
    await trimmed.trim(seqnums[5], tag="t")
    await trimmed.trim(seqnums[3])
    assert first


async def write_queue(client: Client) -> None:
    """Messages that are ready, delayed, leased, dead and done, in two groups, of which checkpoints were made."""
    folds.SAVE_RECORDS = 20
    logbook = client.logbook("orders")
    for shards, name in ((1, "one"), (3, "three")):
        queue: Queue[Any] = Queue(logbook, name)
        await queue.create(shards=shards, max_deliveries=2, retain_s=YEAR_S)
        other: Queue[Any] = Queue(logbook, name, group="others")
        await queue.create_group("others")
        for number in range(60):
            await queue.push({"number": number})
        done = [await queue.pop() for _ in range(40)]
        assert all(message is not None for message in done)
        seen = await other.pop_many(15)
        assert len(seen) == 15
        for reason in ("the first", "the second"):
            dead = await queue.lease(60)
            assert dead is not None
            await queue.bury(dead, reason=reason)
        for _ in range(3):
            assert await queue.lease(YEAR_S) is not None
        await queue.push({"number": 100}, delay_s=YEAR_S)
        await queue.push({"number": 101}, delay_s=YEAR_S)
        await queue.push({"number": 102}, key="pushed once")


async def come_to_rest(client: Client) -> None:
    """Checkpoints and trims of the queues continue beside their callers."""
    from boki.libs.bokiqueue.ways import way_of

    await way_of(client.logbook("orders").origin).come_to_rest(10)


async def write_calls(client: Client) -> None:
    """Calls that have finished, have failed, and are delayed."""
    ids = [await client.invoke_later("double", number, key=f"double {number}") for number in range(20)]
    ids += [await client.invoke_later("double", "no number", key="fail")]
    for invocation_id in ids:
        while (await client.invocation(invocation_id, wait_s=10)).state not in ("done", "failed"):
            pass
    for number in range(5):
        await client.invoke_later("double", 100 + number, delay_s=YEAR_S, key=f"later {number}")


async def write_rules(client: Client) -> None:
    """Retention by age and size, changed and lifted."""
    for name in ("aged", "sized", "free"):
        await client.logbook(name).append_many([b"x" * 100] * 5)
    await client.logbook("aged").set_retention(age_s=10 * YEAR_S)
    await client.logbook("sized").set_retention(age_s=5.0, size_bytes=10**6)
    await client.logbook("sized").set_retention(size_bytes=10**9)
    await client.logbook("free").set_retention(size_bytes=10**9)
    await client.logbook("free").set_retention()


async def write(data: Path, functions: Path) -> None:
    config = DevConfig(data=data, functions=functions, port=0, reload=False)
    dev = await Dev.start(config)
    try:
        async with Client(dev.url) as client:
            await write_log(client)
            await write_queue(client)
            await write_calls(client)
            await write_rules(client)
            await come_to_rest(client)
    finally:
        await dev.stop(10)
    log = await LocalLog.start(config)
    book = VersionBook(log.port)
    for number, bundle in enumerate(BUNDLES, 1):
        deployed = await book.activate(await book.upload(bundle))
        assert deployed.number == number
    await book.use("1")
    await log.stop()


def main(archive: str) -> None:
    """Write the data, and the archive of it."""
    clock._OFFSET_US += YEARS_64_US
    with tempfile.TemporaryDirectory() as folder:
        data, functions = Path(folder, "data"), Path(folder, "functions")
        functions.mkdir()
        (functions / "old.py").write_text(FUNCTIONS)
        asyncio.run(write(data, functions))
        for path in data.rglob("*"):
            print(path.relative_to(data), path.stat().st_size)
        with tarfile.open(archive, "w:xz") as tar:
            tar.add(data, "data", filter=_anonymous)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without the owner's name, and without what only describes the process that wrote it."""
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    is_log = info.name.rsplit("/", 1)[-1].startswith("LOG")
    return None if is_log else info


if __name__ == "__main__":
    main(sys.argv[1])
