"""Killed at random moments of concurrent appends, the log loses no acknowledged record and doubles none.

SIGKILL keeps what the kernel has, so the same is done over databases that forget everything which no returned sync had
covered; and to show that this would be noticed, with one role's sync taken away.

`BOKI_KILL_ROUNDS` sets the number of rounds (10).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.e2e.appender import TRIMMED

ROUNDS = int(os.environ.get("BOKI_KILL_ROUNDS", "10"))
REPOSITORY = Path(__file__).parents[2]
UNSYNCED_START_S = 5.0
"""What was lost is mostly waited for without result: longer than any start takes, and no longer."""


class Broken(AssertionError):
    """A promise was broken."""


class Ledger:
    """What was acknowledged and what was found, over all rounds."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, tuple[str, int]] = {}
        self.found: dict[str, tuple[str, int]] = {}
        self.trimming_below = 0
        self.trimmed_below = 0
        self.acknowledged_after_stop = 0

    def may_be_gone(self, place: tuple[str, int]) -> bool:
        """Whether a trim of it has at least begun."""
        return place[0] == TRIMMED and place[1] < self.trimming_below

    def check(self, found: dict[str, tuple[str, int]], complete: bool) -> None:
        """`found` is what a start has found; all of it if `complete`."""
        for name, place in found.items():
            for known in (self.acknowledged, self.found):
                if known.get(name, place) != place:
                    raise Broken(f"{name} was at {known[name]} and is at {place}")
            if place[0] == TRIMMED and place[1] < self.trimmed_below:
                raise Broken(f"{name} was trimmed and is back at {place}")
        if complete:
            for what, known in (("acknowledged", self.acknowledged), ("read", self.found)):
                lost = {name for name in known.keys() - found.keys() if not self.may_be_gone(known[name])}
                if lost:
                    raise Broken(f"{len(lost)} of {len(known)} records that were {what} are gone: {sorted(lost)[:5]}")
            self.found = found


def play_round(ledger: Ledger, dice: Random, settings: dict[str, Any]) -> None:
    """Start a log, let it tell what it has, let it append, and kill it after a random number of lines."""
    found: dict[str, tuple[str, int]] = {}
    kill_after = dice.randrange(0, 50) if dice.random() < 0.1 else dice.randrange(1, 2_000)
    kills_early = dice.random() < 0.1 and "stop_node" not in settings
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.appender", json.dumps(settings)], stdout=subprocess.PIPE, cwd=REPOSITORY
    )
    assert child.stdout is not None
    is_ready = has_stopped = False
    waits_for_stop = "stop_node" in settings
    lines = 0
    try:
        for line in child.stdout:
            word, *rest = line.decode().split()
            if word == "ready":
                is_ready, lines = True, 0
                ledger.check(found, complete=True)
            elif word == "failed":
                raise Broken(line.decode())
            elif word == "have":
                if rest[2] in found:
                    raise Broken(f"{rest[2]} is there twice")
                found[rest[2]] = (rest[0], int(rest[1]))
            elif word == "ack":
                place = (rest[0], int(rest[1]))
                if ledger.acknowledged.setdefault(rest[2], place) != place:
                    raise Broken(f"{rest[2]} was acknowledged twice")
                ledger.acknowledged_after_stop += has_stopped
            elif word == "trimming":
                ledger.trimming_below = int(rest[0])
            elif word == "trimmed":
                ledger.trimmed_below = int(rest[0])
            elif word == "stopped":
                has_stopped, lines = True, 0
            lines += 1
            if lines >= kill_after and (is_ready or kills_early) and (has_stopped or not waits_for_stop):
                child.kill()  # what it still said before is read to the end
    finally:
        child.kill()
        child.stdout.close()
        child.wait()
    if not is_ready and not kills_early:
        raise Broken("the log did not start")
    if not is_ready:
        ledger.check(found, complete=False)


def play(tmp_path: Path, rounds: int, seed: str, ledger: Ledger | None = None, **settings: Any) -> Ledger:
    ledger = ledger or Ledger()
    dice = Random(seed)
    for number in range(rounds):
        play_round(ledger, dice, {"data": str(tmp_path / "data"), "round": number, **settings})
    return ledger


@pytest.mark.parametrize("forgetful", [False, True], ids=["killed", "power-cut"])
@pytest.mark.parametrize(("replicas", "logs"), [(1, 1), (3, 2)])
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, forgetful: bool, replicas: int, logs: int) -> None:
    """Every acknowledged record is found once, at its seqnum, after every kill."""
    rounds = ROUNDS if replicas == 1 else ROUNDS // 2
    settings = {"forgetful": forgetful, "replicas": replicas, "logs": logs}
    ledger = play(tmp_path, rounds, f"{forgetful} {replicas}", **settings)
    assert len(ledger.acknowledged) > 20 * rounds


@pytest.mark.parametrize("node", ["storage-2", "sequencer-3"])
def test_one_replica_may_stop_in_mid_append(tmp_path: Path, node: str) -> None:
    """With three replicas, appends continue without one of them, and nothing is lost when it comes back."""
    ledger = play(tmp_path, 4, node, forgetful=True, replicas=3, logs=2, stop_node=node)
    assert ledger.acknowledged_after_stop > 200


@pytest.mark.parametrize("role", ["storage", "sequencer", "coordinator"])
def test_without_any_one_sync_the_loss_is_noticed(tmp_path: Path, role: str) -> None:
    """The test above can fail: take away a role's sync, and it does."""
    ledger = Ledger()
    with pytest.raises(Broken):
        settings = {"forgetful": True, "unsynced": role, "start_timeout_s": UNSYNCED_START_S}
        play(tmp_path, 6, role, ledger, replicas=1, logs=1, **settings)
    assert ledger.acknowledged, "the log did start, and lost what it had acknowledged"
