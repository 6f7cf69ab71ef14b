"""Roles that shared a node, and are to be processes: what each needs is in its own directory then."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from boki.host.disk import Disk
from boki.host.redo import RedoMissing
from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.node.home import Home
from boki.node.separating import main, pairs, separate
from boki.protocol.effects import Put, Store

ROLES = {Role.STORAGE: NodeId("storage-1"), Role.SEQUENCER: NodeId("sequencer-1")}


def in_loop(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(body, 60))


def open_pair(nodes: Path) -> tuple[Disk, Disk]:
    """Both disks of a node, over one log."""
    loop = asyncio.get_running_loop()
    storage = Disk(nodes / "storage-1/disk", loop, on_failure=pytest.fail, has_guests=True)
    return storage, Disk(nodes / "sequencer-1/disk", loop, on_failure=pytest.fail, beside=storage, shares_log=True)


async def write(disk: Disk, key: bytes) -> None:
    """Durably."""
    is_durable = asyncio.Event()
    disk.store(Store([Put(key, b"entry")], then=("told",)), lambda _: is_durable.set())  # type: ignore[arg-type] # no effect of ours
    await is_durable.wait()


async def killed_node(folder: Path) -> Path:
    """The directories of a node that was killed with the newest write of its sequencer in the shared log alone."""
    live, nodes = folder / "live", folder / "nodes"
    for role, name in ROLES.items():
        Home(live / name, name, role).close()
    storage, sequencer = open_pair(live)
    await write(sequencer, b"e1")
    shutil.copytree(live, nodes)
    storage.close()
    sequencer.close()
    return nodes


def keys_of(nodes: Path) -> list[bytes]:
    """What the sequencer has when it starts alone."""
    disk = Disk(nodes / "sequencer-1/disk", asyncio.get_running_loop(), on_failure=pytest.fail)
    try:
        return [key for key, _ in disk.scan(b"e", b"f")]
    finally:
        disk.close()


def test_after_a_kill_the_sequencer_gets_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It starts alone then, and as part of the node again, without a repetition of what was done before."""

    async def body() -> None:
        nodes = await killed_node(tmp_path)
        with pytest.raises(RedoMissing):
            keys_of(nodes)
        main(nodes)
        assert "sequencer-1 has taken its newest writes from the log of storage-1" in capsys.readouterr().err
        assert keys_of(nodes) == [b"e1"]
        main(nodes)
        assert capsys.readouterr() == ("", "")
        storage, sequencer = open_pair(nodes)
        await write(sequencer, b"e2")
        assert [key for key, _ in sequencer.scan(b"e", b"f")] == [b"e1", b"e2"]
        storage.close()
        sequencer.close()
        assert not separate(nodes / "storage-1", nodes / "sequencer-1")
        assert keys_of(nodes) == [b"e1", b"e2"]

    in_loop(body())


def test_a_directory_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The start of that sequencer refuses it, as before."""

    async def body() -> None:
        nodes = await killed_node(tmp_path)
        home = Home(nodes / "storage-1", ROLES[Role.STORAGE], Role.STORAGE)
        main(nodes)
        assert "in use" in capsys.readouterr().err
        with pytest.raises(RedoMissing):
            keys_of(nodes)
        home.close()

    in_loop(body())


def test_another_storage_node_has_nothing_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was given an empty disk: nothing is taken for complete that is not."""

    async def body() -> None:
        nodes = await killed_node(tmp_path)
        shutil.rmtree(nodes / "storage-1/disk")
        assert list(pairs(nodes)) == []
        Disk(nodes / "storage-1/disk", asyncio.get_running_loop(), on_failure=pytest.fail, has_guests=True).close()
        main(nodes)
        assert "newest writes are in the log of the storage node" in capsys.readouterr().err
        with pytest.raises(RedoMissing):
            keys_of(nodes)

    in_loop(body())
