"""Load over HTTP: wrk if it is installed, else a generator of our own, which is slower and says so.

wrk is a C program that takes a fraction of a core; ours shares Python's speed with the system under test, so that its
figures are lower bounds.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
import time
from pathlib import Path

import aiohttp

from boki.bench.rows import Round, measured
from boki.errors import BokiError

_WRK_SCRIPT = """
wrk.method = "POST"
wrk.body = @BODY@
wrk.headers["Content-Type"] = "application/json"
@TOKEN@
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


async def post_load(url: str, *, callers: int, duration_s: float, body: str = "null", token: str = "") -> Round:
    """POST `body` from so many callers, each with one request under way, for the duration."""
    if shutil.which("wrk"):
        return await _wrk(url, callers, duration_s, body, token)
    return await _own(url, callers, duration_s, body, token)


async def _wrk(url: str, callers: int, duration_s: float, body: str, token: str) -> Round:
    with tempfile.TemporaryDirectory() as folder:
        script = _write_script(Path(folder), body, token)
        process = await asyncio.create_subprocess_exec(
            *("wrk", "-t1", f"-c{callers}", f"-d{max(1, round(duration_s))}s", "-s", str(script), url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    return parse_wrk(output.decode())


def _write_script(folder: Path, body: str, token: str) -> Path:
    header = f"wrk.headers['Authorization'] = {json.dumps(f'Bearer {token}')}" if token else ""
    script = folder / "post.lua"
    script.write_text(_WRK_SCRIPT.replace("@BODY@", json.dumps(body)).replace("@TOKEN@", header), encoding="utf-8")
    return script


def parse_wrk(output: str) -> Round:
    """What the script above made wrk say at its end."""
    match = re.search(r"^BOKI (\d+) (\d+) ([\d.]+) ([\d.]+) ([\d.]+)$", output, re.MULTILINE)
    if match is None:
        raise BokiError(f"wrk did not measure anything: {output.strip()}")
    requests, errors, elapsed_s, p50_ms, p99_ms = (float(group) for group in match.groups())
    return Round(int(requests - errors), int(errors), elapsed_s, p50_ms, p99_ms)


async def _own(url: str, callers: int, duration_s: float, body: str, token: str) -> Round:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    latencies_s: list[float] = []
    error_count = 0
    started = time.perf_counter()
    end = started + duration_s

    async def call_until_the_end(session: aiohttp.ClientSession) -> None:
        nonlocal error_count
        while (before := time.perf_counter()) < end:
            try:
                async with session.post(url, data=body) as response:
                    await response.read()
                    is_good = response.status < 300
            except aiohttp.ClientError:
                is_good = False
            if is_good:
                latencies_s.append(time.perf_counter() - before)
            else:
                error_count += 1

    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(call_until_the_end(session) for _ in range(callers)))
    return measured(latencies_s, error_count, time.perf_counter() - started)
