"""Objects over HTTP: every route, over the log in memory."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from boki.gateway.config import Timeouts
from boki.log.ids import MAX_SEQNUM
from tests.gateway.fake_backend import refused, run, serving, stream_ended
from tests.gateway.strangers import Raw


async def ask(http: aiohttp.ClientSession, method: str, path: str, **arguments: Any) -> Any:
    """The JSON answer of a request that succeeds."""
    async with http.request(method, f"/store/b{path}", **arguments) as response:
        body = await response.json()
        assert response.status == 200, body
        return body


async def refusal(
    http: aiohttp.ClientSession, method: str, path: str, status: int, code: str, **arguments: Any
) -> None:
    """The request is refused so."""
    async with http.request(method, f"/store/b{path}", **arguments) as response:
        await refused(response, status, code)


def test_objects_are_put_read_patched_and_deleted() -> None:
    """Whole, and by paths."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            await refusal(http, "GET", "/x", 404, "no_such_object")
            await ask(http, "PUT", "/x", json={"a": {"n": 1}})
            await ask(http, "PUT", "/x?path=a.m", json=[1])
            assert await ask(http, "GET", "/x") == {"a": {"n": 1, "m": [1]}}
            assert await ask(http, "GET", "/x?path=a.m.0") == 1
            await refusal(http, "GET", "/x?path=a.z", 404, "no_such_object")
            await refusal(http, "GET", "/x?path=a.n.z", 409, "wrong_shape")
            await ask(http, "PATCH", "/x", json={"a": {"n": None}, "b": "x"})
            assert await ask(http, "GET", "/x") == {"a": {"m": [1]}, "b": "x"}
            await ask(http, "DELETE", "/x?path=a")
            assert await ask(http, "GET", "/x") == {"b": "x"}
            await ask(http, "DELETE", "/x")
            await refusal(http, "GET", "/x", 404, "no_such_object")
            await refusal(http, "DELETE", "/x", 404, "no_such_object")

    run(scenario())


def test_names_are_listed() -> None:
    """In pages; what is deleted is not listed."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            assert await ask(http, "GET", "") == {"objects": []}
            for name in ("b", "a", "c", "gone"):
                await ask(http, "PUT", f"/{name}", json=1)
            await ask(http, "DELETE", "/gone")
            assert await ask(http, "GET", "?limit=2") == {"objects": ["a", "b"]}
            assert await ask(http, "GET", "?after=b&prefix=c") == {"objects": ["c"]}
            assert await ask(http, "GET", "?kind=maps") == {"maps": []}
            await refusal(http, "GET", "?kind=cats", 400, "invalid_argument")
            await refusal(http, "GET", "?limit=0", 400, "invalid_argument")

    run(scenario())


def test_json_patch() -> None:
    """All of it or nothing; what is none says so."""

    async def scenario() -> None:
        headers = {"Content-Type": "application/json-patch+json"}
        async with serving() as (_, _backend, http):
            await ask(http, "PUT", "/x", json={"a": [1, 2], "b": {"c": 3}})
            patch = [
                {"op": "test", "path": "/b/c", "value": 3},
                {"op": "move", "from": "/b/c", "path": "/a/-"},
                {"op": "remove", "path": "/a/0"},
            ]
            await ask(http, "PATCH", "/x", data=json.dumps(patch), headers=headers)
            assert await ask(http, "GET", "/x") == {"a": [2, 3], "b": {}}
            for wrong, status, code in (
                ([{"op": "add", "path": "/new", "value": 1}, *patch], 409, "wrong_shape"),
                ([{"op": "remove", "path": "/nowhere"}], 409, "wrong_shape"),
                ([{"op": "add", "path": "/a"}], 400, "invalid_argument"),
                ([{"op": "copy", "path": "/a"}], 400, "invalid_argument"),
                ([{"op": "test", "path": "/a"}], 400, "invalid_argument"),
                ([{"op": "dance", "path": "/a"}], 400, "invalid_argument"),
                ([5], 400, "invalid_argument"),
                ({"op": "add"}, 400, "invalid_argument"),
            ):
                await refusal(http, "PATCH", "/x", status, code, data=json.dumps(wrong), headers=headers)
            assert await ask(http, "GET", "/x") == {"a": [2, 3], "b": {}}

    run(scenario())


def test_a_json_patch_of_a_stranger_costs_little() -> None:
    """One that doubles a value with each operation is refused; what is refused tells nothing of the object's values."""

    async def scenario() -> None:
        headers = {"Content-Type": "application/json-patch+json"}
        async with serving() as (_, _backend, http):
            await ask(http, "PUT", "/x", json={"b": {"c": 3}, "yes": [1], "secret": "s3cret"})
            bomb = [{"op": "copy", "from": "/b", "path": f"/b/{number}"} for number in range(40)]
            await refusal(http, "PATCH", "/x", 413, "too_large", data=json.dumps(bomb), headers=headers)
            deep = [{"op": "add", "path": "/d" * number, "value": {}} for number in range(1, 700)]
            deep.append({"op": "copy", "from": "/d", "path": "/e"})
            await refusal(http, "PATCH", "/x", 413, "too_large", data=json.dumps(deep), headers=headers)
            for place in ("/nowhere/z", "/b/c/z", "/yes/x", "/yes/9", "/b/c/0"):
                patch = [{"op": "add", "path": place, "value": 1}]
                async with http.patch("/store/b/x", data=json.dumps(patch), headers=headers) as response:
                    assert response.status == 409
                    told = await response.text()
                    assert "operation 0 (add" in told
                    assert "s3cret" not in told and "<class" not in told
            await refusal(
                *(http, "PATCH", "/x", 409, "wrong_shape"),
                data=json.dumps([{"op": "test", "path": "/yes", "value": [True]}]),
                headers=headers,
            )
            same = [{"op": "test", "path": "/yes", "value": [1.0]}, {"op": "copy", "from": "/yes", "path": "/too"}]
            await ask(http, "PATCH", "/x", data=json.dumps(same), headers=headers)
            assert (await ask(http, "GET", "/x"))["too"] == [1]

    run(scenario())


def test_etags() -> None:
    """A change names the version that it is for; a stale one changes nothing."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            first = await ask(http, "PUT", "/x", json=1, headers={"If-None-Match": "*"})
            await refusal(http, "PUT", "/x", 412, "wrong_version", json=2, headers={"If-None-Match": "*"})
            async with http.get("/store/b/x") as response:
                assert response.headers["ETag"] == f'"{first["version"]}"'
            tag = {"If-Match": f'"{first["version"]}"'}
            known = {"If-None-Match": f'W/"1", "{first["version"]}"'}
            async with http.get("/store/b/x", headers=known) as response:
                assert (response.status, await response.read()) == (304, b"")
            second = await ask(http, "PUT", "/x", json=2, headers=tag)
            assert await ask(http, "GET", "/x", headers=known) == 2
            await refusal(http, "PUT", "/x", 412, "wrong_version", json=3, headers=tag)
            await refusal(http, "PATCH", "/x", 412, "wrong_version", json=3, headers=tag)
            await refusal(http, "DELETE", "/x", 412, "wrong_version", headers=tag)
            await ask(http, "DELETE", "/x", headers={"If-Match": second["version"]})
            await refusal(http, "PUT", "/x", 412, "wrong_version", json=3, headers={"If-Match": "*"})
            for wrong in ({"If-Match": "soon"}, {"If-None-Match": '"1"'}, {"If-Match": "*", "If-None-Match": "*"}):
                await refusal(http, "PUT", "/x", 400, "invalid_argument", json=3, headers=wrong)
            increment = {"update": "increment"}
            await refusal(http, "POST", "/x", 412, "wrong_version", json=increment, headers={"If-Match": "1"})
            await refusal(http, "GET", "/x", 404, "no_such_object")
            await ask(http, "POST", "/x", json=increment, headers={"If-None-Match": "*"})
            await ask(http, "POST", "/x", json=increment, headers={"If-Match": "*"})
            assert await ask(http, "GET", "/x") == 2
            await refusal(http, "POST", "/transactions", 400, "invalid_argument", json={}, headers={"If-Match": "1"})
            winners = await asyncio.gather(
                *(http.put("/store/b/y", json=n, headers={"If-None-Match": "*"}) for n in range(5))
            )
            assert sorted(answer.status for answer in winners) == [200, 412, 412, 412, 412]

    run(scenario())


def test_updates_and_keys() -> None:
    """By name, with what they return; a key makes them safe to repeat."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            key = {"Idempotency-Key": "k1"}
            one = {"update": "increment", "path": "n", "by": 2}
            for _ in range(2):
                assert await ask(http, "POST", "/x", json=one, headers=key) == {"result": 2}
            await refusal(http, "POST", "/x", 409, "key_reused", json=one | {"by": 3}, headers=key)
            for change, result in (
                ({"update": "append", "path": "l", "values": [1, 2, 3], "limit": 2}, 2),
                ({"update": "insert", "path": "l.0", "value": "x"}, 3),
                ({"update": "pop", "path": "l", "index": 0}, "x"),
                ({"update": "merge", "value": {"m": 1}}, None),
                ({"update": "set", "path": ["a.b"], "value": 1}, None),
                ({"update": "delete", "path": "n"}, True),
            ):
                assert await ask(http, "POST", "/x", json=change) == {"result": result}
            assert await ask(http, "GET", "/x") == {"l": [2, 3], "m": 1, "a.b": 1}
            again = {"Idempotency-Key": "k2"}
            versions = [await ask(http, "PUT", "/y", json=5, headers=again) for _ in range(2)]
            assert versions[0] == versions[1]
            await refusal(http, "PUT", "/y", 409, "key_reused", json=6, headers=again)
            await refusal(http, "POST", "/x", 400, "invalid_argument", json={"update": "dance"})

    run(scenario())


def test_transactions() -> None:
    """Reads, tests and updates of several objects, all or none."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            await ask(http, "PUT", "/a", json={"n": 10})
            move = {
                "reads": [{"object": "a", "path": "n"}, {"object": "b"}],
                "tests": [{"object": "a", "path": "n", "value": 10}, {"object": "b", "value": None}],
                "updates": [
                    {"object": "a", "update": "increment", "path": "n", "by": -3},
                    {"object": "b", "update": "increment", "path": "n", "by": 3},
                ],
            }
            for _ in range(2):
                done = await ask(http, "POST", "/transactions", json=move, headers={"Idempotency-Key": "m"})
                assert (done["reads"], done["results"]) == ([10, None], [7, 3])
            await refusal(http, "POST", "/transactions", 409, "wrong_state", json=move)
            assert await ask(http, "GET", "/b") == {"n": 3}
            await ask(http, "PUT", "/o", json={"b": 1, "a": [{"d": 2, "c": 3}]})
            keys_in_order = {"a": [{"c": 3, "d": 2}], "b": 1}
            await ask(http, "POST", "/transactions", json={"tests": [{"object": "o", "value": keys_in_order}]})
            too_many = {"reads": [{"object": "a"}] * 1001}
            await refusal(http, "POST", "/transactions", 413, "too_large", json=too_many)

    run(scenario())


def test_the_past_forks_and_maps() -> None:
    """As of a seqnum or a time, version by version, a copy of the book, and items of a map."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            first = (await ask(http, "PUT", "/x", json=1))["version"]
            await ask(http, "PUT", "/x", json=2)
            assert await ask(http, "GET", f"/x?at={first}") == 1
            versions = (await ask(http, "GET", "/x/history"))["versions"]
            assert [version["value"] for version in versions] == [1, 2]
            assert versions[0]["seqnum"] == first
            assert await ask(http, "GET", f"/x?time_s={versions[1]['time_s']}") == 2
            later = (await ask(http, "GET", f"/x/history?start={int(first) + 1}&limit=5"))["versions"]
            assert [version["value"] for version in later] == [2]
            assert await ask(http, "POST", "/forks", json={"name": "copy", "at": first}) == {"book": "copy"}
            async with http.get("/store/copy/x") as response:
                assert await response.json() == 1
            await refusal(http, "POST", "/forks", 400, "invalid_argument", json={"name": "b"})
            await refusal(http, "GET", "/x/items", 404, "no_such_object")
            assert await ask(http, "GET", f"/x?at={MAX_SEQNUM}") == 2
            await refusal(http, "GET", f"/x?at={MAX_SEQNUM + 1}", 400, "invalid_argument")
            await refusal(
                http, "POST", "/views", 400, "invalid_argument", json={"objects": ["x"], "at": MAX_SEQNUM + 1}
            )

    run(scenario())


def test_a_watch_is_a_stream_of_events() -> None:
    """The version that is there, and each that comes."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            await ask(http, "PUT", "/x", json=1)
            async with http.get("/store/b/x/watch") as response:
                assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
                values = []
                async for line in response.content:
                    if line.startswith(b"data: "):
                        values.append(json.loads(line[6:])["value"])
                        if len(values) == 3:
                            break
                        await ask(http, "PUT", "/x", json=len(values) + 1)
                assert values == [1, 2, 3]

    run(scenario())


async def events_of(response: aiohttp.ClientResponse, count: int) -> list[tuple[str, Any]]:
    """The next events, each as its id or its name and its data."""
    found: list[tuple[str, Any]] = []
    place = ""
    async for line in response.content:
        name, _, text = line.decode().rstrip("\n").partition(": ")
        if name in {"id", "event"}:
            place = text
        elif name == "data":
            found.append((place, json.loads(text)))
            if len(found) == count:
                break
    return found


def test_a_watch_goes_on_after_the_version_that_its_client_has() -> None:
    """`Last-Event-ID`: the same version is not sent twice; one that was missed is told by the one that is there."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            first = (await ask(http, "PUT", "/x", json=1))["version"]
            known = {"Last-Event-ID": first}
            async with http.get("/store/b/x/watch", headers=known) as response:
                await backend.until_waiting()
                second = (await ask(http, "PUT", "/x", json=2))["version"]
                assert [one[0] for one in await events_of(response, 1)] == [second]
            async with http.get("/store/b/x/watch", headers=known) as response:
                [(place, version)] = await events_of(response, 1)
                assert (place, version["value"]) == (second, 2)
            async with http.head("/store/b/x/watch") as response:
                assert response.status == 200

    run(scenario())


def test_a_drain_ends_watches_with_an_event() -> None:
    """It says why, so that the client goes elsewhere."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            await ask(http, "PUT", "/x", json=1)
            async with http.get("/store/b/x/watch") as response:
                await events_of(response, 1)
                await backend.until_waiting()
                gateway.drain()
                [(name, error)] = await events_of(response, 1)
                assert (name, error["code"]) == ("error", "unavailable")
            assert gateway.core.stream_count == 0

    run(scenario())


def test_a_watcher_that_does_not_read_is_cut_off() -> None:
    """Within `Timeouts.reader_s`: it holds one version, and its place among the streams, no longer than that."""

    async def scenario() -> None:
        async with serving(timeouts=Timeouts(reader_s=0.2)) as (gateway, _, http):
            await ask(http, "PUT", "/x", json="x" * 900_000)
            raw = await Raw.open(gateway.port, limit=1024)
            ended = stream_ended(gateway.core)
            await raw.send("GET /store/b/x/watch HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            async with asyncio.timeout(20):
                for number in range(40):
                    await ask(http, "PUT", "/x", json=str(number) + "x" * 900_000)
                await ended.wait()
            await raw.close()

    run(scenario())


def test_a_watcher_that_leaves_is_noticed() -> None:
    """While nothing changes."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            ended = stream_ended(gateway.core)
            async with http.get("/store/b/x/watch") as response:
                assert (await events_of(response, 1))[0][1]["exists"] is False
                await backend.until_waiting()
                response.close()
            async with asyncio.timeout(20):
                await ended.wait()

    run(scenario())
