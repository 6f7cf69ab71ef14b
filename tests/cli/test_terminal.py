"""How results look: text for people, exact values for programs."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console

from boki.api.http.exchange import Invocation
from boki.cli import calls, terminal
from boki.cli.console import Screen
from boki.cli.explaining import explain
from boki.cli.log import record_json
from boki.cli.table import head_and_lines
from boki.cli.terminal import data_text, print_json
from boki.errors import FunctionFailed
from boki.log.ids import MAX_SEQNUM
from boki.log.record import Record


def test_seqnums_are_strings_in_json() -> None:
    """63 bits survive readers that know only floating-point numbers."""
    record = Record(MAX_SEQNUM, ("a",), b"x", None, 5)
    assert json.loads(json.dumps(record_json(record)))["seqnum"] == str(MAX_SEQNUM)


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b'{"a": 1}', {"text": '{"a": 1}'}), (b"\xff\x00", {"base64": "/wA="}), (b"", {"text": ""})],
)
def test_data_is_text_if_it_is_text_and_base64_if_not(data: bytes, expected: dict[str, str]) -> None:
    """Nothing is lost or replaced."""
    assert record_json(Record(1, (), data, None, 5)).items() >= expected.items()


def test_data_stays_on_one_line_and_in_its_width() -> None:
    """Line ends, control characters and long data do not spoil a table."""
    for data in (b"a\nb", b"\x1b[31m", b"x" * 10_000, "é".encode() * 500):
        text = data_text(data, limit=40)
        assert text.isprintable()
        assert len(text) < 60


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Also if a text holds line ends."""
    print_json({"a": "b\nc"})
    print_json({"é": 1})
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"a": "b\nc"}, {"é": 1}]


def test_a_table_in_a_pipe_is_tab_separated_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """No width cuts anything where a program reads."""
    terminal.results.cache_clear()
    terminal.print_table(["seqnum>", "tags~"], [(8796093022208, "t" * 300), (7, None)])
    assert capsys.readouterr().out == f"seqnum\ttags\n8796093022208\t{'t' * 300}\n7\t\n"


@pytest.mark.parametrize("width", [80, 40])
def test_on_a_screen_what_identifies_a_row_is_never_cut(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Long tags wrap; the seqnum, the time and short data stand whole, however narrow the screen."""
    output = io.StringIO()
    screen = Console(file=output, force_terminal=True, width=width, color_system=None, soft_wrap=True)
    monkeypatch.setattr(terminal, "results", lambda: screen)
    row = (8796093022208, "2026-11-20 21:00:00.000001", ", ".join(f"some-long-tag-{n}" for n in range(15)), "data")
    terminal.print_table(["seqnum>", "time (UTC)", "tags~", "data~"], [row])
    text = output.getvalue()
    assert "8796093022208" in text
    assert "2026-11-20 21:00:00.000001" in text
    if width == 80:
        assert "data" in text.split("208", 1)[1].splitlines()[0]


def test_data_is_whole_where_nothing_limits_it() -> None:
    """In a pipe a program gets all of the record, still on one line."""
    assert data_text(b"x" * 1_000, limit=None) == "x" * 1_000
    assert "\n" not in data_text(b"a\nb\t" * 100, limit=None)


def test_on_a_narrow_screen_each_row_becomes_a_block() -> None:
    """Where not even what identifies a row fits, a line for each column."""
    head, lines = head_and_lines(["seqnum>", "time", "data…"], [["1234567890", "2026-11-22 23:04:59", "x" * 99]], 40)
    assert (head, lines[:2]) == ([], ["seqnum: 1234567890", "time: 2026-11-22 23:04:59"])
    assert all(len(line) <= 40 for line in lines)


def test_a_cell_is_wrapped_between_words_and_its_column_holds_the_longest() -> None:
    """A tag or a file's name stays whole; what is left goes to the other columns."""
    head, lines = head_and_lines(["n>", "tags~", "data…"], [["1", "a, country:Netherlands", "x" * 99]], 36)
    assert head == ["n  tags                 data"]
    assert lines == ["1  a,                   " + "x" * 11 + "…", "   country:Netherlands"]


def test_what_a_function_raised_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither its message nor its traceback; lines stay lines, and brackets are no markup (found.md part 2, M6)."""
    explain(FunctionFailed("boom: \x1b[2J[bold]", outcome="failed", traceback="first\n\x1b]0;title\x07 [red]\n"))
    assert capsys.readouterr().err.splitlines() == [
        "error: boom: \\x1b[2J[bold]",
        "first",
        "\\x1b]0;title\\x07 [red]",
    ]


class Terminal(io.StringIO):
    """A stream that is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_lines_of_functions_have_colours_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], coloured: bool
) -> None:
    """Those of `boki dev` and `boki logs` are written without a console, and obey NO_COLOR as it does."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    Screen("console").event("failed", "no", logging.ERROR)
    assert ("\x1b[31m" in out.getvalue()) is coloured
    assert not terminal.has_colour(io.StringIO())


@pytest.mark.parametrize("words", [["-h"], ["bench", "-h"], ["doctor"]], ids=" ".join)
def test_output_that_nobody_reads_ends_a_command_as_it_ends_cat(words: list[str]) -> None:
    """`boki … | head`: by the convention of SIGPIPE, without a word, and not as a command that has failed."""
    command = [sys.executable, "-m", "boki", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, b"")


EVIL = "\x1b[2J\x1b]0;pwned\x07a\tb\nstate  done :x:"
ESCAPED = r"\x1b[2J\x1b]0;pwned\x07"


@pytest.fixture
def piped() -> Iterator[None]:
    """Consoles that are made while the test runs, whose output goes into a pipe."""
    for console in (terminal.results, terminal.errors):
        console.cache_clear()
    yield
    for console in (terminal.results, terminal.errors):
        console.cache_clear()


@pytest.mark.usefixtures("piped")
def test_a_message_with_colons_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """`:x:` is no emoji, with markup or without."""
    explain(FunctionFailed("a:x:b", outcome="failed"))
    terminal.say("c:x:d")
    assert capsys.readouterr().err == "error: a:x:b\nc:x:d\n"


@pytest.mark.usefixtures("piped")
def test_no_text_of_a_console_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where a caller does not think of it: a module's error, a note, a name."""
    terminal.results().print(EVIL.replace("\t", ""), markup=False)
    assert capsys.readouterr().out == f"{ESCAPED}ab\nstate  done :x:\n"


@pytest.mark.usefixtures("piped")
def test_what_a_call_says_stays_in_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    """Its error and its note: one cell in a table, and no line of their own beside those of `boki calls show`."""
    call = Invocation(
        id="1" * 32,
        function="f",
        book="b",
        state="suspended",
        attempts=1,
        next_us=10**15,
        note=EVIL,
        last_error=FunctionFailed(EVIL),
    )
    terminal.print_table(["id", "function~", "state", "runs>", "about…"], [calls._cells(call)])
    _, line = capsys.readouterr().out.splitlines()
    assert "\x1b" not in line
    *_, about = line.split("\t")
    assert about.startswith(rf"{ESCAPED}a\tb\nstate  done :x:; waits until ")
    assert len(line.split("\t")) == 5
    calls._show(call, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert not any("\x1b" in line for line in lines)
    assert [line for line in lines if line.startswith("state ")] == [
        "state       suspended, waits until 2001-09-09 01:46:40 UTC"
    ]
    assert [line.split()[1] for line in lines if line.startswith("note ")] == [f"{ESCAPED}a"]
