"""Signals of a supervisor: what begins a stop, what ends everything at once, and what it was told to ignore."""

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from boki.cli import supervise, up
from boki.config.up import UpConfig
from boki.errors import Unavailable


class Fake:
    """A supervisor and its screen, which note what they are told."""

    def __init__(self) -> None:
        self.core = self
        self.is_stopping = False
        self.events: list[str] = []
        self.changed = asyncio.Event()

    def stop(self) -> None:
        self.is_stopping = True

    def kill(self) -> None:
        self.events.append("killed")

    def event(self, event: str, _text: str, _facts: dict[str, Any]) -> None:
        self.events.append(event)
        self.changed.set()


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """As they were, whatever a test has installed."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def listening(play: Callable[[Fake], Any], monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """What the fake was told while `play` sent signals to this process."""

    async def body() -> list[str]:
        fake: Any = Fake()
        monkeypatch.setattr(os, "_exit", lambda _code: fake.event("ended", "", {}))
        supervise._listen(fake, fake, UpConfig(data=folder))
        async with asyncio.timeout(30):
            await play(fake)
        return list(fake.events)

    return asyncio.run(body())


async def send(fake: Fake, number: signal.Signals) -> None:
    """Until it has had its effect, which another signal behind it shows if it has none."""
    fake.changed.clear()
    os.kill(os.getpid(), number)
    await fake.changed.wait()


def test_a_second_signal_ends_everything_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one lets calls end."""

    async def play(fake: Fake) -> None:
        await send(fake, signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        while "ended" not in fake.events:
            await fake.changed.wait()
            fake.changed.clear()

    assert listening(play, monkeypatch, tmp_path) == ["draining", "killed", "interrupted", "ended"]


def test_a_closed_terminal_begins_a_stop_and_is_no_second_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who presses Ctrl-C and then closes the window does not ask for calls to be cut off."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup

    async def play(fake: Fake) -> None:
        await send(fake, signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, fake.event, "heard", "", {})
        await send(fake, signal.SIGUSR1)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)

    try:
        assert listening(play, monkeypatch, tmp_path) == ["draining", "heard"]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_nohup_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts the program with SIGHUP ignored, so that a cluster outlives the terminal it was started in."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def play(_fake: Fake) -> None:
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    assert listening(play, monkeypatch, tmp_path) == []


def test_what_a_disk_refuses_at_a_start_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as a traceback; and the data directory is free again for the next try."""
    monkeypatch.setattr(supervise, "keep_private", lambda: None)  # it is for the whole process
    config = UpConfig(data=tmp_path / "data", zookeeper="127.0.0.1:1")
    (config.data / "cluster").mkdir(parents=True)
    (config.data / "version").write_text("1\n")
    (config.data / "cluster" / "boki.toml.new").mkdir()  # no file can be made there
    with pytest.raises(Unavailable, match=r"cannot start with .*data: Is a directory \(.*boki\.toml\.new\)"):
        asyncio.run(supervise.serve(config))
    (config.data / "cluster" / "logs").write_text("")
    with pytest.raises(Unavailable, match=r"cannot start with .*data: File exists"):
        up._detach(config)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for start in (up._detach, lambda wanted: asyncio.run(supervise.serve(wanted))):
        with pytest.raises(Unavailable, match="No space left on device"):
            start(config)
