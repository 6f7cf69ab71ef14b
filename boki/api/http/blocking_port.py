"""A gateway over HTTP for blocking code: requests, and a `BlockingLogPort` made of them. Any thread may use it."""

from __future__ import annotations

import http.client
import select
import threading
from collections.abc import Generator
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from boki.api.http.exchange import (
    OUTCOME,
    STREAMED,
    HttpAnswer,
    HttpRequest,
    authorization,
    broken,
    closed,
    late,
    library_answer,
    library_request,
    log_answer,
    log_request,
    refused,
)
from boki.api.http.gateways import Attempts, Gateways
from boki.api.http.keepalive import is_lost, keep_alive
from boki.errors import ConnectionLost, DeadlineExceeded, Unavailable
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Answer, Operation

_IDLE_S: Final = 15.0
"""An idle connection is not used after this, so that no request runs into its end."""
_PART_BYTES: Final = 64 * 1024
_MAX_IDLE: Final = 64


class BlockingHttpPort:
    """Connections to gateways, made when they are needed and kept for the next request of any thread."""

    def __init__(self, url: str, token: str = "") -> None:
        self._gateways = Gateways(url)
        self.url = ",".join(self._gateways.urls)
        self._headers = {"User-Agent": "boki"} | authorization(token)
        self._lock = threading.Lock()
        self._idle: list[tuple[http.client.HTTPConnection, str, float]] = []
        """With the gateway's address, and since when."""
        self._is_closed = False

    def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.BlockingLogPort`. Threads may share `positions`."""
        seen: Positions = {}
        with self._lock:
            request = log_request(operation, positions, timeout_s)
        answer = log_answer(self.send(request), seen)
        self.raise_positions(positions, seen)
        return answer

    def ask_gateway(self, target: str, body: bytes, positions: Positions, timeout_s: float) -> bytes:
        """See `boki.api.port.BlockingGatewayPort`."""
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
        """The answer, whatever its status. `Unavailable` if nothing was sent; `ConnectionLost`, if there is no other
        gateway or the request must not be carried out twice; `DeadlineExceeded`.
        """
        first, *more = self.stream(request)
        return HttpAnswer(first.status, first.headers, b"".join(part.body for part in more)) if more else first

    def stream(self, request: HttpRequest) -> Generator[HttpAnswer, None, None]:
        """The answer, as `send`. One that is streamed comes first without a body, then part by part as it arrives."""
        attempts = Attempts(self._gateways, request, monotonic())
        while True:
            url, connect_s = attempts.begin(monotonic())
            answers = self._stream(url, request, attempts, connect_s)
            try:
                first = next(answers)
            except (Unavailable, ConnectionLost, DeadlineExceeded) as error:
                if self._is_closed:
                    raise
                attempts.failed(url, error, monotonic())
                continue
            if attempts.is_answered(url, first):
                yield first
                yield from answers
                return
            answers.close()

    def _stream(
        self, url: str, request: HttpRequest, attempts: Attempts, connect_s: float
    ) -> Generator[HttpAnswer, None, None]:
        if self._is_closed:
            raise closed()
        connection = self._take(url) or _connect(url, connect_s)
        timeout_s = attempts.left_s(monotonic())
        is_reusable = False
        headers: dict[str, str] = {}
        try:
            connection.sock.settimeout(timeout_s)
            target = urlsplit(url).path + request.target
            connection.request(request.method, target, request.body or None, self._headers | request.headers)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.headers.items()}
            if headers.get(OUTCOME.lower()) == STREAMED:
                yield HttpAnswer(response.status, headers, b"")
                while part := response.read1(_PART_BYTES):
                    yield HttpAnswer(response.status, headers, part)
                is_reusable = not response.will_close
            else:
                body = response.read()
                is_reusable = not response.will_close
                yield HttpAnswer(response.status, headers, body)
        except TimeoutError as error:
            raise (broken(url, error, headers) if is_lost(error) else DeadlineExceeded(late(url, timeout_s))) from None
        except (http.client.HTTPException, OSError) as error:
            raise broken(url, error, headers) from None
        finally:
            if is_reusable:
                self._give_back(url, connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close all connections that are not in use; those in use are closed after their answer."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection, *_ in idle:
            connection.close()

    def _take(self, url: str) -> http.client.HTTPConnection | None:
        """The connection that was used last, unless the gateway has closed it."""
        while True:
            with self._lock:
                last = next((kept for kept in reversed(self._idle) if kept[1] == url), None)
                if last is None:
                    return None
                self._idle.remove(last)
            connection, _, idle_since = last
            if monotonic() - idle_since < _IDLE_S and not _has_ended(connection):
                return connection
            connection.close()

    def _give_back(self, url: str, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < _MAX_IDLE:
                self._idle.append((connection, url, monotonic()))
                return
        connection.close()


def _connect(url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.connect()
        keep_alive(connection.sock)
    except OSError as error:
        connection.close()
        raise Unavailable(refused(url, error)) from None
    return connection


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether an idle connection can be read: no answer is due, so that is its end."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
