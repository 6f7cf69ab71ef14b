"""A `boki dev` in a process of its own, for whoever needs to start, kill and start again a real one.

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

from boki.config import ENV_PREFIX, DevConfig, flag, settings
from boki.errors import Unavailable

_KEPT_LINES = 50
_STOP_MARGIN_S = 20.0


class Child:
    """One process. Use it in a `with` block: at its end the process is killed if it still runs."""

    def __init__(self, config: DevConfig) -> None:
        """Prepare the process that `start` starts. Its log lines are JSON whatever `config` says."""
        self.config = config
        self.url = ""
        self._process: subprocess.Popen[str] | None = None
        self._lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._spoke = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id of the running child."""
        assert self._process is not None, "started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and not killed or stopped since; a child that ended by itself counts as running."""
        return self._process is not None

    def start(self, timeout_s: float = 30.0) -> Child:
        """Start it and wait until it is ready. `Unavailable` carries the last lines of a child that did not come up."""
        assert self._process is None, "stopped"
        self._spoke.clear()
        self.url = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "boki", *arguments(self.config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)},
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        came = self._spoke.wait(timeout_s)
        if not self.url:
            self.kill()
            reason = "did not start" if came else f"was not ready after {timeout_s:g} s"
            raise Unavailable(f"boki dev {reason}; its last lines:\n{self.last_lines()}")
        return self

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nobody is told. Does nothing to a child that does not run."""
        if self._process is not None:
            self._process.kill()
            self._reap(self._process)

    def stop(self) -> int:
        """SIGTERM: drain, then exit. The exit code."""
        assert self._process is not None, "started"
        process = self._process
        process.send_signal(signal.SIGTERM)
        code = process.wait(self.config.drain_s + _STOP_MARGIN_S)
        self._reap(process)
        return code

    def last_lines(self) -> str:
        """What the child printed last, for people."""
        return "".join(self._lines)

    def _reap(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        self._process = None

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """In a thread of its own, so that the child never waits for somebody to read its lines."""
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._lines.append(line)
                if not self.url and '"ready"' in line:
                    self.url = _url_of(line)
                    self._spoke.set()
        self._spoke.set()


def arguments(config: DevConfig) -> list[str]:
    """The command line after `boki` that starts a child with this configuration."""
    words = ["dev", "--config", os.devnull]
    for setting in settings(DevConfig):
        owner, name = (
            (config.limits, setting.name.removeprefix("limits.")) if "." in setting.name else (config, setting.name)
        )
        value = getattr(owner, name)
        if setting.name == "log_format":
            value = "json"
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
