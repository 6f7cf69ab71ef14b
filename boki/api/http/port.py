"""A gateway over HTTP for `async` code: requests, and a `LogPort` made of them."""

from __future__ import annotations

import asyncio
from io import BytesIO
from math import inf
from time import monotonic
from typing import Final

import aiohttp

from boki.api.http.exchange import (
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
    of_another_loop,
    refused,
)
from boki.api.http.gateways import Attempts, Gateways
from boki.api.http.keepalive import is_lost, open_socket
from boki.errors import ConnectionLost, DeadlineExceeded, Unavailable
from boki.log.metalog import Positions
from boki.log.operations import Answer, Operation

_IDLE_S: Final = 15.0
"""An idle connection is closed before the gateway would close it, so that no request runs into its end."""
_ONE_PIECE_BYTES: Final = 256 * 1024


class HttpPort:
    """Connections to gateways, made when they are needed. Belongs to the event loop that uses it first."""

    def __init__(self, url: str, token: str = "", *, max_connections: int = 1024) -> None:
        self._gateways = Gateways(url)
        self.url = ",".join(self._gateways.urls)
        self._headers = authorization(token)
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.LogPort`."""
        return log_answer(await self.send(log_request(operation, positions, timeout_s)), positions)

    async def ask_gateway(self, target: str, body: bytes, positions: Positions, timeout_s: float) -> bytes:
        """See `boki.api.port.GatewayPort`."""
        return library_answer(await self.send(library_request(target, body, positions, timeout_s)), positions)

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """The answer, whatever its status. `Unavailable` if nothing was sent; `ConnectionLost`, if there is no other
        gateway or the request must not be carried out twice; `DeadlineExceeded`.
        """
        attempts = Attempts(self._gateways, request, monotonic())
        while True:
            url, connect_s = attempts.begin(monotonic())
            try:
                answer = await self._send(url, request, attempts.left_s(monotonic()), connect_s)
            except (Unavailable, ConnectionLost, DeadlineExceeded) as error:
                if self._is_closed:
                    raise
                attempts.failed(url, error, monotonic())
            else:
                if attempts.is_answered(url, answer):
                    return answer

    async def _send(self, url: str, request: HttpRequest, timeout_s: float, connect_s: float) -> HttpAnswer:
        if self._is_closed:
            raise closed()
        timeout = aiohttp.ClientTimeout(
            total=timeout_s,
            connect=connect_s,
            ceil_threshold=inf,  # else what is above 5 s is rounded up to a whole second of the loop's clock
        )
        headers: dict[str, str] = {}
        try:
            async with self._open().request(
                request.method,
                url + request.target,
                data=_readable(request.body),
                headers=request.headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                body = await response.read()
                return HttpAnswer(response.status, headers, body)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unavailable(refused(url, error)) from None
        except TimeoutError as error:
            raise (broken(url, error, headers) if is_lost(error) else DeadlineExceeded(late(url, timeout_s))) from None
        except (aiohttp.ClientError, OSError) as error:
            raise broken(url, error, headers) from None

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            raise of_another_loop()
        if self._session is None:
            self._loop = loop
            self._session = aiohttp.ClientSession(
                headers=self._headers | {"User-Agent": "boki"},
                skip_auto_headers=("Content-Type", "Accept", "Accept-Encoding"),
                connector=aiohttp.TCPConnector(
                    limit=self._max_connections, keepalive_timeout=_IDLE_S, socket_factory=open_socket
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _readable(body: bytes) -> bytes | BytesIO | None:
    """What aiohttp takes: it writes large bytes in one go, which holds up the loop, and a stream in pieces."""
    return BytesIO(body) if len(body) > _ONE_PIECE_BYTES else body or None
