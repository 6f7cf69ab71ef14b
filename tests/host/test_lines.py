"""The form of what functions and nodes say, and that a program can read it again."""

from __future__ import annotations

import json
import logging
from datetime import date

import pytest

from boki.host.lines import DayLine, console_lines, day_of, json_line, printable, read_console_line, speaker

TIME_US = 1_795_388_699_451_000


def test_every_line_of_a_text_has_time_speaker_and_level() -> None:
    """A traceback stays readable, and each of its lines can be searched for (found.md, A2)."""
    text = "Traceback (most recent call last):\n  File \"work.py\", line 22, in boom\nKeyError: 'xx'\n"
    assert console_lines(TIME_US, speaker("work", "boom", "269101f6d5a1"), logging.ERROR, text) == [
        "23:04:59.451 boom[269101f6] ERROR Traceback (most recent call last):",
        '23:04:59.451 boom[269101f6] ERROR   File "work.py", line 22, in boom',
        "23:04:59.451 boom[269101f6] ERROR KeyError: 'xx'",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("50 %\r100 %", "50 %\\r100 %"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u2028b\u202ec", "a\\u2028b\\u202ec"),
        ("tab\tand ümläut", "tab\tand ümläut"),
    ],
)
def test_control_characters_are_shown_and_not_sent(text: str, shown: str) -> None:
    """Nothing that a function prints moves an operator's cursor or pretends to be a line (found.md part 2, M6)."""
    assert printable(text) == shown
    assert console_lines(TIME_US, "f[1]", logging.INFO, text) == [f"23:04:59.451 f[1] INFO {shown}"]
    line = json_line(TIME_US, logging.INFO, "stdout", text, {"function": "f"})
    assert printable(line) == line
    assert json.loads(line)["text"] == text
    assert console_lines(TIME_US, "evil\n00:00", logging.INFO, "") == ["23:04:59.451 evil\\n00:00 INFO "]


def test_a_line_for_programs_has_the_same_facts() -> None:
    """Time with its zone, level, event, text, and what else is known."""
    line = json_line(TIME_US, 35, "log", "a\nb", {"function": "boom", "invocation": "269101f6d5a1"})
    assert json.loads(line) == {
        "time": "2026-11-22T23:04:59.451000+00:00",
        "level": "warning",
        "event": "log",
        "text": "a\nb",
        "function": "boom",
        "invocation": "269101f6d5a1",
    }


def test_a_line_can_be_read_again() -> None:
    """With and without an invocation, and those that ZooKeeper writes in this form."""
    (line,) = console_lines(TIME_US, "boom[269101f6]", logging.ERROR, "no: [x] INFO y")
    found = read_console_line(line)
    assert found is not None
    of_day_us = ((23 * 60 + 4) * 60 + 59) * 1_000_000 + 451_000
    assert (found.time_of_day_us, found.who, found.invocation) == (of_day_us, "boom", "269101f6")
    assert (found.level, found.text) == (logging.ERROR, "no: [x] INFO y")
    other = read_console_line("23:04:59.451 zookeeper WARN NIOServerCnxn: closed")
    assert other is not None
    assert (other.level, other.who, other.text) == (logging.WARNING, "zookeeper", "NIOServerCnxn: closed")
    assert read_console_line("    at java.base/java.lang.Thread.run(Thread.java:1583)") is None
    assert read_console_line("2026-11-22 23:04:59,451 INFO engine-1: at work") is None


def test_a_day_is_named_once() -> None:
    """Lines have no date, so the first line of each day is preceded by one."""
    days = DayLine()
    texts = [days.before(TIME_US + after_s * 1_000_000) for after_s in (0, 1, 3600, 3601)]
    assert texts == ["2026-11-22 (UTC)", "", "2026-11-23 (UTC)", ""]
    assert DayLine(date(2026, 11, 22)).before(TIME_US) == ""
    (line,) = console_lines(TIME_US, "engine-1", logging.INFO, texts[0])
    found = read_console_line(line)
    assert found is not None
    assert day_of(found.text) == date(2026, 11, 22)
