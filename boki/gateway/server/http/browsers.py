"""What browsers are told and asked: which pages may call this gateway, and how its answers are to be taken.

Without a token the gateway trusts every client that can reach it, which on a loopback address includes every page that
a browser of this machine shows. So pages of other origins are refused, unless they are listed (`cors.origins`), and so
are names that only pretend to be this machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Protocol, cast

from aiohttp.web import BaseRequest, Response, StreamResponse
from multidict import CIMultiDictProxy

from boki.api.http.exchange import INVOCATION, OUTCOME, POSITION, TRACEPARENT
from boki.config.loading import Cors
from boki.config.rules import is_loopback

EVERY_ANSWER: Final[Mapping[str, str]] = {"X-Content-Type-Options": "nosniff", "Server": "Boki"}
_EXPOSED: Final = f"{INVOCATION}, {POSITION}, {OUTCOME}, {TRACEPARENT}, Location, Retry-After"
_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
_HEADER_NAMES: Final = re.compile(r"[A-Za-z0-9_, -]{1,2000}")
_PREFLIGHT_S: Final = "600"


class _Connection(Protocol):
    """What `boki.gateway.server.http.connections` keeps of a connection, on which one request is answered at a time."""

    answer_headers: Mapping[str, str]


class Browsers:
    """The rules for pages. `trusts_all`: a token, or the operator's word, decides instead of the origin."""

    def __init__(self, cors: Cors, *, trusts_all: bool) -> None:
        self._origins = frozenset(cors.listed)
        self._credentials = cors.credentials
        self._trusts_all = trusts_all

    def note(self, request: BaseRequest) -> None:
        """Before anything is answered: which headers the answer gets."""
        if not self._origins:
            return
        headers = dict(EVERY_ANSWER)
        origin = request.headers.get("Origin", "")
        if "*" in self._origins:
            headers["Access-Control-Allow-Origin"] = "*"
        else:
            headers["Vary"] = "Origin"
            if origin in self._origins:
                headers["Access-Control-Allow-Origin"] = origin
                if self._credentials:
                    headers["Access-Control-Allow-Credentials"] = "true"
        headers["Access-Control-Expose-Headers"] = _EXPOSED
        cast("_Connection", request.protocol).answer_headers = headers

    def preflight(self, request: BaseRequest) -> Response | None:
        """The answer to a browser that asks what a page may send, if that page is listed. It carries no token."""
        headers = request.headers
        if request.method != "OPTIONS" or not self._lists(headers) or "Access-Control-Request-Method" not in headers:
            return None
        allowed = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Max-Age": _PREFLIGHT_S}
        wanted = headers.get("Access-Control-Request-Headers", "")
        if _HEADER_NAMES.fullmatch(wanted):
            allowed["Access-Control-Allow-Headers"] = wanted
        return Response(status=204, headers=allowed)

    def lets_in(self, headers: CIMultiDictProxy[str]) -> bool:
        """Whether a request without a token may come from where it does."""
        if self._trusts_all:
            return True
        origin = headers.get("Origin")
        is_listed = self._lists(headers)
        if headers.get("Sec-Fetch-Site") == "cross-site" and not is_listed:
            return False
        return _is_local(headers.get("Host", ""), None if is_listed else origin)

    def _lists(self, headers: CIMultiDictProxy[str]) -> bool:
        origin = headers.get("Origin")
        return origin is not None and (origin in self._origins or "*" in self._origins)


def dress(request: BaseRequest, answer: StreamResponse) -> None:
    """Give the answer the headers that every answer has. Once, before it is begun."""
    told = cast("_Connection", request.protocol).answer_headers
    own = answer.headers.get("Vary") if "Vary" in told else None
    for name, value in told.items():
        answer.headers[name] = value
    if own is not None:  # a function's answer differs by what it says, too
        answer.headers["Vary"] += f", {own}"


@lru_cache(maxsize=256)  # clients send the same name over and over, and reading an address is slow
def _is_local(host: str, origin: str | None) -> bool:
    """Whether a request to a loopback address comes from a client that is meant to reach it.

    >>> _is_local("localhost:8080", None), _is_local("rebound.example:8080", None)
    (True, False)
    >>> _is_local("127.0.0.1:8080", "http://127.0.0.1:8080"), _is_local("127.0.0.1:8080", "https://evil.example")
    (True, False)
    """
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return (not host or is_loopback(name)) and (origin is None or origin.partition("//")[2] == host)
