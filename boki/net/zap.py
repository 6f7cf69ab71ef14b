"""Who may connect: the answers to ZeroMQ's authentication protocol (ZAP, RFC 27), given from the event loop.

ZeroMQ asks with the public key that a connecting node has proved to hold. The answer is the name of the node whose key
it is, and that name comes with everything that the connection brings.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from typing import Final

import zmq
from zmq.utils import z85

from boki.net.keys import KeyRing
from boki.net.notices import Notices
from boki.net.sockets import NOBLOCK, POLLIN, Watched

_ADDRESS: Final = "inproc://zeromq.zap.01"


class Doorkeeper:
    """Answers for all sockets of a context that have a ZAP domain. It must be there before they are bound."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], loop: AbstractEventLoop, ring: KeyRing, notices: Notices
    ) -> None:
        self._ring = ring
        self._notices = notices
        socket = context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.bind(_ADDRESS)
        self._watched = Watched(socket, loop, self._read)

    def _read(self) -> None:
        while self._watched.events & POLLIN:
            asker, _, version, request, _, address, _, mechanism, *credentials = self._watched.socket.recv_multipart(
                NOBLOCK
            )
            name = self._name_of(mechanism, credentials, address.decode(errors="replace"))
            verdict = (b"200", b"OK", name.encode(), b"") if name else (b"400", b"unknown key", b"", b"")
            self._watched.socket.send_multipart([asker, b"", version, request, *verdict], NOBLOCK)

    def _name_of(self, mechanism: bytes, credentials: list[bytes], address: str) -> str:
        """The node that may come in; "" if it may not."""
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and len(credentials) == 1 else ""
        owner = self._ring.owner_of(key) if key else None
        if owner is None:
            self._notices.say(
                logging.WARNING,
                f"refused a connection from {address}: its key {key or 'is missing, and'} is not in cluster.keys",
            )
            return ""
        return owner.node

    def close(self) -> None:
        """Let nobody in any more."""
        self._watched.close()
