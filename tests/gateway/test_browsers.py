"""Pages in browsers: which are let in, and what every answer tells a browser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import aiohttp
import pytest
from aiohttp.web import BaseRequest, StreamResponse

from boki.config.loading import Cors, DevConfig, load
from boki.errors import ConfigError
from boki.gateway.server.http.browsers import dress
from tests.gateway.fake_backend import refused, run, serving

_LISTED = Cors(origins="https://app.example, http://localhost:5173")
_ALLOWED = "Access-Control-Allow-Origin"


def cors_of(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("Access-Control")}


@pytest.mark.parametrize(
    ("path", "status"), [("/healthz", 200), ("/function/none", 404), ("/logbook/b/subscribe", 200), ("/none", 404)]
)
def test_every_answer_is_taken_as_what_it_says_and_names_no_version(path: str, status: int) -> None:
    """No sniffing of content types, no version of a library, and no CORS unless it is configured."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            method = http.post if path.startswith("/function") else http.get
            async with method(path) as response:
                assert response.status == status
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Server"] == "Boki"
                assert not cors_of(response)

    run(scenario())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 401),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 401),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({}, 200),
    ],
)
def test_pages_of_other_sites_cannot_even_get_without_a_token(headers: Mapping[str, str], status: int) -> None:
    """A GET carries no Origin, but could hold streams and polls."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http), http.get("/status", headers=headers) as response:
            assert response.status == status
        async with serving(token="t") as (_, _backend, http):
            headers_too = {**headers, "Authorization": "Bearer t"}
            async with http.get("/status", headers=headers_too) as response:
                assert response.status == 200

    run(scenario())


def test_a_listed_origin_is_let_in_and_reads_the_answers() -> None:
    """Others are refused as before; caches are told that answers differ."""

    async def scenario() -> None:
        async with serving(cors=_LISTED) as (_, _backend, http):
            for origin in ("https://app.example", "http://localhost:5173"):
                headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
                async with http.post("/function/echo", data=b"1", headers=headers) as response:
                    assert response.status == 200
                    told = cors_of(response)
                    assert told.pop("Access-Control-Expose-Headers").startswith(
                        "Boki-Invocation, Boki-Position, Boki-Outcome"
                    )
                    assert told == {_ALLOWED: origin}
                    assert response.headers["Vary"] == "Origin"
            async with http.post("/function/echo", headers={"Origin": "https://evil.example"}) as response:
                await refused(response, 401, "unauthorized")
                assert _ALLOWED not in response.headers
                assert response.headers["Vary"] == "Origin"
            async with http.post("/function/none", headers={"Origin": "https://app.example"}) as response:
                assert response.headers[_ALLOWED] == "https://app.example"
                await refused(response, 404, "no_such_function")

    run(scenario())


@pytest.mark.parametrize(
    ("told", "own", "varies"),
    [
        ({"Vary": "Origin"}, {"Vary": "Accept-Language"}, "Origin, Accept-Language"),
        ({"Vary": "Origin"}, {}, "Origin"),
        ({}, {"Vary": "Accept-Language"}, "Accept-Language"),
        ({}, {}, None),
    ],
)
def test_what_a_functions_answer_varies_by_is_kept(
    told: Mapping[str, str], own: Mapping[str, str], varies: str | None
) -> None:
    """Else a cache would give one visitor the answer that was made for another."""
    answer = StreamResponse(headers=own)
    dress(cast("BaseRequest", SimpleNamespace(protocol=SimpleNamespace(answer_headers=told))), answer)
    assert answer.headers.get("Vary") == varies


def test_a_preflight_is_answered_without_a_token() -> None:
    """For listed origins only; the request itself needs the token."""

    async def scenario() -> None:
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-mine"}
        async with serving(cors=_LISTED, token="t") as (_, backend, http):
            origin = {"Origin": "https://app.example"}
            async with http.options("/function/echo", headers=asks | origin) as response:
                assert (response.status, await response.read()) == (204, b"")
                assert response.headers[_ALLOWED] == "https://app.example"
                assert "POST" in response.headers["Access-Control-Allow-Methods"]
                assert response.headers["Access-Control-Allow-Headers"] == "authorization,x-mine"
            for other in ({"Origin": "https://evil.example"}, {}):
                async with http.options("/function/echo", headers=asks | other) as response:
                    await refused(response, 401, "unauthorized")
            async with http.post("/function/echo", headers=origin) as response:
                await refused(response, 401, "unauthorized")
            assert not backend.started

    run(scenario())


@pytest.mark.parametrize(
    ("cors", "allowed", "credentials"),
    [
        (Cors(origins="*"), "*", None),
        (Cors(origins="https://app.example", credentials=True), "https://app.example", "true"),
    ],
    ids=["all", "credentials"],
)
def test_credentials_are_for_listed_origins_alone(cors: Cors, allowed: str, credentials: str | None) -> None:
    """With * there are none."""

    async def scenario() -> None:
        headers = {"Origin": "https://app.example"}
        async with (
            serving(cors=cors) as (_, _backend, http),
            http.post("/function/echo", headers=headers) as response,
        ):
            assert response.headers[_ALLOWED] == allowed
            assert response.headers.get("Access-Control-Allow-Credentials") == credentials

    run(scenario())


@pytest.mark.parametrize("origins", ['["https://a.b", "https://c.d"]', '"https://a.b, https://c.d"'])
def test_a_file_may_list_origins_as_an_array(tmp_path: Path, origins: str) -> None:
    """As people write several values in TOML; or as a text with commas, like the flag."""
    file = tmp_path / "boki.toml"
    file.write_text(f"[cors]\norigins = {origins}\n")
    assert load(DevConfig, flags={}, environment={}, file=file).cors.listed == ["https://a.b", "https://c.d"]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (
            {"cors.origins": "app.example"},
            "cors.origins: 'app.example' is not an origin: write it like https://app.example or http://localhost:5173",
        ),
        ({"cors.origins": "*, https://a.b"}, "cors.origins: * is every origin: write it alone, or list the origins"),
        (
            {"cors.origins": "*", "cors.credentials": "true"},
            "cors.credentials needs a list of cors.origins: with * any page could act for its visitor",
        ),
    ],
)
def test_a_wrong_list_of_origins_is_refused_at_the_start(flags: dict[str, str], problem: str) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigError) as caught:
        load(DevConfig, flags=flags, environment={})
    assert caught.value.problems == [problem]
