"""Pages of a gateway besides calls and the log, as requests and answers: of the system, and of libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from boki.api.http.exchange import BUNDLE_CONTENT_TYPE, KEY, POSITION, HttpAnswer, HttpRequest, json_answer
from boki.api.http.response import CONTENT_TYPES
from boki.log.metalog import Positions, format_positions, merge_positions, parse_positions
from boki.protocol.calls import FunctionInfo, Payload
from boki.protocol.deployments import Deployment, VersionInfo

DEPLOY_S: Final = 180.0
"""How long a deployment may take: every module is imported before it counts."""
_TIMEOUT_S: Final = 30.0


def get(target: str) -> HttpRequest:
    """Ask for a page."""
    return HttpRequest("GET", target, _TIMEOUT_S)


def page_request(
    path: str,
    positions: Positions,
    query: Mapping[str, object] | None,
    payload: Payload | None,
    key: str,
    *,
    posts: bool,
    wait_s: float,
) -> HttpRequest:
    """A request to a page of a library. Parameters that are empty are left out."""
    given = {name: value for name, value in (query or {}).items() if value not in ("", 0, None, [])}
    target = path + (f"?{urlencode(given, doseq=True)}" if given else "")
    headers = {} if payload is None else {"Content-Type": CONTENT_TYPES[payload.encoding]}
    if key:
        headers[KEY] = key
    if positions:
        headers[POSITION] = format_positions(positions)
    body = b"" if payload is None else payload.data
    return HttpRequest("POST" if posts else "GET", target, _TIMEOUT_S + wait_s, headers, body)


def page_answer(answer: HttpAnswer, positions: Positions) -> dict[str, Any]:
    """The JSON of such a page; raises the error that it tells. `positions` are raised to what it has seen."""
    found = json_answer(answer)
    if position := answer.headers.get(POSITION.lower()):
        merge_positions(positions, parse_positions(position))
    return found


def deploy(bundle: bytes, is_forced: bool, timeout_s: float) -> HttpRequest:
    """Deploy a bundle."""
    target = "/functions/versions?force=true" if is_forced else "/functions/versions"
    return HttpRequest("POST", target, timeout_s, {"Content-Type": BUNDLE_CONTENT_TYPE}, bundle)


def use(version: int | str) -> HttpRequest:
    """Go back to a version."""
    return HttpRequest("POST", f"/functions/versions/{quote(str(version), safe='')}/use", DEPLOY_S)


def deployment(answer: HttpAnswer) -> Deployment:
    """What was deployed."""
    return msgspec.convert(json_answer(answer), Deployment)


def versions(answer: HttpAnswer) -> list[VersionInfo]:
    """What is kept of deployments."""
    return msgspec.convert(json_answer(answer)["versions"], list[VersionInfo])


def functions(answer: HttpAnswer) -> list[FunctionInfo]:
    """What can be called."""
    return msgspec.convert(json_answer(answer)["functions"], list[FunctionInfo])


def document(answer: HttpAnswer) -> dict[str, Any]:
    """A JSON object."""
    return msgspec.convert(json_answer(answer), dict[str, Any])
