"""A gateway over HTTP for blocking code: requests, and a `BlockingLogPort` made of them. Any thread may use it."""

from __future__ import annotations

import http.client
import select
import threading
from collections.abc import Generator
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from boki.errors import DeadlineExceeded, Unavailable
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Answer, Operation
from boki.runtime.http_exchange import (
    OUTCOME,
    STREAMED,
    HttpAnswer,
    HttpRequest,
    authorization,
    broken,
    check_url,
    closed,
    late,
    library_answer,
    library_request,
    log_answer,
    log_request,
    refused,
)

_CONNECT_TIMEOUT_S: Final = 10.0
_IDLE_S: Final = 15.0
"""An idle connection is not used after this, so that no request runs into its end."""
_PART_BYTES: Final = 64 * 1024
_MAX_IDLE: Final = 64


class BlockingHttpPort:
    """Connections to one gateway, made when they are needed and kept for the next request of any thread."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = check_url(url)
        parts = urlsplit(self.url)
        self._prefix = parts.path
        self._host = parts.hostname or ""
        self._port = parts.port
        self._connection_kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._headers = {"User-Agent": "boki"} | authorization(token)
        self._lock = threading.Lock()
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        self._is_closed = False

    def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.runtime.port.BlockingLogPort`. Threads may share `positions`."""
        seen: Positions = {}
        with self._lock:
            request = log_request(operation, positions, timeout_s)
        answer = log_answer(self.send(request), seen)
        self.raise_positions(positions, seen)
        return answer

    def ask_gateway(self, target: str, body: bytes, positions: Positions, timeout_s: float) -> bytes:
        """See `boki.runtime.port.BlockingGatewayPort`."""
        seen: Positions = {}
        with self._lock:
            request = library_request(target, body, positions, timeout_s)
        answer = library_answer(self.send(request), seen)
        self.raise_positions(positions, seen)
        return answer

    def raise_positions(self, positions: Positions, seen: Positions) -> None:
        """`merge_positions` for threads: none may put back what another has raised meanwhile."""
        with self._lock:
            merge_positions(positions, seen)

    def send(self, request: HttpRequest) -> HttpAnswer:
        """The answer, whatever its status. `Unavailable` if nothing was sent; `ConnectionLost`; `DeadlineExceeded`."""
        first, *more = self.stream(request)
        return HttpAnswer(first.status, first.headers, b"".join(part.body for part in more)) if more else first

    def stream(self, request: HttpRequest) -> Generator[HttpAnswer, None, None]:
        """The answer, as `send`. One that is streamed comes first without a body, then part by part as it arrives."""
        if self._is_closed:
            raise closed()
        connection = self._take() or self._connect(request.timeout_s)
        is_reusable = False
        headers: dict[str, str] = {}
        try:
            connection.sock.settimeout(request.timeout_s)
            connection.request(
                request.method, self._prefix + request.target, request.body or None, self._headers | request.headers
            )
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.headers.items()}
            if headers.get(OUTCOME.lower()) == STREAMED:
                yield HttpAnswer(response.status, headers, b"")
                while part := response.read1(_PART_BYTES):
                    yield HttpAnswer(response.status, headers, part)
            else:
                yield HttpAnswer(response.status, headers, response.read())
            is_reusable = not response.will_close
        except TimeoutError:
            raise DeadlineExceeded(late(self.url, request.timeout_s)) from None
        except (http.client.HTTPException, OSError) as error:
            raise broken(self.url, error, headers) from None
        finally:
            if is_reusable:
                self._give_back(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close all connections that are not in use; those in use are closed after their answer."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        connection = self._connection_kind(self._host, self._port, timeout=min(timeout_s, _CONNECT_TIMEOUT_S))
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise Unavailable(refused(self.url, error)) from None
        return connection

    def _take(self) -> http.client.HTTPConnection | None:
        """The connection that was used last, unless the gateway has closed it."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, idle_since = self._idle.pop()
            if monotonic() - idle_since < _IDLE_S and not _has_ended(connection):
                return connection
            connection.close()

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < _MAX_IDLE:
                self._idle.append((connection, monotonic()))
                return
        connection.close()


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether an idle connection can be read: nobody owes us an answer, so that is its end."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
