"""Connections to a lane that have not brought a pack yet: ZeroMQ itself accepts as many as there are descriptors.

A connection that proves nothing costs a descriptor until its handshake is given up, and disks need theirs. So only
some may be strangers at once: the oldest is shut down for a newer one. A stranger is one until its first pack is taken,
which is what a node connects for; a node that is shut down all the same connects again within half a second.

ZeroMQ accepts in a thread of its own, and this hears of it afterwards: for a moment there may be more. What
`boki.host.process` reserves is meant for that, too.
"""

from __future__ import annotations

import socket
from typing import Final

import zmq

from boki.host.process import file_limit, reserved_files

CHANGES: Final = int(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
"""The events of a lane's connections that are to be noted."""
DESCRIPTOR: Final = "__fd"
"""The property of a frame under which ZeroMQ keeps the descriptor that it came from."""
_MIN_COUNT: Final = 64
_MAX_COUNT: Final = 1024


class Strangers:
    """The strangers of the lane that listens at `port`, by their descriptors, the oldest first."""

    def __init__(self, port: int) -> None:
        share = (file_limit() - reserved_files()) // 16
        self.max_count = min(max(share, _MIN_COUNT), _MAX_COUNT)
        self._port = port
        self.descriptors: dict[int, None] = {}

    def note(self, event: int, descriptor: int) -> bool:
        """One of `CHANGES` of a connection. True if the oldest stranger was shut down for it."""
        self.descriptors.pop(descriptor, None)
        if event == zmq.EVENT_ACCEPTED:
            self.descriptors[descriptor] = None
        if len(self.descriptors) <= self.max_count:
            return False
        oldest = next(iter(self.descriptors))
        del self.descriptors[oldest]
        _shut_down(oldest, self._port)
        return True

    def know(self, frame: zmq.Frame) -> None:
        """The frame's connection has brought a pack that was taken."""
        try:
            self.descriptors.pop(int(frame.get(DESCRIPTOR)), None)
        except (zmq.ZMQError, ValueError):
            return


def _shut_down(descriptor: int, port: int) -> None:
    """End the connection; ZeroMQ, which owns the descriptor, closes it then.

    By now it may have closed it by itself, and the number may be that of something else: that is left alone.
    """
    try:
        connection = socket.socket(fileno=descriptor)  # takes no descriptor of its own: none may be left
    except OSError:
        return
    try:
        if connection.getsockname()[1] == port:
            connection.shutdown(socket.SHUT_RDWR)
    except (OSError, IndexError):
        return
    finally:
        connection.detach()
