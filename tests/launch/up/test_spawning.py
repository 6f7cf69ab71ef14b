"""Roles that are forked by a zygote: they run, they end, and the zygote's end is none of theirs."""

import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from boki.launch.up import identity
from boki.launch.up.core import Process
from boki.launch.up.spawning import REST_S, Spawner


class Watched:
    """A spawner, and what it has told."""

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        self.folder = folder
        self.told: asyncio.Queue[tuple[str, int, str]] = asyncio.Queue()
        self.died = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.died.set)
        self.spawner = Spawner(environment, lambda *told: self.told.put_nowait(told), folder / "zygote.log")

    async def start(self, node: str, *arguments: str) -> int:
        """Have `boki` run with these arguments; its process id."""
        self.spawner.start(Process(node, "role", arguments, is_boki=True), self.log(node))
        told, pid, error = await self.told.get()
        assert (told, error) == (node, ""), (self.folder / "zygote.log").read_text()
        return pid

    async def ended(self) -> tuple[int, int]:
        """The process that ends next, and its exit code."""
        while not (found := self.spawner.reap()):
            await self.died.wait()
            self.died.clear()
        assert len(found) == 1
        return found[0]

    def log(self, node: str) -> Path:
        return self.folder / f"{node}.log"

    def close(self) -> None:
        """End the zygote. A loop that closes while a signal comes has closed what the signal is to be written to."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        self.spawner.close()


def title_of(pid: int) -> str:
    """What `ps` shows."""
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_forked_roles_run_end_and_do_not_miss_their_zygote(tmp_path: Path) -> None:
    """Exit codes and output are those of a program of its own; a killed zygote is replaced, and no role notices."""

    async def play() -> None:
        watched = Watched(tmp_path)
        first = await watched.start("a", "--help")
        assert await watched.ended() == (first, 0)
        assert watched.log("a").read_text().startswith("usage: boki ")
        second = await watched.start("b", "no-such-command")
        assert await watched.ended() == (second, 2)
        zookeeper = socket.create_server(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{zookeeper.getsockname()[1]}"
        config = tmp_path / "boki.toml"
        config.write_text(f'zookeeper = "{hosts}"\ndata = "{tmp_path / "data"}"\n')
        waiting = ("start", "storage", "--name", "s", "--config", str(config))
        role = await watched.start("c", *waiting)
        mark = identity.start_mark(role)
        calling, _ = await asyncio.to_thread(zookeeper.accept)  # it is at work now, and waits for an answer
        assert " ".join(waiting) in title_of(role)
        os.kill(watched.spawner.zygote_pid, signal.SIGKILL)
        third = await watched.start("d", "--help")
        assert await watched.ended() == (third, 0)
        assert identity.is_same(role, mark)
        os.kill(role, signal.SIGKILL)
        assert await watched.ended() == (role, -signal.SIGKILL)
        calling.close()
        zookeeper.close()
        watched.close()

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await play()

    asyncio.run(bounded())


def test_a_zygote_that_has_nothing_to_fork_goes_and_comes_again(tmp_path: Path) -> None:
    """Not while a fork is outstanding; what it has forked stays; and the next fork does not miss it."""

    async def play() -> None:
        watched = Watched(tmp_path)
        spawner = watched.spawner
        spawner.start(Process("a", "role", ("--help",), is_boki=True), watched.log("a"))
        for now_s in (0.0, 2 * REST_S, 4 * REST_S):
            spawner.rest(now_s)
        assert spawner.zygote_pid  # it imports, and has yet to answer
        node, first, _ = await watched.told.get()
        assert node == "a"
        assert await watched.ended() == (first, 0)
        began_s = 4 * REST_S
        spawner.rest(began_s + 0.9 * REST_S)
        zygote = spawner.zygote_pid
        assert zygote
        spawner.rest(began_s + REST_S)
        assert spawner.zygote_pid == 0
        second = await watched.start("b", "--help")
        assert await watched.ended() == (second, 0)
        assert spawner.zygote_pid not in (0, zygote)
        watched.close()

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await play()

    asyncio.run(bounded())


def test_a_zygote_that_cannot_start_is_told_with_its_reason(tmp_path: Path) -> None:
    """Whoever waits for a fork learns that there will be none."""

    async def play() -> None:
        watched = Watched(tmp_path, {"PYTHONHOME": str(tmp_path)})
        watched.spawner.start(Process("a", "role", ("--help",), is_boki=True), watched.log("a"))
        async with asyncio.timeout(30):
            node, pid, error = await watched.told.get()
        assert (node, pid) == ("a", 0)
        assert "has ended" in error
        assert "encodings" in (tmp_path / "zygote.log").read_text()
        watched.close()

    asyncio.run(play())
