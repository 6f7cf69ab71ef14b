"""The head of an HTTP request as the function that it calls is given it (`ctx.request`)."""

from __future__ import annotations

from typing import Final

from aiohttp.web import BaseRequest

from boki.errors import TooLarge
from boki.gateway.server.http.arguments import check_query
from boki.gateway.server.http.routing import decoded
from boki.protocol.calls import RequestHead
from boki.protocol.routes import HttpRoute

MAX_HEAD_BYTES: Final = 64 * 1024
"""Headers and query of one request: what travels beside the payload must fit into a frame."""

_SECRETS: Final = frozenset({"authorization", "proxy-authorization"})
"""Not handed on: what proves the caller to the gateway is no function's business."""


def request_head(request: BaseRequest, route: HttpRoute | None = None, values: tuple[str, ...] = ()) -> RequestHead:
    """What a function may see of the request. `route`: its own one that the request came by, with these values."""
    # names are of a subclass of str, which no encoder takes
    given = request.headers.items()
    headers = tuple((str(name), header_text(value)) for name, value in given if name.lower() not in _SECRETS)
    query: tuple[tuple[str, str], ...] = ()
    if request.rel_url.raw_query_string:
        check_query(request)
        query = tuple(request.query.items())
    size_bytes = sum(len(name) + len(value) for name, value in (*headers, *query))
    if size_bytes > MAX_HEAD_BYTES:
        raise TooLarge(
            f"the headers and the query of a call may have {MAX_HEAD_BYTES:,} bytes, not {size_bytes:,}: send what is "
            "long in the body",
            field="headers",
            limit=MAX_HEAD_BYTES,
        )
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return RequestHead(
        request.method,
        request.rel_url.path,
        query,
        headers,
        peer[0] if isinstance(peer, tuple) else "",
        "" if route is None else route.text,
        () if route is None else _path_values(route, values),
    )


def header_text(value: str) -> str:
    r"""The value of a header as aiohttp gives it, which has lone surrogates for bytes that are not UTF-8: nothing can
    encode these. Such a value is ISO-8859-1, as HTTP has had it (RFC 9110, 5.5).

    >>> header_text("caf\udce9")
    'café'
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode(errors="surrogateescape").decode("iso-8859-1")
    return value


def _path_values(route: HttpRoute, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    pairs = zip(route.variables, values, strict=True)
    return tuple((name, decoded(value, f"path parameter {name} of {route.text}")) for name, value in pairs)
