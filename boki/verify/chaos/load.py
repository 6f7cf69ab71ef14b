"""Load on a cluster under fault, as a process of its own: this many sessions, and the history of what they were told.

It obeys lines on its standard input: `stop` ends the load, `read` reads everything out and writes the history. What it
has to say it says in JSON lines: how many operations were acknowledged so far, and the result in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import uvloop

from boki.client import Client
from boki.errors import BokiError
from boki.verify.chaos.sessions import Progress, Session
from boki.verify.histories.history import History

_TELL_S = 0.5
_ENDS_WITHIN_S = 180.0
_PAUSE_S = 0.02


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a load is to do."""

    url: str
    token: str
    seed: int
    sessions: int
    books: int
    file: str


class Load:
    """The sessions of one run."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._history = History()
        self._progress = Progress(
            lambda stall_s: self._say("stall", stall_s=round(stall_s, 2), until_s=time.monotonic())
        )
        books = tuple(f"chaos-{number}" for number in range(orders.books))
        self._sessions = [
            Session(
                f"s{number}",
                Client(orders.url, token=orders.token),
                Random(f"{orders.seed}/{number}"),
                self._history,
                self._progress,
                books,
            )
            for number in range(orders.sessions)
        ]
        self._is_stopping = False

    async def run(self) -> None:
        """Work until `stop`, read out after `read`."""
        running = [asyncio.create_task(self._work(session)) for session in self._sessions]
        telling = asyncio.create_task(self._tell_progress())
        await _line("stop")
        self._is_stopping = True
        await asyncio.gather(*running)
        telling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await telling
        self._say("stopped")
        await _line("read")
        unfinished: list[str] = []
        problem = ""
        try:
            async with asyncio.timeout(_ENDS_WITHIN_S):
                late = await asyncio.gather(*(session.unfinished(_ENDS_WITHIN_S / 3) for session in self._sessions))
                unfinished += chain.from_iterable(late)
                for number, session in enumerate(self._sessions[:2]):
                    await session.read_out(f"reader-{number}")
        except TimeoutError:
            problem = f"not everything could be read within {_ENDS_WITHIN_S:g} s of the last fault"
        except BokiError as error:
            problem = f"not everything could be read when every fault was over: {error!r}"
        for session in self._sessions:
            await session.close()
        self._write()
        witnessed = [text for session in self._sessions for text in session.witnessed]
        accepted = sum(len(session.accepted) for session in self._sessions)
        facts = {"witnessed": witnessed, "unfinished": unfinished, "accepted_calls": accepted, "problem": problem}
        self._say("done", **facts)

    def _write(self) -> None:
        Path(self._orders.file).write_bytes(b"\n".join(self._history.to_lines()))

    async def _work(self, session: Session) -> None:
        while not self._is_stopping:
            await session.step()
            await asyncio.sleep(_PAUSE_S)

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(_TELL_S)
            self._say("progress")

    def _say(self, what: str, **facts: Any) -> None:
        told = {
            "event": what,
            "acknowledged": self._progress.acknowledged,
            "longest_stall_s": round(self._progress.longest_us / 1e6, 3),
        }
        print(json.dumps({**told, **facts}), flush=True)


async def _line(expected: str) -> None:
    """Wait for that word on the standard input; its end means that nobody wants this load any more."""
    loop = asyncio.get_running_loop()
    while True:
        line = await loop.run_in_executor(None, sys.stdin.readline)
        if not line:
            raise SystemExit(1)
        if line.strip() == expected:
            return


if __name__ == "__main__":
    uvloop.run(Load(msgspec.json.decode(sys.argv[1], type=Orders)).run())
