"""Asking a gateway of this machine, with nothing but a socket: the supervisor imports no HTTP library for it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from boki.errors import Unavailable

_MAX_BYTES: Final = 8 << 20
_CONNECT_S: Final = 3.0


async def get(url: str, path: str, *, token: str = "", timeout_s: float = 2.0) -> tuple[int, bytes]:
    """One GET: the HTTP status and the body. (0, b"") if nobody answers in time."""
    parts = urlsplit(url)
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"GET {path} HTTP/1.0\r\nHost: {parts.netloc}\r\n{authorization}Connection: close\r\n\r\n"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=_MAX_BYTES)
            try:
                writer.write(head.encode())
                answer = await reader.read(_MAX_BYTES)
                while more := await reader.read(_MAX_BYTES):
                    answer += more
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return 0, b""
    first, _, _ = answer.partition(b"\r\n")
    _, _, body = answer.partition(b"\r\n\r\n")
    words = first.split()
    return (int(words[1]) if len(words) > 1 and words[1].isdigit() else 0), body


async def is_ready(url: str) -> bool:
    """Whether calls would be carried out there now."""
    status, _ = await get(url, "/readyz")
    return status == 200


async def status_of(url: str, token: str) -> dict[str, Any] | None:
    """What `/status` says; None if nobody answers it."""
    code, body = await get(url, "/status", token=token, timeout_s=5.0)
    if code != 200:
        return None
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None


def check_zookeeper(hosts: str) -> None:
    """`Unavailable` if none of "host:port,..." takes a connection: roles would wait for it, one by one."""
    failures: list[str] = []
    for address in hosts.split(","):
        host, _, port = address.strip().rpartition(":")
        if not port.isdecimal():
            failures.append(f"{address.strip()} (not host:port)")
            continue
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
        except OSError as error:
            failures.append(f"{address.strip()} ({error.strerror or error})")
        else:
            return
    raise Unavailable(
        f"no ZooKeeper takes connections at {', '.join(failures)}: start it, or name another with --zookeeper; "
        "`boki up` without that starts one",
        retryable=False,
        zookeeper=hosts,
    )
