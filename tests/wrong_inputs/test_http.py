"""What a new user types wrong over HTTP, and the whole message that comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from yarl import URL

from boki.log.limits import Limits
from tests.gateway.fake_backend import refused, run, serving

_JSON = {"Content-Type": "application/json"}
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_APPEND_FIELDS = "base64, data, json, key, tags, text, when"
_OPEN = (
    "a JSON object may describe the record or be its data: send the header Content-Type: application/json if it "
    "describes the record (text, json or base64, with tags), or application/octet-stream if it is the data"
)


@dataclass(frozen=True)
class Row:
    """A request, and its refusal."""

    path: str
    body: bytes
    message: str
    status: int = 400
    headers: dict[str, str] = field(default_factory=lambda: dict(_JSON))
    settings: dict[str, Any] = field(default_factory=dict)


ROWS = {
    "A9 append of an object by curl": Row("/logbook/b/append", b'{"text":"a","tags":["x"]}', _OPEN, headers=_FORM),
    "A9 append of an object without a type": Row("/logbook/b/append", b'\n {"n":1}', _OPEN, headers={}),
    "A9 push of what looks like JSON": Row(
        "/queue/b/q",
        b'{"item": x}',
        "the body looks like JSON and is not (JSON is malformed: invalid character (byte 9)): fix it, or send it as "
        "it is with the header Content-Type: text/plain or application/octet-stream",
        headers=_FORM,
    ),
    "path that is not UTF-8": Row(
        "/function/%FF", b"", "the path is not UTF-8: '%FF'; percent-encode the bytes of its UTF-8, as %C3%A9 for é"
    ),
    "a form of several parts": Row(
        "/function/text",
        b"--x--",
        "the function takes text, not a form of several parts (curl -F): send the text itself (curl -d)",
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    ),
    "a long header": Row(
        "/function/text",
        b"",
        "not a valid HTTP request: its URL, or one of its headers, has more than 8,190 bytes: send what is long in the "
        "body",
        headers={"X-Long": "x" * 9000},
    ),
    "a tag without a name": Row(
        "/logbook/b/append?tag=",
        b"",
        "a tag must not be empty: leave it out (a read without one is of the whole book)",
        headers={"Content-Type": "text/plain"},
    ),
    "a parameter twice": Row("/queue/b/q/pop?count=1&count=2", b"", "query parameter 'count' may be given only once"),
    "B22": Row(
        "/function/greet",
        b"",
        "there is no function 'greet'; there are: echo, fail, hang, raw, shelf, text",
        404,
    ),
    "B29": Row(
        "/function/echo",
        b"[" + b"1," * 40_000 + b"1]",
        "a payload may have at most 65,536 bytes: append it to a LogBook in parts and pass their seqnums",
        413,
        settings={"limits": Limits(record_bytes=1 << 16, request_bytes=1 << 16)},
    ),
    "B42 none": Row(
        "/function/echo",
        b"1",
        "this gateway needs a token: send the header Authorization: Bearer TOKEN",
        401,
        settings={"token": "secret"},
    ),
    "B42 wrong": Row(
        "/function/echo",
        b"1",
        "the token is not the one of this gateway",
        401,
        _JSON | {"Authorization": "Bearer secrets"},
        settings={"token": "secret"},
    ),
    "B47": Row(
        "/logbook/b/append",
        b'{"text":"a","tag":"x"}',
        f"body: there is no field 'tag'; did you mean tags? Allowed: {_APPEND_FIELDS}",
    ),
    "B47 nested": Row(
        "/logbook/b/append_many",
        b'{"records":[{"text":"a","colour":"x"}]}',
        "records[0]: there is no field 'colour'. Allowed: base64, data, json, tags, text",
    ),
    "B47 in a union": Row(
        "/logbook/b/append",
        b'{"text":"a","when":[{"tag":"t","last":"1"}]}',
        "when[0]: there is no field 'last'. Allowed: count, last_seqnum, tag",
    ),
    "B48": Row(
        "/queue/b/q/settle",
        b'{"verb":"eat","receipts":[]}',
        "verb must be ack, nack, extend, release or bury, not 'eat'",
    ),
}


def test_where_a_subscription_may_start_is_said_in_full() -> None:
    """ "now", too."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http), http.get("/logbook/b/subscribe?start=soon") as response:
            body = await refused(response, 400, "invalid_argument")
            assert body["message"] == "start must be a seqnum or now, not 'soon'"

    run(scenario())


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_the_refusal_says_what_is_wrong_and_what_to_do(row: Row) -> None:
    """The whole message, with the status."""

    async def scenario() -> None:
        async with serving(**row.settings) as (_, _backend, http):
            skip = () if "Content-Type" in row.headers else ("Content-Type",)
            async with http.post(row.path, data=row.body, headers=row.headers, skip_auto_headers=skip) as response:
                codes = {400: "invalid_argument", 401: "unauthorized", 404: "no_such_function", 413: "too_large"}
                body = await refused(response, row.status, codes[row.status])
                assert body["message"] == row.message

    run(scenario())


@pytest.mark.parametrize("name", [".", ".."])
@pytest.mark.parametrize(("path", "what"), [("/logbook/{}/append", "book"), ("/queue/b/{}", "a queue's name")])
def test_names_that_urls_cannot_hold_are_refused(path: str, what: str, name: str) -> None:
    """Clients and proxies take them out of paths; they come percent-encoded at best."""

    async def scenario() -> None:
        async with serving() as (gateway, _backend, http):
            url = URL(gateway.url + path.format("%2E" * len(name)), encoded=True)
            async with http.post(url, data=b"x", headers={"Content-Type": "text/plain"}) as response:
                body = await refused(response, 400, "invalid_argument")
                assert body["message"] == f"{what} must not be {name!r}, which URLs cannot hold: choose another name"

    run(scenario())
