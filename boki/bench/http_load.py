"""Load over HTTP: wrk if it is installed, else a generator of our own, which is slower and says so.

wrk is a C program that takes a fraction of a core; ours shares Python's speed with the system under test, so that its
figures are lower bounds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp

from boki.bench.rows import Round, measured
from boki.errors import BokiError

_WRK_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
@TOKEN@
local posts, turn = {@POSTS@}, 0
request = function()
  turn = turn + 1
  local post = posts[(turn - 1) % #posts + 1]
  if post[3] then wrk.headers["Idempotency-Key"] = post[3] .. turn end
  return wrk.format(nil, post[1], nil, post[2])
end
done = function(summary, latency, requests)
  local errors = summary.errors
  local error_count = errors.status + errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format("BOKI %d %d %f %f %f\\n", summary.requests, error_count,
    summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
"""


def generator_name() -> str:
    """Which load generator `post_load` uses on this machine."""
    return "wrk" if shutil.which("wrk") else "asyncio"


class Post(NamedTuple):
    """A POST request with a JSON body."""

    url: str
    body: str = "null"
    key: str = ""
    """How the idempotency keys of its requests begin, each of which has one of its own; "": they have none."""


async def post_load(*posts: Post, callers: int, duration_s: float, token: str = "") -> Round:
    """Send the requests, which all go to one server, from `callers` callers, each with one in flight, for `duration_s`
    seconds. With our own generator each caller repeats one of them; with wrk they come in turn.
    """
    if shutil.which("wrk"):
        return await _wrk(posts, callers, duration_s, token)
    return await _own(posts, callers, duration_s, token)


async def _wrk(posts: Sequence[Post], callers: int, duration_s: float, token: str) -> Round:
    url = posts[0].url
    with tempfile.TemporaryDirectory() as folder:
        script = _write_script(Path(folder), posts, token)
        process = await asyncio.create_subprocess_exec(
            *("wrk", "-t1", f"-c{callers}", f"-d{max(1, round(duration_s))}s", "-s", str(script), url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    return parse_wrk(output.decode())


def _write_script(folder: Path, posts: Sequence[Post], token: str) -> Path:
    header = f"wrk.headers['Authorization'] = {json.dumps(f'Bearer {token}')}" if token else ""
    script = folder / "post.lua"
    rows = [_lua_row(post) for post in posts]
    text = _WRK_SCRIPT.replace("@TOKEN@", header).replace("@POSTS@", ", ".join(rows))
    script.write_text(text, encoding="utf-8")
    return script


def _lua_row(post: Post) -> str:
    fields = [urlsplit(post.url).path, post.body, *([post.key] if post.key else [])]
    return f"{{{', '.join(json.dumps(field) for field in fields)}}}"


def parse_wrk(output: str) -> Round:
    """What the script above made wrk say at its end."""
    match = re.search(r"^BOKI (\d+) (\d+) ([\d.]+) ([\d.]+) ([\d.]+)$", output, re.MULTILINE)
    if match is None:
        raise BokiError(f"wrk did not measure anything: {output.strip()}")
    requests, errors, elapsed_s, p50_ms, p99_ms = (float(group) for group in match.groups())
    quantiles = (p50_ms, p99_ms) if requests else (None, None)  # wrk says 0 of no request
    return Round(int(requests - errors), int(errors), elapsed_s, *quantiles)


async def _own(posts: Sequence[Post], callers: int, duration_s: float, token: str) -> Round:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    latencies_s: list[float] = []
    error_count = 0
    numbers = itertools.count(1)
    started = time.perf_counter()
    end = started + duration_s

    async def call_until_the_end(session: aiohttp.ClientSession, post: Post) -> None:
        nonlocal error_count
        while (before := time.perf_counter()) < end:
            keyed = {"Idempotency-Key": f"{post.key}{next(numbers)}"} if post.key else None
            try:
                async with session.post(post.url, data=post.body, headers=keyed) as response:
                    await response.read()
                    is_good = response.status < 300
            except aiohttp.ClientError:
                is_good = False
            if is_good:
                latencies_s.append(time.perf_counter() - before)
            else:
                error_count += 1

    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(call_until_the_end(session, posts[caller % len(posts)]) for caller in range(callers)))
    return measured(latencies_s, error_count, time.perf_counter() - started)
