"""Clients that take a stream more slowly than its function makes it."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from boki import Response
from boki.api.http.response import encode_response
from boki.gateway.server.http.calls import FunctionCalls
from boki.gateway.server.http.streams import Incoming, StreamedAnswer
from boki.protocol.calls import FunctionInfo, Outcome, Payload, ResultChunk
from tests.gateway.fake_backend import FakeBackend, run, serving, turns_until

HEAD = encode_response(Response(status=200), "a response").data


@pytest.mark.parametrize("is_engine_silent", [False, True])
def test_a_stream_is_not_given_up_while_it_is_read(monkeypatch: pytest.MonkeyPatch, is_engine_silent: bool) -> None:
    """Its function has ended in time, and its engine says so when all is taken: after the deadline. One that says
    nothing then is given up as ever.
    """
    taken: list[int] = []
    may_write = asyncio.Event()
    write = StreamedAnswer.write

    async def write_slowly(answer: StreamedAnswer, chunk: ResultChunk) -> object:
        await may_write.wait()
        return await write(answer, chunk)

    def pass_s(calls: FunctionCalls, backend: FakeBackend, seconds: float) -> None:
        backend.now_us += int(seconds * 1e6)
        monkeypatch.setattr(calls, "_clock", lambda: backend.now_us)
        calls._tick()

    async def scenario() -> None:
        backend = FakeBackend()
        backend.functions["hang"] = FunctionInfo(name="hang", module="app", is_async=True, timeout_s=30.0, streams=True)
        async with serving(backend) as (gateway, _, http):
            calls = gateway._calls
            pass_s(calls, backend, 0)
            monkeypatch.setattr(StreamedAnswer, "write", write_slowly)
            monkeypatch.setattr(Incoming, "_tell", lambda incoming: taken.append(incoming._count))
            asked = asyncio.create_task(http.post("/function/hang"))
            await backend.until(lambda: bool(backend.hanging))
            (incoming,) = calls._incoming.values()
            for number in (1, 2):
                incoming.take(ResultChunk(number, b"%d" % number, HEAD if number == 1 else b""))
            pass_s(calls, backend, 29)
            pass_s(calls, backend, 20)
            may_write.set()
            response = await asked
            await turns_until(lambda: taken[:2] == [1, 2])
            pass_s(calls, backend, 0.5)
            if is_engine_silent:
                pass_s(calls, backend, 1)
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()
            else:
                backend.hanging.popitem()[1](Outcome(Payload("bytes", b""), None))
                assert await response.read() == b"12"

    run(scenario())
