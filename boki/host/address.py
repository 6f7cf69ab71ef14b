"""Checks the address at which clients are to connect, before anything is opened for them."""

from __future__ import annotations

import errno
import os
import socket

from boki.errors import Unavailable


def check_address(host: str, port: int, *, reuse_port: bool = False) -> None:
    """`Unavailable`, with the remedy, if this process could not listen there.

    `reuse_port`: other processes may listen there, too.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(address)
    except OSError as error:
        number = error.errno or 0  # of a name that leads nowhere it is negative, and no number of the system's
        why = os.strerror(number).lower() if number > 0 else error.strerror or str(error)
        other = {errno.EADDRINUSE: "choose another with --port, or 0 for any free one", errno.EACCES: "try --port 8080"}
        remedy = other.get(number, "is --host an address of this machine?")
        raise Unavailable(
            f"cannot listen at {host}:{port}: {why}; {remedy}", errno=number, why=why, retryable=False
        ) from None
