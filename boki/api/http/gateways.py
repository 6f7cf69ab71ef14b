"""The gateways of a system, as its clients see them: several addresses, or several gateways behind one. Pure."""

from __future__ import annotations

from typing import Final

from boki.api.http.exchange import HttpAnswer, HttpRequest, check_url, error_of
from boki.errors import ConnectionLost, DeadlineExceeded, Unavailable


class Gateways:
    """The addresses of a system's gateways, and the one that is asked now: the next one when that is gone."""

    def __init__(self, url: str) -> None:
        """`url`: one address, or several with commas between them."""
        self.urls: Final = (
            tuple(check_url(one) for one in url.split(",")) if isinstance(url, str) else (check_url(url),)
        )
        self.current = self.urls[0]

    def leave(self, url: str) -> None:
        """That gateway is gone: ask the next one, unless another request has found out before."""
        if url == self.current:
            self.current = self.urls[(self.urls.index(url) + 1) % len(self.urls)]

    def may_repeat(
        self, request: HttpRequest, error: Unavailable | ConnectionLost | DeadlineExceeded, attempt: int
    ) -> bool:
        """Whether the next one is asked the same, after that attempt (counted from 1) has ended so. What may have been
        carried out only if it does no harm twice; and each is asked once.
        """
        if attempt >= len(self.urls):
            return False
        if isinstance(error, ConnectionLost):
            return error.retryable and request.is_repeatable
        return isinstance(error, Unavailable)


MAX_REFUSALS: Final = 100
"""How often a request is sent again because a draining gateway refused it: each time costs one connection to it."""


def is_draining(answer: HttpAnswer) -> bool:
    """Whether a gateway that stops has refused a request, with the connection: it may be sent again elsewhere, or to
    another gateway that shares the address.
    """
    if answer.status != 503 or answer.headers.get("connection", "").lower() != "close":
        return False
    return error_of(answer).outcome == "not_applied"
