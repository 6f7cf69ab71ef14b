"""What the commands `boki flow` ask of a gateway: `/flow` and `/flow-schedule` over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

from boki.api.http.exchange import HttpRequest, json_answer
from boki.api.payloads.values import is_json
from boki.cli.connection import connect_port
from boki.cli.terminal import content_of

_TIMEOUT_S: Final = 30.0
SCHEDULES: Final = "/flow-schedule"


class Flows:
    """The workflows of a running system."""

    def __init__(self, url: str, token: str, book: str = "", root: str = "/flow") -> None:
        self._port = connect_port(url, token)
        self._book = book
        self._root = root

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._port.close()

    def get(self, *path: str, query: Mapping[str, object] | None = None, wait_s: float = 0.0) -> Any:
        """The JSON answer to a GET. Parameters that are empty are left out."""
        return json_answer(self._port.send(HttpRequest("GET", self._target(path, query), _TIMEOUT_S + wait_s)))

    def post(
        self,
        *path: str,
        body: bytes = b"",
        content_type: str = "",
        key: str = "",
        query: Mapping[str, object] | None = None,
        wait_s: float = 0.0,
    ) -> Any:
        """The JSON answer to a POST."""
        headers = {"Content-Type": content_type} if content_type else {}
        headers |= {"Idempotency-Key": key} if key else {}
        target = self._target(path, query)
        return json_answer(self._port.send(HttpRequest("POST", target, _TIMEOUT_S + wait_s, headers, body)))

    def _target(self, path: tuple[str, ...], query: Mapping[str, object] | None) -> str:
        parts = "".join(f"/{quote(part, safe='')}" for part in path)
        given = {name: value for name, value in {"book": self._book, **(query or {})}.items() if value not in ("", 0)}
        return f"{self._root}{parts}" + (f"?{urlencode(given, doseq=True)}" if given else "")


def typed_value(data: str, command: str) -> tuple[bytes, str]:
    """What was typed (`-`: what comes on stdin) and its content type: JSON if it is JSON, else text."""
    body = content_of(data, command, may_be_empty=True)
    if not body:
        return b"", ""
    return body, "application/json" if is_json(body) else "text/plain; charset=utf-8"
