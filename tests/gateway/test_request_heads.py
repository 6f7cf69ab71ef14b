"""What functions see of a request that is not as it should be."""

from __future__ import annotations

import pytest

from tests.gateway.fake_backend import run, serving
from tests.gateway.strangers import Raw


@pytest.mark.parametrize("sent", [b"caf\xe9", b"caf\xc3\xa9"], ids=["ISO-8859-1", "UTF-8"])
def test_a_header_need_not_be_utf_8(sent: bytes) -> None:
    """A page of another time may send such a Referer: its value is read as HTTP once had it, and its call runs."""
    head = b"POST /function/echo HTTP/1.1\r\nHost: 127.0.0.1\r\nReferer: %b\r\nContent-Length: 1\r\n\r\n1"

    async def scenario() -> None:
        async with serving() as (gateway, backend, _):
            raw = await Raw.open(gateway.port)
            await raw.send(head % sent)
            assert (await raw.answer())[0] == 200
            await raw.close()
            (call,) = backend.started
            assert call.request is not None
            assert dict(call.request.headers)["Referer"] == "café"

    run(scenario())
