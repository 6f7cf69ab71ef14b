"""The part of `boki bench store` that runs Retwis, the paper's application of objects, under the paper's mix over HTTP.

15 % of the requests log in, 30 % show a profile, 50 % show a list of posts, 5 % post. A login and a post check a
password by scrypt, which is most of what they cost.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import aiohttp

from boki.bench.rows import Round, Row, measured, median
from boki.bench.system import Options, Target, target
from boki.bench.turns import Step, row_of
from boki.client import Client
from boki.demo.examples import functions_folder
from boki.libs.bokistore import Store

CALLERS: Final = (64,)
USERS: Final = 10_000
FOLLOWERS: Final = 4
_BOOK: Final = "retwis"
_PASSWORD: Final = "correct horse"  # noqa: S105 - of users that live for a benchmark
_AT_ONCE: Final = 500
"""Users that one transaction makes."""

MIX: Final = {"login": 15, "profile": 30, "posts": 50, "post": 5}
"""Requests of each kind among 100."""


class _Request(NamedTuple):
    kind: str
    method: str
    path: str
    body: dict[str, str] | None = None


def retwis(options: Options, step: Step) -> Iterator[Row]:
    """A row for each number of callers, with the quantiles of each kind of request."""
    users = min(USERS, max(10, options.record_count // 100))
    with tempfile.TemporaryDirectory(prefix="boki-bench-", dir=options.folder) as folder:
        shutil.copyfile(functions_folder() / "retwis.py", Path(folder, "retwis.py"))
        with target(options, functions=Path(folder)) as system:
            step(f"{users:,} users of Retwis")
            asyncio.run(_make_users(system, users))
            for callers in options.inflight or CALLERS:
                rounds = []
                for number in range(options.rounds + 1):
                    step(f"Retwis, {callers} callers, {f'round {number}' if number else 'warming up'}")
                    rounds.append(asyncio.run(_round(system, users, callers, number, options.duration_s)))
                yield _row(options, callers, users, rounds[1:])


def _row(options: Options, callers: int, users: int, rounds: list[dict[str, Round]]) -> Row:
    details: dict[str, Any] = {"users": users}
    for kind in MIX:
        details[f"{kind}_p50_ms"] = median([one[kind].p50_ms for one in rounds])
        details[f"{kind}_p99_ms"] = median([one[kind].p99_ms for one in rounds])
    return row_of(options, "store-retwis", callers, [one[""] for one in rounds], details)


async def _make_users(system: Target, count: int) -> None:
    """All with one password, which is hashed once, and with the followers that the paper's posts are told to."""
    async with Client(system.url, token=system.token) as client:
        await client.invoke("register", {"name": "u0", "password": _PASSWORD})
        store = Store(client.logbook(_BOOK))
        made: dict[str, Any] = await store.object("user:u0").get()
        for first in range(0, count, _AT_ONCE):
            async with store.transaction() as txn:
                for number in range(first, min(first + _AT_ONCE, count)):
                    followers = [f"u{(number + step) % count}" for step in range(1, FOLLOWERS + 1)]
                    await txn.object(f"user:u{number}").set("", made | {"followers": followers})


async def _round(system: Target, users: int, callers: int, seed: int, duration_s: float) -> dict[str, Round]:
    """The requests of each kind, and all of them under ""."""
    random = Random(seed)
    found_s: dict[str, list[float]] = {kind: [] for kind in MIX}
    errors = dict.fromkeys(MIX, 0)
    headers = {"Authorization": f"Bearer {system.token}"} if system.token else {}
    started = time.perf_counter()
    end = started + duration_s

    async def ask_until_the_end(session: aiohttp.ClientSession) -> None:
        while (before := time.perf_counter()) < end:
            request = draw(random, users)
            try:
                async with session.request(request.method, system.url + request.path, json=request.body) as response:
                    await response.read()
                    is_good = response.status < 300
            except aiohttp.ClientError:
                is_good = False
            if is_good:
                found_s[request.kind].append(time.perf_counter() - before)
            else:
                errors[request.kind] += 1

    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(ask_until_the_end(session) for _ in range(callers)))
    elapsed_s = time.perf_counter() - started
    rounds = {kind: measured(found_s[kind], errors[kind], elapsed_s) for kind in MIX}
    return rounds | {"": measured(list(chain(*found_s.values())), sum(errors.values()), elapsed_s)}


def draw(random: Random, users: int) -> _Request:
    """The next request of the mix."""
    [kind] = random.choices(list(MIX), list(MIX.values()))
    name = f"u{random.randrange(users)}"
    login = {"name": name, "password": _PASSWORD}
    match kind:
        case "login":
            return _Request(kind, "POST", "/retwis/login", login)
        case "profile":
            return _Request(kind, "GET", f"/retwis/users/{name}")
        case "posts":
            return _Request(kind, "GET", random.choice(("/retwis/timeline", f"/retwis/users/{name}/inbox")))
        case _:
            return _Request(kind, "POST", "/retwis/posts", login | {"text": "worth saying " * 8})
