"""LogBooks over HTTP as JSON: every route, its answers, and what it refuses."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

import aiohttp
import pytest

from boki.errors import ConditionFailed, ConnectionLost, Unavailable
from boki.gateway.core import Budget
from boki.log.limits import Limits
from boki.log.operations import Append, Read
from tests.gateway.fake_backend import refused, run, serving

MAX = str((1 << 63) - 1)


async def ask(http: aiohttp.ClientSession, method: str, path: str, **arguments: Any) -> Any:
    """The JSON answer of a request that succeeds."""
    async with http.request(method, path, **arguments) as response:
        body = await response.json()
        assert response.status == 200, body
        return body


async def append(http: aiohttp.ClientSession, book: str = "b", **body: Any) -> str:
    seqnum: str = (await ask(http, "POST", f"/logbook/{book}/append", json=body))["seqnum"]
    return seqnum


async def read(http: aiohttp.ClientSession, query: str = "", book: str = "b") -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = (await ask(http, "GET", f"/logbook/{book}/read{query}"))["records"]
    return records


# Appends


@pytest.mark.parametrize(
    ("body", "data"),
    [
        ({"text": "grüß"}, {"text": "grüß"}),
        ({"data": "x"}, {"text": "x"}),
        ({"json": {"a": [1, None]}}, {"text": '{"a": [1, null]}'}),
        ({"json": None}, {"text": "null"}),
        ({"base64": "/wA="}, {"base64": "/wA="}),
        ({"base64": "aGk="}, {"text": "hi"}),
        ({"text": ""}, {"text": ""}),
    ],
)
def test_data_goes_in_in_four_forms_and_comes_out_in_two(body: dict[str, Any], data: dict[str, str]) -> None:
    """Text if it is UTF-8, base64 if not: the reader need not know how it was written."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            seqnum = await append(http, tags=["t", "ü"], **body)
            record = await ask(http, "GET", f"/logbook/b/records/{seqnum}")
            assert record == {"seqnum": seqnum, "tags": ["t", "ü"], "time_us": 1_700_000_000_000_000, **data}

    run(scenario())


def test_a_raw_body_is_the_data_itself() -> None:
    """Tags stand in the query."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            data = bytes(range(256))
            await ask(http, "POST", "/logbook/b/append?tag=a&tag=%C3%BC", data=data)
            (record,) = await read(http)
            assert (record["tags"], record["base64"]) == (["a", "ü"], b64encode(data).decode())

    run(scenario())


def test_append_many_appends_neighbours_in_order() -> None:
    """All forms of data in one request."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            body = {"records": [{"text": "1", "tags": ["t"]}, {"json": 2}, {"base64": "Mw=="}]}
            answer = await ask(http, "POST", "/logbook/b/append_many", json=body)
            assert [record["seqnum"] for record in await read(http)] == answer["seqnums"]
            assert [record["text"] for record in await read(http)] == ["1", "2", "3"]
            numbers = list(map(int, answer["seqnums"]))
            assert numbers == list(range(numbers[0], numbers[0] + 3))

    run(scenario())


def test_conditions_hold_or_the_append_is_409() -> None:
    """With the tag's last record, from which the caller can continue."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            first = await append(http, text="1", tags=["t"], when={"tag": "t", "last_seqnum": "0"})
            async with http.post("/logbook/b/append", json={"text": "2", "when": [{"tag": "t"}]}) as response:
                body = await refused(response, 409, "condition_failed")
                assert body["details"]["actual_seqnum"] == first
            await append(http, text="2", tags=["t"], when=[{"tag": "t", "last_seqnum": first}])
            assert [record["text"] for record in await read(http)] == ["1", "2"]
            await append(http, text="3", tags=["!n"], when={"tag": "!n", "count": 0})
            counted = {"text": "4", "tags": ["!n"], "when": {"tag": "!n", "count": 0}}
            async with http.post("/logbook/b/append", json=counted) as response:
                body = await refused(response, 409, "condition_failed")
                assert (body["details"]["expected_count"], body["details"]["actual_count"]) == (0, 1)
            both = {"text": "4", "when": {"tag": "!n", "count": 1, "last_seqnum": "0"}}
            async with http.post("/logbook/b/append", json=both) as response:
                await refused(response, 400, "invalid_argument")

    run(scenario())


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("in_header", [False, True])
def test_the_same_key_appends_once(many: bool, in_header: bool) -> None:
    """A repeat gets the first seqnums; other records under the key are 409; the header and the body may say the key."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            headers = {"Idempotency-Key": "k"} if in_header else {}
            key = {} if in_header else {"key": "k"}

            async def attempt(text: str, tags: list[str]) -> tuple[int, Any]:
                record = {"text": text, "tags": tags}
                body = {"records": [record, record]} if many else record
                path = f"/logbook/b/append{'_many' if many else ''}"
                async with http.post(path, json={**body, **key}, headers=headers) as response:
                    return response.status, await response.json()

            first = await attempt("1", ["t"])
            assert first[0] == 200
            assert await asyncio.gather(*(attempt("1", ["t"]) for _ in range(5))) == [first] * 5
            for text, tags in (("2", ["t"]), ("1", []), ("1", ["t", "u"])):
                status, body = await attempt(text, tags)
                assert (status, body["code"]) == (409, "key_reused")
            assert len(await read(http)) == (2 if many else 1)

    run(scenario())


def test_a_repetition_whose_records_were_trimmed_gets_the_first_seqnum() -> None:
    """There is nothing left to compare with, and nothing is appended twice."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            first = await append(http, text="1", key="k")
            await ask(http, "POST", "/logbook/b/trim", json={"before": MAX})
            assert await append(http, text="1", key="k") == first
            assert await read(http) == []

    run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("append", b"", 400, "body"),
        ("append", b"[1]", 400, "body"),
        ("append", b'{"text":', 400, "body"),
        ("append", b'\xff{"text": "a"}', 400, "body"),
        ("append", b'{"json": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "body"),
        ("append", b'{"text": "\xff"}', 400, "body"),
        ("append", b"{}", 400, "data"),
        ("append", b'{"text": "a", "json": 1}', 400, "data"),
        ("append", b'{"text": 5}', 400, "text"),
        ("append", b'{"base64": "!"}', 400, "base64"),
        ("append", b'{"text": "a", "tagz": []}', 400, "body"),
        ("append", b'{"text": "a", "tags": "t"}', 400, "tags"),
        ("append", b'{"text": "a", "tags": ["t", 5]}', 400, "tags[1]"),
        ("append", b'{"text": "a", "tags": ["\\u0000"]}', 400, "tags"),
        ("append", b'{"text": "a", "tags": [""]}', 400, "tags"),
        ("append", b'{"text": "a", "tags": ["t", "t"]}', 400, "tags"),
        ("append", b'{"text": "a", "when": 1}', 400, "when"),
        ("append", b'{"text": "a", "when": {"tag": "t", "last_seqnum": "-1"}}', 400, "when.last_seqnum"),
        (
            "append",
            b'{"text": "a", "when": {"tag": "t", "last_seqnum": "99999999999999999999"}}',
            400,
            "when.last_seqnum",
        ),
        ("append", b'{"text": "a", "key": ""}', 400, "key"),
        ("append", b'{"text": "a", "key": "\\u0007"}', 400, "key"),
        ("append_many", b'{"records": []}', 400, "records"),
        ("append_many", b'{"records": [{"text": "a"}, {}]}', 400, "data"),
        ("append_many", b"{}", 400, "body"),
        ("trim", b'{"before": "x"}', 400, "before"),
        ("trim", b'{"before": -1}', 400, "before"),
        ("trim", b"{}", 400, "body"),
    ],
)
def test_bad_bodies_are_refused_and_the_field_is_named(path: str, body: bytes, status: int, field: str) -> None:
    """Nothing reaches the log."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            before = len(backend.operations)
            headers = {"Content-Type": "application/json"}
            async with http.post(f"/logbook/b/{path}", data=body, headers=headers) as response:
                error = await response.json()
                assert (response.status, error["details"].get("field"), error["outcome"]) == (
                    status,
                    field,
                    "not_applied",
                )
            assert len(backend.operations) == before

    run(scenario())


LIMITS = Limits(record_bytes=100, request_bytes=1000, aux_bytes=50, tags_per_record=2, tag_bytes=10, page_records=10)


@pytest.mark.parametrize(
    ("method", "path", "json"),
    [
        ("POST", "/logbook/b/append", {"text": "x" * 101}),
        ("POST", "/logbook/b/append", {"text": "x" * 1001}),
        ("POST", "/logbook/b/append", {"text": "a", "tags": ["a", "b", "c"]}),
        ("POST", "/logbook/b/append", {"text": "a", "tags": ["x" * 11]}),
        ("POST", "/logbook/b/append_many", {"records": [{"text": "x" * 101}]}),
        ("PUT", "/logbook/b/records/1/auxdata", "x" * 60),
        ("GET", "/logbook/b/read?limit=11", None),
        ("GET", "/logbook?limit=11", None),
    ],
)
def test_what_is_over_a_limit_is_413_and_the_limit_is_named(method: str, path: str, json: Any) -> None:
    """Records, requests, tags, auxiliary data and pages."""

    async def scenario() -> None:
        async with serving(limits=LIMITS) as (_, _backend, http):
            async with http.request(method, path, json=json) as response:
                body = await refused(response, 413, "too_large")
                assert body["details"]["limit"] in {2, 10, 50, 100, 1000}
                assert ("limits.aux_bytes" in body["message"]) == path.endswith("auxdata")
            async with http.get("/logbook/b/read?limit=10") as response:
                assert (await response.json())["records"] == []

    run(scenario())


# Reads


def test_reads_take_ranges_tags_limits_and_directions() -> None:
    """Pages follow each other without a hole or a repeat."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            seqnums = [await append(http, text=str(n), tags=["even"] if n % 2 == 0 else []) for n in range(6)]
            texts = lambda records: [record["text"] for record in records]  # noqa: E731
            assert texts(await read(http, "?tag=even")) == ["0", "2", "4"]
            assert texts(await read(http, f"?start={seqnums[1]}&stop={seqnums[4]}")) == ["1", "2", "3"]
            assert texts(await read(http, "?backward=true&limit=2")) == ["4", "5"]
            page = await ask(http, "GET", "/logbook/b/read?limit=4")
            assert (texts(page["records"]), page["is_end"]) == (["0", "1", "2", "3"], False)
            page = await ask(http, "GET", f"/logbook/b/read?limit=4&start={page['next_start']}")
            assert (texts(page["records"]), page["is_end"]) == (["4", "5"], True)
            assert texts(await read(http, "?start_time_us=1800000000000000")) == []
            for path, text in (
                (f"read_next?min_seqnum={seqnums[3]}", "3"),
                (f"read_next?tag=even&min_seqnum={seqnums[3]}", "4"),
                (f"read_prev?max_seqnum={seqnums[3]}", "3"),
                (f"read_prev?tag=even&max_seqnum={seqnums[3]}", "2"),
                ("check_tail", "5"),
                ("check_tail?tag=even&fresh=true", "4"),
            ):
                assert (await ask(http, "GET", f"/logbook/b/{path}"))["record"]["text"] == text
            assert await ask(http, "GET", "/logbook/b/read_next?tag=none") == {"record": None}

    run(scenario())


@pytest.mark.parametrize("path", ["read_next", "read"])
def test_a_long_poll_is_answered_by_the_append_it_waits_for(path: str) -> None:
    """Or, when its time is over, with nothing."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            poll = asyncio.create_task(ask(http, "GET", f"/logbook/b/{path}?tag=t&wait_s=20"))
            await backend.until_waiting()
            assert gateway.core.poll_count == 1
            await append(http, text="no")
            await append(http, text="yes", tags=["t"])
            answer = await poll
            found = answer["record"] if path == "read_next" else answer["records"][0]
            assert found["text"] == "yes"
            assert gateway.core.poll_count == 0

    run(scenario())


def test_a_poll_whose_time_is_over_answers_nothing() -> None:
    """That is an answer and no error."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            poll = asyncio.create_task(ask(http, "GET", "/logbook/b/read?wait_s=20"))
            await backend.until_waiting()
            backend.expire_waits()
            assert (await poll)["records"] == []

    run(scenario())


def test_trimmed_and_missing_records_are_told_apart() -> None:
    """410 says where to continue; 404 says that there never was one."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            seqnums = [await append(http, text=str(n), tags=["t"]) for n in range(3)]
            await ask(http, "POST", "/logbook/b/trim", json={"before": seqnums[1]})
            async with http.get(f"/logbook/b/records/{seqnums[0]}") as response:
                body = await refused(response, 410, "trimmed")
                assert body["details"]["next_seqnum"] == seqnums[1]
            async with http.get(f"/logbook/b/records/{int(seqnums[2]) + 5}") as response:
                await refused(response, 404, "not_found")
            await ask(http, "POST", "/logbook/b/trim", json={"before": seqnums[2], "tag": "t"})
            assert [record["text"] for record in await read(http, "?tag=t")] == ["2"]
            assert (await ask(http, "GET", "/logbook/b/read"))["first_seqnum"] == seqnums[1]

    run(scenario())


def test_auxiliary_data_comes_back_with_its_record() -> None:
    """In the same two forms as data."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            seqnum = await append(http, text="1")
            for data, form in ((b"view", {"text": "view"}), (b"\xff", {"base64": "/w=="})):
                await ask(http, "PUT", f"/logbook/b/records/{seqnum}/auxdata", data=data)
                assert (await read(http))[0]["auxdata"] == form

    run(scenario())


def test_books_are_listed_bounded_and_deleted() -> None:
    """A page at a time, by name."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            for book in ("a.1", "a.2", "c"):
                last = await append(http, book, text="12345")
            await ask(http, "PUT", "/logbook/c/retention", json={"age_s": 3600, "size_bytes": None})
            names = lambda answer: [book["name"] for book in answer["books"]]  # noqa: E731
            listed = await ask(http, "GET", "/logbook")
            assert names(listed) == ["a.1", "a.2", "c"]
            assert listed["books"][2] == {
                "name": "c",
                "record_count": 1,
                "first_seqnum": last,
                "last_seqnum": last,
                "last_time_us": 1_700_000_000_000_000,
                "size_bytes": 5,
                "retention_age_s": 3600.0,
                "retention_size_bytes": None,
            }
            assert names(await ask(http, "GET", "/logbook?prefix=a.&after=a.1")) == ["a.2"]
            assert names(await ask(http, "GET", "/logbook?limit=1")) == ["a.1"]
            await ask(http, "DELETE", "/logbook/c")
            assert names(await ask(http, "GET", "/logbook")) == ["a.1", "a.2"]

    run(scenario())


def test_answers_carry_the_position_and_requests_hand_it_back() -> None:
    """What a caller has seen reaches the log with its next request, and a position of no log is 400."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            async with http.post("/logbook/b/append", json={"text": "1"}) as response:
                position = response.headers["Boki-Position"]
            assert position.startswith("0:1.")
            async with http.get("/logbook/b/read", headers={"Boki-Position": position}) as response:
                assert response.headers["Boki-Position"] == position
            operation, positions, _ = backend.operations[-1]
            assert isinstance(operation, Read)
            assert positions == {0: (1 << 43) | int(position[4:])}
            await ask(http, "POST", "/logbook/b/sync")
            for text in ("9:1.1", "0:7.0", "?"):
                async with http.get("/logbook/b/read", headers={"Boki-Position": text}) as response:
                    body = await refused(response, 400, "invalid_argument")
                    assert body["details"]["field"] == "Boki-Position"

    run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/logbook/b/read?start=x", "start"),
        ("GET", "/logbook/b/read?start=-1", "start"),
        ("GET", "/logbook/b/read?start=%2B1", "start"),
        ("GET", "/logbook/b/read?start=9223372036854775808", "start"),
        ("GET", "/logbook/b/read?start=" + "1" * 5000, "start"),
        ("GET", "/logbook/b/read?start=%D9%A1", "start"),
        ("GET", "/logbook/b/read?limit=0", "limit"),
        ("GET", "/logbook/b/read?backward=yes", "backward"),
        ("GET", "/logbook/b/read?backward=true&wait_s=1", "wait_s"),
        ("GET", "/logbook/b/read?wait_s=100", "wait_s"),
        ("GET", "/logbook/b/read?tag=", "tags"),
        ("GET", "/logbook/b/read?tag=a&tag=b", "tag"),
        ("GET", "/logbook/b/read?unknown=1", "unknown"),
        ("GET", "/logbook/b/read?tag=%ff", "query"),
        ("GET", "/logbook/b/read_next?min_seqnum=a", "min_seqnum"),
        ("GET", "/logbook/b/records/zero", "seqnum"),
        ("GET", "/logbook/no%20name/read", "book"),
        ("GET", "/logbook/%2e%2f/read", "book"),
        ("GET", "/logbook?prefix=%20", "prefix"),
        ("POST", "/logbook/boki:calls/append", "book"),
        ("POST", "/logbook/boki:calls/append_many", "book"),
        ("DELETE", "/logbook/boki:calls", "book"),
        ("POST", "/logbook/b/sync?now=1", "now"),
    ],
)
def test_bad_paths_and_queries_are_400_and_the_field_is_named(method: str, path: str, field: str) -> None:
    """Numbers are digits, names are names, and the runtime's own books are not written from outside."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http), http.request(method, path) as response:
            body = await response.json()
            assert (response.status, body["details"]["field"]) == (400, field), body

    run(scenario())


def test_the_runtimes_own_books_can_be_read() -> None:
    """Logged calls can be looked at, like everything else."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            async with http.post("/asyncFunction/echo") as response:
                invocation_id = (await response.json())["id"]
            records = await read(http, f"?tag=id:{invocation_id}", book="boki:calls")
            assert records[0]["tags"] == [f"id:{invocation_id}", "accepted"]
            for path, body in (("trim", {"before": "5"}), ("append", {"text": "1"})):
                async with http.post(f"/logbook/boki:calls/{path}", json=body) as response:
                    await refused(response, 400, "invalid_argument")

    run(scenario())


def test_errors_of_the_log_keep_their_outcome() -> None:
    """Whether an append may have happened is the one thing that its caller must be told."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            for error, status in ((Unavailable("no quorum"), 503), (ConnectionLost("broken"), 503)):
                backend.failures.append(error)
                async with http.post("/logbook/b/append", json={"text": "1"}) as response:
                    body = await refused(response, status, error.code)
                    assert (body["outcome"], body["retryable"]) == (error.outcome, True)
            assert gateway.core.is_idle

    run(scenario())


def test_requests_beyond_the_budget_are_429() -> None:
    """In numbers and in bytes. Requests that wait have a budget of their own, so others continue beside them."""

    async def scenario() -> None:
        async with serving(budget=Budget(polls=1, bytes_in_flight=1000)) as (_, backend, http):
            async with http.post("/logbook/b/append", json={"text": "x" * 1200}) as response:
                await refused(response, 429, "overloaded")
            poll = asyncio.create_task(ask(http, "GET", "/logbook/b/read?wait_s=20"))
            await backend.until_waiting()
            async with http.get("/logbook/b/read?wait_s=20") as response:
                await refused(response, 429, "overloaded")
            await append(http, "c", text="1")
            backend.expire_waits()
            await poll
            await ask(http, "GET", "/logbook/b/read")

    run(scenario())


def test_appends_that_come_together_share_a_chunk() -> None:
    """One failed condition among them does not touch the others."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            await append(http, text="first", tags=["t"])

            async def attempt(n: int) -> int:
                when = {"tag": "t"} if n == 3 else []
                async with http.post("/logbook/b/append", json={"text": str(n), "when": when}) as response:
                    return response.status

            statuses = await asyncio.gather(*(attempt(n) for n in range(8)))
            assert statuses == [200, 200, 200, ConditionFailed.http_status, 200, 200, 200, 200]
            assert len(await read(http)) == 8
            appends = [operation for operation, _, _ in backend.operations if isinstance(operation, Append)]
            assert len(appends) <= 9

    run(scenario())
