"""ZeroMQ sockets as these links need them: made with our options, and read from the event loop.

A ZeroMQ socket's file descriptor is no stream: it becomes readable when the socket's state *may* have changed, and any
call on the socket may take that sign away. So whoever has touched a socket looks at its EVENTS before waiting again.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from itertools import count
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from boki.net.keys import NodeKeys

NOBLOCK: Final = int(zmq.NOBLOCK)
POLLIN: Final = int(zmq.POLLIN)
POLLOUT: Final = int(zmq.POLLOUT)
QUEUED_PACKS: Final = 64
"""How many packs ZeroMQ may hold for a connection, at each of its ends: what waits beyond is ours to count in bytes."""
ZAP_DOMAIN: Final = b"boki"

_RECONNECT_MS: Final = 20
_RECONNECT_MAX_MS: Final = 500
_HANDSHAKE_MS: Final = 5_000
_SILENT_MS: Final = 6_000
"""A connection whose other side does not acknowledge for this long is closed: TCP alone would wait for minutes."""
_KEEPALIVE_IDLE_S: Final = 2
_KEEPALIVE_INTERVAL_S: Final = 1
_KEEPALIVE_COUNT: Final = _SILENT_MS // 1000 - _KEEPALIVE_IDLE_S
FAILURES: Final[dict[int, str]] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the other side refuses this node's key",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the two sides do not speak the same protocol, or their cluster keys differ",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "it ended before it was open: other cluster keys, or a side that is stuck",
}
"""Events of connections that came to nothing because the two sides do not agree."""
_numbers: Final = count()


class Watched:
    """A socket whose `ready` is called by the loop when its state may have changed."""

    def __init__(self, socket: zmq.Socket[bytes], loop: AbstractEventLoop, ready: Callable[[], None]) -> None:
        self.socket = socket
        self._loop = loop
        self._descriptor = int(socket.getsockopt(zmq.FD))
        loop.add_reader(self._descriptor, ready)

    @property
    def events(self) -> int:
        """What can be done now: `POLLIN`, `POLLOUT`. Asking is what makes the descriptor give signs again."""
        return int(self.socket.getsockopt(zmq.EVENTS))

    def close(self) -> None:
        """Stop watching, and drop everything that was not sent."""
        self._loop.remove_reader(self._descriptor)
        self.socket.close(linger=0)


class Monitor:
    """Tells what happens to a socket's connections: `on_event` gets each of `events`, and its value."""

    def __init__(
        self, socket: zmq.Socket[bytes], loop: AbstractEventLoop, events: int, on_event: Callable[[int, int], None]
    ) -> None:
        self._on_event = on_event
        self._socket = socket
        address = f"inproc://monitor.{next(_numbers)}"
        socket.monitor(address, events)
        listener = socket.context.socket(zmq.PAIR)
        listener.linger = 0
        listener.rcvhwm = 0  # with a bound, ZeroMQ's own thread would wait for us, and then everybody for it
        listener.connect(address)
        self._is_closed = False
        self._watched = Watched(listener, loop, self._read)
        loop.call_soon(self._read)  # its descriptor gives a first sign only after a first look

    def _read(self) -> None:
        while not self._is_closed and self._watched.events & POLLIN:
            told = parse_monitor_message(self._watched.socket.recv_multipart(NOBLOCK))
            self._on_event(int(told["event"]), int(told["value"]))

    def close(self) -> None:
        """Stop watching, before the socket itself is closed."""
        self._is_closed = True
        self._socket.monitor(None, 0)
        self._watched.close()


def make_router(
    context: zmq.Context[zmq.Socket[bytes]], max_frame_bytes: int, keys: NodeKeys | None
) -> zmq.Socket[bytes]:
    """The receiving end of a lane, not bound yet."""
    socket = _make(context, zmq.ROUTER, max_frame_bytes)
    if keys is not None:
        socket.curve_server = True
        socket.curve_secretkey = keys.secret.encode()
        socket.zap_domain = ZAP_DOMAIN
    return socket


def make_dealer(
    context: zmq.Context[zmq.Socket[bytes]], max_frame_bytes: int, keys: NodeKeys | None, server_key: str, proxy: str
) -> zmq.Socket[bytes]:
    """The sending end of a lane to one peer, not connected yet."""
    socket = _make(context, zmq.DEALER, max_frame_bytes)
    socket.immediate = True  # nothing waits inside of ZeroMQ for a connection, nor outlives one
    socket.reconnect_ivl = _RECONNECT_MS
    socket.reconnect_ivl_max = _RECONNECT_MAX_MS
    if keys is not None:
        socket.curve_serverkey = server_key.encode()
        socket.curve_publickey = keys.own.public.encode()
        socket.curve_secretkey = keys.secret.encode()
    if proxy:
        socket.socks_proxy = proxy.encode()
    return socket


def _make(context: zmq.Context[zmq.Socket[bytes]], kind: zmq.SocketType, max_frame_bytes: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.linger = 0
    socket.maxmsgsize = max_frame_bytes
    socket.sndhwm = QUEUED_PACKS
    socket.rcvhwm = QUEUED_PACKS
    socket.handshake_ivl = _HANDSHAKE_MS
    # No ZMQ_HEARTBEAT_*: libzmq ends the process if one falls due on a connection that its peer closed while this side
    # could not read (see `boki.net`). The kernel probes instead.
    socket.tcp_maxrt = _SILENT_MS
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = _KEEPALIVE_IDLE_S
    socket.tcp_keepalive_intvl = _KEEPALIVE_INTERVAL_S
    socket.tcp_keepalive_cnt = _KEEPALIVE_COUNT
    return socket
