"""Suspended calls in a cluster of role shells: the engine that holds them dies, and another one wakes them."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from boki.client import Client
from boki.errors import ConnectionLost
from tests.launch.test_suspended_dev import FUNCTIONS
from tests.node.cluster import DEFAULT, cluster
from tests.node.test_cluster import opened, run


async def suspended(client: Client, invocation: str) -> None:
    """Return when the call is suspended."""
    while (await client.invocation(invocation)).state != "suspended":
        pass


def test_suspended_calls_of_an_engine_that_dies_wake_at_another(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """By time and by record, also by one that comes while nobody watches for it; each as its second run."""

    async def body() -> None:
        (tmp_path / "functions").mkdir()
        (tmp_path / "functions" / "naps.py").write_text(FUNCTIONS)
        names = (*DEFAULT, "engine-2")
        async with cluster(tmp_path, zookeeper, chroot, *names) as nodes, await opened(nodes) as client:
            engines = {name: nodes.incarnations[name] for name in ("engine-1", "engine-2")}
            await nodes.until(lambda: all(life.is_at_work for life in engines.values()))
            wake_us = round((time.time() + 6) * 1e6)
            timed = [await client.invoke_later("nap", wake_us) for _ in range(4)]
            told = [await client.invoke_later("listen", "inbox", book="news") for _ in range(4)]
            for invocation in (*timed, *told):
                await suspended(client, invocation)
            owned = {
                name: [each for each in (*timed, *told) if life.calls.other_owner(each) is None]  # type: ignore[attr-defined]
                for name, life in engines.items()
            }
            victim = max(owned, key=lambda name: len(owned[name]))
            assert owned[victim]
            await nodes.kill(victim)
            with suppress(ConnectionLost):  # it was asked of the engine that is gone: under the key it happens once
                await client.logbook("news").append(b"told", tags=["inbox"], key="told", timeout_s=20)
            await client.logbook("news").append(b"told", tags=["inbox"], key="told", timeout_s=20)
            for invocation in told:
                call = await client.invocation(invocation, wait_s=30)
                assert (call.state, call.result, dict(call.errors)) == ("done", "told in run 2", {}), call
            for invocation in timed:
                call = await client.invocation(invocation, wait_s=30)
                assert (call.state, call.result, call.attempts) == ("done", 2, 2), call

    run(body())
