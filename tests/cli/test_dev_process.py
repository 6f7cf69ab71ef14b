"""`boki dev` as a process: what it shows, how it stops, what it refuses. Real processes, real signals."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

FUNCTIONS = '''"""Functions of a test."""
import asyncio

from boki import Context, function


@function
async def greet(ctx: Context, who: str) -> str:
    print(f"greeting {who}")
    return f"Hello {who}"


@function
async def linger(ctx: Context, seconds: float) -> str:
    print("lingering")
    await asyncio.sleep(seconds)
    return "done"
'''


CLOCK = r"\d\d:\d\d:\d\d\.\d{3}"


class Running:
    """The process, and its lines as they come."""

    def __init__(self, folder: Path, *flags: str) -> None:
        (folder / "functions").mkdir(exist_ok=True)
        (folder / "functions/app.py").write_text(FUNCTIONS)
        (folder / "functions/broken.py").write_text('"""Broken."""\nimport no_such_module\n')
        self.process = subprocess.Popen(
            [sys.executable, "-m", "boki", "dev", "--port", "0", *flags],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=without_settings(),
        )
        assert self.process.stdout is not None
        self.lines: Iterator[str] = iter(self.process.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def until(self, text: str) -> str:
        """The first line from here on that holds the text."""
        seen = []
        for line in self.lines:
            seen.append(line)
            if text in line:
                return line
        raise AssertionError(f"never said {text!r}:\n{''.join(seen)}")

    def event(self, name: str) -> dict[str, Any]:
        """The next event of that name, of a process that prints JSON."""
        found: dict[str, Any] = json.loads(self.until(f'"event": "{name}"'))
        return found


def without_settings() -> dict[str, str]:
    """The environment as a user's is who has set nothing."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BOKI_")}


def post(url: str, body: str) -> str:
    with urllib.request.urlopen(url, data=body.encode(), timeout=30) as answer:
        return str(answer.read().decode())


def test_the_start_is_announced_and_functions_speak_as_json(tmp_path: Path) -> None:
    """Every line is an object: the start with its address and what is broken, a print with function and invocation."""
    with Running(tmp_path, "--log-format", "json") as running:
        ready = running.event("ready")
        assert ready["functions"] == ["greet", "linger"]
        assert "broken.py:2" in ready["broken"]["broken"]
        assert post(f"{ready['url']}/function/greet", "Ada") == "Hello Ada"
        line = running.event("stdout")
        assert (line["text"], line["function"], len(line["invocation"])) == ("greeting Ada", "greet", 32)


def test_a_console_that_nobody_reads_holds_up_no_call(tmp_path: Path) -> None:
    """`boki dev | head`, or a terminal that was closed: the lines are lost, and nothing else."""
    with Running(tmp_path, "--log-format", "json") as running:
        url = running.event("ready")["url"]
        assert running.process.stdout is not None
        running.process.stdout.close()
        assert [post(f"{url}/function/greet", who) for who in ("Ada", "Bob")] == ["Hello Ada", "Hello Bob"]
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(30) == 0


def test_the_start_screen_says_where_it_listens_and_what_is_broken(tmp_path: Path) -> None:
    """For people: address, data, functions, the broken module with file and line, and commands that work as printed."""
    with Running(tmp_path) as running:
        assert "http://127.0.0.1:" in running.until("listening")
        assert running.until("data").split() == ["data", ".boki"]
        assert "greet, linger" in running.until("app:")
        running.until("broken is broken")
        assert "no_such_module" in running.until("broken.py:2")
        tries = [
            running.until("  try  ").removeprefix("  try"),
            running.until("log books"),
            running.until("boki status"),
        ]
        assert [words.split()[:2] for words in tries] == [["boki", "invoke"], ["boki", "log"], ["boki", "status"]]
        for words in tries:
            boki = [sys.executable, "-m", *shlex.split(words)]
            subprocess.run(boki, cwd=tmp_path, env=without_settings(), check=True, capture_output=True)


def test_each_call_refusal_and_reload_has_a_line(tmp_path: Path) -> None:
    """With time, speaker and level, so that one sees what an edit or a request has done (issue 12, item 7)."""
    with Running(tmp_path) as running:
        url = running.until("listening").split()[4]
        post(f"{url}/function/greet", "Ada")
        assert re.fullmatch(CLOCK + r" greet\[[0-9a-f]{8}\] INFO greeting Ada\n", running.until("greeting"))
        assert re.fullmatch(CLOCK + r" greet\[[0-9a-f]{8}\] INFO ok in [\d.]+ m?s\n", running.until(" ok in "))
        with pytest.raises(urllib.error.HTTPError):
            post(f"{url}/function/greeet", "Ada")
        refusal = running.until("/function/greeet")
        assert re.match(CLOCK + r" boki WARNING POST /function/greeet was refused: no_such_function: ", refusal)
        (tmp_path / "functions/app.py").write_text(FUNCTIONS + "# edited\n")
        assert re.fullmatch(CLOCK + r" boki INFO module 'app' is loaded: greet, linger\n", running.until("is loaded"))


def test_a_quiet_system_tells_only_what_functions_say(tmp_path: Path) -> None:
    """And what goes wrong with it."""
    with Running(tmp_path, "--quiet", "--log-format", "json") as running:
        url = running.event("ready")["url"]
        for who in ("Ada", "Grace"):
            post(f"{url}/function/greet", who)
        with pytest.raises(urllib.error.HTTPError):
            post(f"{url}/function/greeet", "Ada")
        running.process.terminate()
        events = [json.loads(line)["event"] for line in running.lines]
        assert events == ["stdout", "stdout", "draining", "stopped"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_calls_end_and_the_exit_code_is_0(tmp_path: Path, number: signal.Signals) -> None:
    """What runs is answered; the process says that it drains, and leaves without an error."""
    with Running(tmp_path, "--log-format", "json") as running:
        url = running.event("ready")["url"]
        answers: list[str] = []
        caller = threading.Thread(target=lambda: answers.append(post(f"{url}/function/linger", "0.5")))
        caller.start()
        running.event("stdout")
        running.process.send_signal(number)
        running.event("draining")
        running.event("stopped")
        assert running.process.wait(20) == 0
        caller.join()
        assert answers == ["done"]


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """Nobody has to wait for a call that does not end; what was acknowledged is durable anyway."""
    with Running(tmp_path, "--log-format", "json") as running:
        url = running.event("ready")["url"]

        def call() -> None:
            with pytest.raises(OSError):
                post(f"{url}/function/linger", "30")

        caller = threading.Thread(target=call)
        caller.start()
        running.event("stdout")
        running.process.send_signal(signal.SIGTERM)
        running.event("draining")
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(60) == 130
        caller.join()


def test_a_data_directory_in_use_and_a_taken_port_are_told_without_a_traceback(tmp_path: Path) -> None:
    """The message says what to do; the first process is not disturbed."""
    with Running(tmp_path, "--log-format", "json") as first:
        url = first.event("ready")["url"]
        with Running(tmp_path) as second:
            assert "--data" in second.until("error")
            assert second.process.wait(60) == 1
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            with Running(tmp_path, "--data", "other", "--port", port) as third:
                line = third.until("error")
                assert port in line
                assert "in use" in line
                assert "--port" in line
                assert third.process.wait(60) == 1
        assert not (tmp_path / "other").exists()
        assert post(f"{url}/function/greet", "Ada") == "Hello Ada"
