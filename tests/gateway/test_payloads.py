"""Payloads of calls that go into the log: what can be told of them before they are there."""

from __future__ import annotations

import pytest

from tests.gateway.fake_backend import refused, run, serving


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/asyncFunction", {}), ("/asyncFunction", {"Idempotency-Key": "k"}), ("/function", {"Idempotency-Key": "k"})],
)
def test_a_logged_call_that_nobody_could_read_is_refused_at_once(path: str, headers: dict[str, str]) -> None:
    """It is not in the log, and its key is free for the corrected one."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            bad = (("echo", b'{"a":', "json"), ("echo", b"[" * 100_000, "json"), ("text", b"\xff", "octet-stream"))
            for function, body, kind in bad:
                sent = {**headers, "Content-Type": f"application/{kind}"}
                async with http.post(f"{path}/{function}", data=body, headers=sent) as response:
                    assert (await refused(response, 400, "invalid_argument"))["details"]["field"] == "payload"
            assert not backend.started
            assert not backend.ledger.waiting_count
            async with http.post(f"{path}/echo", data=b"1", headers=headers) as response:
                assert response.status in {200, 202}
            assert len(backend.started) == 1

    run(scenario())
