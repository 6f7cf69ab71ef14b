"""Logs of several nodes as one stream: merged by time, over midnight, over a move of a file that grew too large."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from pathlib import Path

from boki.host.lines import console_lines, json_line
from boki.launch.up.log_reader import LogLine, NodeLog, last_of, merged_by_time, open_logs
from boki.launch.up.logs import bound

DAY_US = 86_400_000_000
MIDNIGHT_US = int(datetime(2026, 11, 23, tzinfo=UTC).timestamp()) * 1_000_000


def line(after_s: float, text: str, who: str = "engine-1", level: int = logging.INFO) -> str:
    return console_lines(MIDNIGHT_US + round(after_s * 1e6), who, level, text)[0] + "\n"


def everything(_line: LogLine) -> bool:
    return True


def changed(file: Path, after_s: float) -> None:
    """Have the file as one that was written last at that time."""
    time_us = MIDNIGHT_US + round(after_s * 1e6)
    os.utime(file, ns=(time_us * 1000, time_us * 1000))


def test_all_nodes_are_merged_by_time_over_midnight(tmp_path: Path) -> None:
    """Lines have no date: it is in the files of nodes, and where it is not, it follows from the file's last change."""
    (tmp_path / "engine-1.log").write_text(
        line(-20, "2026-11-22 (UTC)") + line(-20, "first") + line(5, "2026-11-23 (UTC)") + line(5, "fourth")
    )
    (tmp_path / "zookeeper.log").write_text(
        line(-10, "second", "zookeeper") + "    at java.lang.Thread\n" + line(1, "third", "zookeeper")
    )
    changed(tmp_path / "zookeeper.log", 2)
    (tmp_path / "gateway-1.log").write_text(
        json_line(MIDNIGHT_US - 15_000_000, logging.ERROR, "log", "json", {"function": "f", "invocation": "1a"}) + "\n"
    )
    found = last_of(open_logs(tmp_path), 100, everything)
    assert [one.text for one in found] == ["first", "json", "second", "    at java.lang.Thread", "third", "fourth"]
    assert [(one.time_us - MIDNIGHT_US) / 1e6 for one in found] == [-20, -15, -10, -10, 1, 5]
    assert [one.node for one in found[:3]] == ["engine-1", "gateway-1", "zookeeper"]
    assert (found[1].who, found[1].invocation, found[1].level) == ("f", "1a", logging.ERROR)
    assert [one.text for one in last_of(open_logs(tmp_path), 2, everything)] == ["third", "fourth"]
    assert not last_of(open_logs(tmp_path), 0, everything)


def test_the_last_lines_that_match_are_found_however_far_back_they_are(tmp_path: Path) -> None:
    """In the older file, too; no more of them than were asked for."""
    file = tmp_path / "engine-1.log"
    file.write_text(line(0, "2026-11-23 (UTC)") + line(1, "wanted", "f[1]", logging.ERROR) + line(2, "other") * 5000)
    assert bound(file, 1)
    file.write_text(line(3, "more") * 5000)

    def is_error(one: LogLine) -> bool:
        return one.level == logging.ERROR

    (found,) = NodeLog(file).last(10, is_error)
    assert (found.text, found.time_us) == ("wanted", MIDNIGHT_US + 1_000_000)
    assert len(NodeLog(file).last(7, everything)) == 7


def test_following_goes_on_over_a_move_of_the_file(tmp_path: Path) -> None:
    """What was written between the last look and the move is read where it is now, and nothing twice; half a line
    waits for its other half.
    """
    file = tmp_path / "engine-1.log"
    file.write_text(line(0, "2026-11-23 (UTC)") + line(1, "one"))
    log = NodeLog(file)
    assert [one.text for one in log.last(10, everything)] == ["one"]
    assert log.new() == []

    def write(text: str) -> None:
        with file.open("a") as stream:
            stream.write(text)

    write(line(2, "two") + line(3, "three")[:20])
    assert [one.text for one in log.new()] == ["two"]
    write(line(3, "three")[20:])
    assert bound(file, 1)
    write(line(4, "four"))
    assert [one.text for one in log.new()] == ["three", "four"]
    write(line(-5 + 86_400, "night") + line(86_400 + 5, "morning"))
    night, morning = log.new()
    assert (morning.time_us - night.time_us) / 1e6 == 10
    assert merged_by_time([morning, night]) == [night, morning]
