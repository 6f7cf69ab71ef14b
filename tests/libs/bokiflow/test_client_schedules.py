"""Schedules from programs that are no functions: over HTTP, in a system of its own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import uvloop

from boki import AlreadyExists, BlockingClient, Client, InvalidArgument
from boki.config.loading import DevConfig
from boki.launch.child import Child
from boki.libs.bokiflow import BlockingFlowClient, FlowClient, workflow
from boki.libs.bokiflow.outside import creation_of
from boki.libs.bokiflow.refusals import NoSuchSchedule
from boki.libs.bokiflow.schedules.spec import spec_of

WORKFLOWS = '''
"""What is done by the clock."""

from boki.libs.bokiflow import workflow


@workflow
async def report(n: int = 1) -> int:
    return n * 2


@workflow
async def greet(who: str) -> str:
    return f"hello {who}"
'''


@workflow
async def report(n: int = 1) -> int:
    """The workflow of the system, as a program knows it that imports its module."""
    raise AssertionError(f"it runs in the system, not here: {n}")


@workflow
async def seal(_: bytes) -> None:
    """It takes bytes."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("schedules")
    (folder / "functions").mkdir()
    (folder / "functions/clock.py").write_text(WORKFLOWS)
    with Child(DevConfig(data=folder / "data", functions=folder / "functions", port=0, reload=False)).start() as child:
        yield child.url


def test_a_program_creates_steers_and_deletes_a_schedule(url: str) -> None:
    """With a state that is the one of `Schedule.state`, every field of it; errors are those of schedules."""
    with BlockingClient(url) as client:
        flows = BlockingFlowClient(client)
        options: dict[str, Any] = {"cron": "30 2 * * *", "zone": "Europe/Berlin", "catch_up_s": 0.0, "jitter_s": 1.5}
        nightly = flows.schedule(report, 21, id="nightly", overlap="queue", attributes={"team": 7}, **options)
        with pytest.raises(AlreadyExists, match="replace it"):
            flows.schedule("report", id="nightly", every_s=60)
        seen = nightly.state()
        assert (seen.id, seen.workflow, seen.status, seen.book) == ("nightly", "report", "active", "report")
        assert seen.spec == spec_of(overlap="queue", **options)
        assert len(seen.next_us) == 5
        started = nightly.trigger(key="now")
        assert nightly.trigger(key="now") == started
        run = flows.handle(report, started)
        while not flows.list(report, id=started):
            pass  # the schedule has not started it yet
        assert run.result(wait_s=20) == 42
        assert run.status().attributes["team"] == 7
        nightly.pause("holidays")
        assert (nightly.state().status, nightly.state().note, nightly.state().next_us) == ("paused", "holidays", ())
        nightly.resume()
        assert nightly.backfill(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 3, tzinfo=UTC)) == 2
        assert [one.id for one in flows.schedules("report", id="night")] == ["nightly"]
        nightly.delete()
        assert not flows.schedules()
        with pytest.raises(NoSuchSchedule):
            nightly.state()


def test_what_a_schedule_is_given_arrives_as_it_was(url: str) -> None:
    """A text for a workflow that is known by its name alone; "replace" changes it."""

    async def scenario() -> None:
        async with Client(url) as client:
            flows = FlowClient(client)
            for who in ("Ada", '"Bob"'):
                made = await flows.schedule("greet", who, id="g", every_s=3_600, if_exists="replace")
                flow_id = await made.trigger()
                while not await flows.list("greet", id=flow_id):
                    pass  # the schedule has not started it yet
                assert await flows.handle("greet", flow_id).result(wait_s=20) == f"hello {who}"
            assert (await made.state()).counts == {"started": 2}
            await made.delete()

    uvloop.run(scenario())


def test_what_a_schedule_is_given_may_hold_nothing() -> None:
    """A payload with null in it, and options that are None, which are left out."""
    said = creation_of("any", ({"a": None, "n": 1 << 63},), {"every_s": 5, "attributes": None})
    assert said.data == b'{"every_s":5,"payload":{"a":null,"n":9223372036854775808}}'


def test_what_cannot_be_sent_is_refused() -> None:
    """Before anything is sent: bytes that JSON has no place for, ids and keys that are empty or too long."""
    assert creation_of(seal, (b"a text",), {"every_s": 5}).data == b'{"every_s":5,"payload":"a text"}'
    with pytest.raises(InvalidArgument, match="no UTF-8"):
        creation_of(seal, (b"\xff",), {})
    with pytest.raises(InvalidArgument, match="needs a payload"):
        creation_of(seal, (), {})
    with pytest.raises(InvalidArgument, match="holds an object"):
        creation_of(report, (), {"every_s": object()})  # type: ignore[typeddict-item]
    with BlockingClient("http://127.0.0.1:1") as client:
        flows = BlockingFlowClient(client)
        for bad in ("", "i" * 121):
            with pytest.raises(InvalidArgument, match="id must be"):
                flows.schedule_handle(report, bad)
        for bad in ("", "k" * 41):
            with pytest.raises(InvalidArgument, match="key must be"):
                flows.schedule_handle(report, "nightly").trigger(key=bad)
