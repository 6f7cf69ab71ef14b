"""The whole of `boki dev` in one process: what only its parts together can show."""

from __future__ import annotations

import pytest

from boki.errors import NoSuchFunction
from boki.protocol.calls import Call, Payload
from tests.contract.live import dev_system


def test_a_function_cannot_put_a_call_of_an_unknown_function_into_the_log() -> None:
    """It is told at once: nobody looks at the outcome of such a call."""
    with dev_system() as (loop, dev):
        with pytest.raises(NoSuchFunction, match="nosuch"):
            loop.run(dev._later(Call("0" * 32, "nosuch", Payload("json", b"1"), "b", 1_000_000), 0.0, None))
        assert dev.calls.waiting_count == 0


def test_it_is_not_ready_without_a_node_that_it_needs() -> None:
    """A storage node whose disk failed was not missed by `/readyz` (found.md, H2)."""
    with dev_system() as (loop, dev):
        assert dev.is_ready
        dev.log.stop_node("storage-1")
        assert not dev.is_ready
        assert loop.run(dev.wait_for_outage()) == "storage-1 stopped, and the log cannot go on without"
