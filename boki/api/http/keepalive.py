"""TCP keepalive of a client's connections: the loss of a gateway's machine is noticed while a request waits.

A process that ends says so, because its kernel closes its sockets. A machine without power or network says nothing: a
client that waits for an answer would wait until its deadline, which for a call is a day. So the kernel asks a silent
peer whether it still has the connection, and ends the connection when nothing comes back: after about ten seconds,
whatever the deadline. Kernels answer for processes that are busy, so a call may take as long as it likes; they also
answer for a process that was stopped, and that is noticed at the deadline only.
"""

from __future__ import annotations

import errno
import socket
from typing import Any, Final, Protocol

IDLE_S: Final = 5
"""Seconds of silence before the first probe."""
INTERVAL_S: Final = 1
"""Seconds between probes."""
PROBES: Final = 5
"""Maximum number of probes without an answer."""


class _Socket(Protocol):
    """A socket, with TLS or without."""

    def setsockopt(self, level: int, name: int, value: int, /) -> None:
        """Set an option."""


def keep_alive(connection: _Socket) -> None:
    """End the connection with an error when the machine at its other end is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": IDLE_S,
        "TCP_KEEPALIVE": IDLE_S,  # the name of the same on macOS
        "TCP_KEEPINTVL": INTERVAL_S,
        "TCP_KEEPCNT": PROBES,
        # There are no probes while sent bytes wait for their acknowledgement. Those are given up here, after as long;
        # without it after a quarter of an hour, and on macOS after some minutes.
        "TCP_USER_TIMEOUT": (IDLE_S + PROBES * INTERVAL_S) * 1000,
    }
    for name, value in options.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def open_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket with keepalive for an address as `getaddrinfo` returns it: what aiohttp calls `socket_factory`."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    try:
        keep_alive(made)
    except OSError:
        made.close()
        raise
    return made


def is_lost(error: TimeoutError) -> bool:
    """Whether the kernel has given the peer up. Python has one class for that and for a deadline of the caller."""
    return error.errno == errno.ETIMEDOUT
