"""One connection to a peer's lane, made again when ZeroMQ has given it up.

ZeroMQ connects again by itself after most ends of a connection, but never after one that it calls an error of protocol:
a refused key, a stranger at that port, a damaged byte. Such a socket would stay silent forever.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from typing import Final

import zmq

from boki.net.notices import Notices
from boki.net.sockets import FAILURES, Monitor, Watched

RENEW_S: Final = 1.0
"""How long ZeroMQ has to connect again, before its socket is replaced."""
_LOST: Final = zmq.EVENT_DISCONNECTED
_OPEN: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED
_EVENTS: Final = sum(FAILURES) | _LOST | _OPEN


class Connection:
    """A DEALER from `make`, connected to `address`. `ready` is called when it may be read or written, `opened`
    each time that it has been made and both sides are proven, and `lost` when one that was made has ended.

    `zmq.ZMQError` if the address cannot be one.
    """

    def __init__(
        self,
        make: Callable[[], zmq.Socket[bytes]],
        address: str,
        loop: AbstractEventLoop,
        ready: Callable[[], None],
        what: str,
        notices: Notices,
        opened: Callable[[], None] = lambda: None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._make = make
        self._address = address
        self._loop = loop
        self._ready = ready
        self._what = what
        self._notices = notices
        self._opened = opened
        self._lost = lost
        self._is_open = False
        self._timer: TimerHandle | None = None
        self._open()

    def _open(self) -> None:
        socket = self._make()
        monitor = Monitor(socket, self._loop, _EVENTS, self._on_event)
        socket.ipv6 = "[" in self._address  # a name is looked up as IPv4: ZeroMQ tries one address only
        try:
            socket.connect(self._address)
        except zmq.ZMQError:
            monitor.close()
            socket.close(linger=0)
            raise
        self._monitor = monitor
        self.watched = Watched(socket, self._loop, self._ready)

    def _on_event(self, event: int, _value: int) -> None:
        if event in FAILURES:
            self._notices.say(logging.WARNING, f"the connection to {self._what} was refused: {FAILURES[event]}")
        if event == _OPEN:
            self._stop_timer()
            self._is_open = True
            self._opened()
            return
        if self._timer is None:
            self._timer = self._loop.call_later(RENEW_S, self._renew)
        if self._is_open:
            self._is_open = False
            self._lost()

    def _renew(self) -> None:
        self._timer = None
        monitor, watched = self._monitor, self.watched
        try:
            self._open()
        except zmq.ZMQError as error:
            self._notices.say(logging.WARNING, f"{self._what} cannot be connected to again: {error}")
            self._timer = self._loop.call_later(RENEW_S, self._renew)
            return
        monitor.close()
        watched.close()
        self._ready()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Close it; what ZeroMQ holds is lost."""
        self._stop_timer()
        self._monitor.close()
        self.watched.close()
