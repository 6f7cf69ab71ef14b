"""The gateways of a system, as its clients see them: several addresses, or several gateways behind one. Pure."""

from __future__ import annotations

from typing import Final

from boki.api.http.exchange import OUTCOME, HttpAnswer, HttpRequest, check_url, error_of
from boki.errors import ConnectionLost, DeadlineExceeded, Unavailable, uncertain


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


_MAX_REFUSALS: Final = 100
"""How often a request is sent again because a draining gateway refused it: each time costs one connection to it."""
_CONNECT_S: Final = 10.0
_SHORTEST_S: Final = 0.001


class Attempts:
    """The attempts of one request: which gateway is asked, how much time is left, and which answer counts.

    Each gateway is asked once, and again after it has refused the request because it stops. A lone address is asked
    once more where its connection broke: it may be that of several gateways. A request that may have been applied is
    repeated only if that does no harm; from then on nothing can be told as not applied.
    """

    def __init__(self, gateways: Gateways, request: HttpRequest, now_s: float) -> None:
        self._gateways = gateways
        self._request = request
        self._until_s = now_s + request.timeout_s
        self._count = 0
        self._lost: ConnectionLost | None = None
        """How an earlier attempt ended that may have been applied."""

    def begin(self, now_s: float) -> tuple[str, float]:
        """The next attempt: the gateway's address, and the seconds for connecting, which leave as many for each of the
        gateways that were not asked yet.
        """
        self._count += 1
        others = max(len(self._gateways.urls) - self._count, 0)
        return self._gateways.current, min(_CONNECT_S, self.left_s(now_s) / (others + 1))

    def left_s(self, now_s: float) -> float:
        """Seconds until the deadline of the request; never 0, which means no deadline to those who wait."""
        return max(self._until_s - now_s, _SHORTEST_S)

    def failed(self, url: str, error: Unavailable | ConnectionLost | DeadlineExceeded, now_s: float) -> None:
        """The attempt has ended so: raises what the caller is to be told, unless the next gateway is to be asked."""
        self._gateways.leave(url)
        most = len(self._gateways.urls)
        if isinstance(error, DeadlineExceeded):
            raise error
        if isinstance(error, ConnectionLost):
            most = max(most, 2)
            if self._request.is_change:
                self._lost = self._lost or error
            if not (error.retryable and self._request.is_repeatable):
                raise error
        if self._count >= most or now_s >= self._until_s:
            raise self._lost or error

    def is_answered(self, url: str, answer: HttpAnswer) -> bool:
        """Whether that is the answer for the caller; raises it as an error of unknown outcome if it denies what an
        earlier attempt may have done. False: ask again. What a function answers denies nothing, whatever its status.
        """
        if OUTCOME.lower() in answer.headers:
            return True
        if self._count <= _MAX_REFUSALS and is_draining(answer):
            self._gateways.leave(url)
            return False
        if self._lost is not None and answer.status >= 400:
            error = error_of(answer)
            if error.outcome == "not_applied":
                raise uncertain(error)
        return True


def is_draining(answer: HttpAnswer) -> bool:
    """Whether a gateway that stops has refused a request, with the connection: it may be sent again elsewhere, or to
    another gateway that shares the address.
    """
    if answer.status != 503 or answer.headers.get("connection", "").lower() != "close":
        return False
    return error_of(answer).outcome == "not_applied"
