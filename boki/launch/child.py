"""A `boki dev` or a `boki up` in a process of its own, for tests and tools that start, kill and restart a real one.

The demo kills it, the benchmarks measure it, the tests do both. The child tells where it listens by its first JSON
line, so that it can choose a free port itself; its other lines are read away and the last ones kept for error messages.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from boki.config.loading import ENV_PREFIX, DevConfig, flag, settings
from boki.config.up import UpConfig
from boki.errors import Unavailable

_KEPT_LINES = 50
_STOP_MARGIN_S = 45.0
"""A node may take 30 s beyond its drain, and ZooKeeper stops after the nodes."""


class Child:
    """One process. Use it in a `with` block: at its end the process is killed if it still runs."""

    def __init__(self, config: DevConfig | UpConfig) -> None:
        """Prepare the process that `start` starts. Its log lines are JSON whatever `config` says."""
        self.config = msgspec.structs.replace(config, log_format="json")  # which says where it listens
        self._run: _Run | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """Where the running child listens."""
        assert self._run is not None, "started"
        return self._run.url

    @property
    def pid(self) -> int:
        """The process id of the running child."""
        assert self._run is not None, "started"
        return self._run.process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and not killed or stopped since; a child that ended by itself counts as running."""
        return self._run is not None

    def start(self, timeout_s: float = 30.0) -> Child:
        """Start it and wait until it is ready. `Unavailable` carries the last lines of a child that did not come up."""
        assert self._run is None, "stopped"
        self._run = run = _Run(
            subprocess.Popen(
                [sys.executable, "-P", "-m", "boki", *arguments(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)},
            )
        )
        spoke = run.spoke.wait(timeout_s)
        if not run.url:
            self.kill()
            reason = "ended before it was ready" if spoke else f"was not ready after {timeout_s:g} s"
            raise Unavailable(
                f"boki {command_name(self.config)} {reason}; its last lines:\n{run.last_lines()}",
                retryable=False,
                pid=run.process.pid,
            )
        return self

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nobody is told. Does nothing to a child that does not run."""
        if self._run is not None:
            self._run.process.kill()
            self._run.end()
            self._run = None

    def stop(self) -> int:
        """SIGTERM: drain, then exit. The exit code."""
        assert self._run is not None, "started"
        self._run.process.send_signal(signal.SIGTERM)
        code = self._run.process.wait(self.config.drain_s + _STOP_MARGIN_S)
        self._run.end()
        self._run = None
        return code

    def last_lines(self) -> str:
        """What the running child printed last, for people."""
        return self._run.last_lines() if self._run is not None else ""


class _Run:
    """One process from its start to its end, and a thread that reads its lines, so that it never waits for us."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.url = ""
        self.spoke = threading.Event()
        """Set when the child is ready, and when it has said its last."""
        self._lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def end(self) -> None:
        """Wait until the process is gone and its last line is read. Its workers hold no copy of its output."""
        self.process.wait()
        self._reader.join(1.0)

    def last_lines(self) -> str:
        return "".join(list(self._lines))

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.append(line)
                if not self.url and '"ready"' in line:
                    self.url = _url_of(line)
                    self.spoke.set()
        self.spoke.set()


def command_name(config: DevConfig | UpConfig) -> str:
    """The command that runs such a system."""
    return "up" if isinstance(config, UpConfig) else "dev"


def arguments(config: DevConfig | UpConfig) -> list[str]:
    """The command line after `boki` that starts a system with this configuration."""
    words = [command_name(config), "--config", os.devnull]
    for setting in settings(type(config)):
        owner: msgspec.Struct = config
        *groups, name = setting.name.split(".")
        for group in groups:
            owner = getattr(owner, group)
        value = getattr(owner, name)
        if isinstance(value, bool):
            words.append(flag(setting.name) if value else flag(setting.name).replace("--", "--no-", 1))
        elif value != "":
            words += [flag(setting.name), str(value.resolve() if isinstance(value, Path) else value)]
    return words


def _url_of(line: str) -> str:
    try:
        event = json.loads(line)
    except ValueError:
        return ""
    return str(event["url"]) if isinstance(event, dict) and event.get("event") == "ready" else ""
