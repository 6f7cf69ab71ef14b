"""`boki logs` over the files of a cluster that has run here."""

from __future__ import annotations

import json
import logging
import time
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from boki.cli import logs
from boki.cli.app import app
from boki.config.loading import LogFormat
from boki.host.lines import FACTS, SPEAKER, console_lines, json_line
from boki.node.console import log_to
from tests.node.test_console import own_logging

NO_CLUSTER = (
    "error: no cluster has run on nowhere: start one with `boki up`, or name its directory with --data. "
    "`boki dev` and `boki start` write to their own terminals: `boki dev | tee dev.log` keeps a copy"
)
NOW_US = time.time_ns() // 1000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data/cluster/logs"
    folder.mkdir(parents=True)
    lines = [
        *console_lines(NOW_US, "engine-1", logging.INFO, time.strftime("%Y-%m-%d (UTC)", time.gmtime(NOW_US / 1e6))),
        *console_lines(NOW_US, "engine-1", logging.INFO, "at work"),
        *console_lines(NOW_US + 2000, "boom[269101f6]", logging.ERROR, "Traceback:\nKeyError: \x1b[31m'xx'"),
    ]
    (folder / "engine-1.log").write_text("".join(f"{line}\n" for line in lines))
    facts = {"node": "engine-2", "module": "m", "function": "greet", "invocation": "77aa00bbcc"}
    (folder / "engine-2.log").write_text(json_line(NOW_US + 1000, logging.INFO, "stdout", "hello", facts) + "\n")
    return tmp_path / "data"


def printed(*words: str) -> list[str]:
    """The lines on stdout without their times."""
    result = CliRunner().invoke(app, ["logs", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [line.partition(" ")[2] for line in result.stdout.splitlines()]


def test_the_lines_of_all_nodes_stand_in_one_stream(data: Path) -> None:
    """Each with time, node, speaker and level, whatever format the node writes."""
    assert printed("--data", str(data)) == [
        "engine-1 INFO at work",
        "engine-2 greet[77aa00bb] INFO hello",
        "engine-1 boom[269101f6] ERROR Traceback:",
        "engine-1 boom[269101f6] ERROR KeyError: \\x1b[31m'xx'",
    ]
    assert printed("engine-2", "--data", str(data)) == ["greet[77aa00bb] INFO hello"]
    assert len(printed("-n", "1", "--data", str(data))) == 1


def test_lines_are_chosen_by_level_and_function(data: Path) -> None:
    """And a program gets objects of them."""
    assert printed("--level", "error", "--data", str(data)) == printed("--function", "boom", "--data", str(data))
    result = CliRunner().invoke(app, ["logs", "--json", "--data", str(data)])
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(one["node"], one["level"], one["text"]) for one in found[:2]] == [
        ("engine-1", "info", "at work"),
        ("engine-2", "info", "hello"),
    ]
    assert found[1]["module"] == "m"
    assert (found[2]["function"], found[2]["invocation"]) == ("boom", "269101f6")


def test_the_engines_line_about_a_run_is_one_of_its_function(data: Path) -> None:
    """Also the last one, that the call has failed permanently: it is logged as the call's, in both formats."""
    about = logging.LogRecord("boki.protocol.calls", logging.WARNING, "", 0, "attempt 2 of 2 ended with x", None, None)
    vars(about).update({SPEAKER: "greet[77aa00bb]", FACTS: {"function": "greet", "invocation": "77aa00bbcc"}})
    files: dict[str, LogFormat] = {"engine-1.log": "console", "engine-2.log": "json"}
    for file, log_format in files.items():
        stream = StringIO()
        with own_logging():
            log_to(stream, log_format, file.removesuffix(".log"))
            logging.getLogger().handle(about)
        with (data / "cluster/logs" / file).open("a") as log:
            log.write(stream.getvalue())
    assert printed("--function", "greet", "--level", "warning", "--data", str(data)) == [
        "engine-1 greet[77aa00bb] WARNING attempt 2 of 2 ended with x",
        "engine-2 greet[77aa00bb] WARNING attempt 2 of 2 ended with x",
    ]


def test_following_prints_what_is_written_and_nodes_that_are_new(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until Ctrl-C."""
    turns = []

    def sleep(_seconds: float) -> None:
        turns.append(1)
        (line,) = console_lines(NOW_US + 9000, "engine-3", logging.INFO, f"turn {len(turns)}")
        with (data / "cluster/logs/engine-3.log").open("a") as stream:
            stream.write(f"{line}\n")
        if len(turns) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(logs.time, "sleep", sleep)
    result = CliRunner().invoke(app, ["logs", "-f", "-n", "0", "--data", str(data)])
    assert result.exit_code == 130
    assert [line.partition(" ")[2] for line in result.stdout.splitlines()] == [
        "engine-3 INFO turn 1",
        "engine-3 INFO turn 2",
    ]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["--data", "nowhere"],
            1,
            NO_CLUSTER,
        ),
        (["engine-9"], 2, "error: there is no log of 'engine-9'; there are: engine-1, engine-2"),
        (
            ["--level", "loud"],
            2,
            "error: --level 'loud' is not a level: choose one of debug, info, warning, error, critical",
        ),
    ],
)
def test_what_cannot_be_shown_is_said_with_what_can(
    data: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, message: str
) -> None:
    """The whole message."""
    monkeypatch.setenv("BOKI_DATA", str(data))
    result = CliRunner().invoke(app, ["logs", *words])
    assert (result.exit_code, result.stderr.strip()) == (code, message)
