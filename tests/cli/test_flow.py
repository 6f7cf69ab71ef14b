"""`boki flow` and `/flow` against a running system: workflows, their states, and what is said to them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner, Result

from boki import BlockingClient, CallCancelled, Client, DeadlineExceeded, FunctionFailed, InvalidArgument, KeyReused
from boki.cli.app import app
from boki.config.loading import DevConfig
from boki.launch.child import Child
from boki.libs.bokiflow import BlockingFlowClient, FlowClient, NoSuchWorkflow, WorkflowEnded, workflow
from boki.libs.bokiflow.face.check_commands import IN_PART
from boki.libs.bokiflow.face.requests import Flows
from tests.unasync import FLOW_FOLDER, FLOW_TWINS, plain_client

pytestmark = pytest.mark.xdist_group("one running system for workflows")

WORKFLOWS = '''
"""Workflows of a travel agency."""

import asyncio

from boki import Context, Retry, function
from boki.libs.bokiflow import Limit, flow, step, workflow


class CardDeclined(Exception):
    """The bank has refused."""


@step
async def book_hotel(city: str) -> str:
    return f"a room in {city}"


@step(retry=Retry(attempts=2, first_s=0.01))
async def charge(card: str) -> str:
    if card == "stolen":
        raise CardDeclined("the bank has refused the card")
    return "paid"


@workflow(book="trips")
async def travel(city: str) -> str:
    seats: list[str] = []

    async def reserve(seat: str) -> str:
        if seat in seats:
            raise ValueError(f"seat {seat} is taken")
        seats.append(seat)
        return f"{seat} is yours"

    flow.on_update("seat", reserve)
    flow.on_query("seats", lambda _: seats)
    room = await book_hotel(city)
    approved = await flow.receive("approve")
    if not approved:
        await charge("stolen")
    return f"{room}, {await flow.promise('flight')}"


@workflow(book="trips")
async def greet(who: str) -> str:
    return f"{who} in {flow.id}"


@workflow(book="trips")
async def wait_a_year() -> None:
    await book_hotel("Paris")
    await flow.sleep(365 * 24 * 3600)


@workflow(book="trips")
async def reads_the_room() -> str:
    return await book_hotel(await flow.store.read("room", default="Rome"))


@workflow(book="trips", limit=Limit(concurrency=1))
async def rides_alone() -> str:
    await flow.sleep(0.01)
    return f"went {await flow.receive('go')}"


@function
async def hello(ctx: Context, who: str) -> str:
    return f"hello {who}"
'''


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("workflows")
    (folder / "functions").mkdir()
    (folder / "functions/trips.py").write_text(WORKFLOWS)
    with Child(DevConfig(data=folder / "data", functions=folder / "functions", port=0, reload=False)).start() as child:
        yield child.url


def boki(url: str, *words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, ["flow", *words, "--url", url])
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def state_of(url: str, name: str, flow_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(boki(url, "show", name, flow_id, "--json").stdout)["workflow"]
    return found


def until(url: str, name: str, flow_id: str, state: str) -> dict[str, Any]:
    """Ask until the workflow is in that state. A schedule may not have started it yet."""
    end = time.monotonic() + 20
    while True:
        done = CliRunner().invoke(app, ["flow", "show", name, flow_id, "--json", "--url", url])
        found: dict[str, Any] = json.loads(done.stdout)["workflow"] if not done.exit_code else {}
        if found.get("state") == state:
            return found
        assert time.monotonic() < end, done.output


def test_a_workflow_from_its_start_to_its_result(url: str) -> None:
    """Started, given a signal, an update and a promise, shown as a timeline and followed."""
    assert boki(url, "start", "travel", "Oslo", "--id", "t-1").stdout == "t-1\n"
    until(url, "travel", "t-1", "suspended")  # the room is booked: else the update may come before it
    assert boki(url, "update", "travel", "t-1", "seat", "12A").stdout == '"12A is yours"\n'
    assert boki(url, "query", "travel", "t-1", "seats").stdout == '["12A"]\n'
    assert "it has seats" in boki(url, "query", "travel", "t-1", "rooms", code=1).stderr
    refused = boki(url, "update", "travel", "t-1", "seat", "12A", code=1)
    assert "seat 12A is taken" in refused.stderr
    assert "not ended" in boki(url, "result", "travel", "t-1", code=1).stderr
    boki(url, "signal", "travel", "t-1", "approve", "true")
    boki(url, "resolve", "travel", "t-1", "flight", "SK 4167")
    assert boki(url, "result", "travel", "t-1", "--wait-s", "20").stdout == "a room in Oslo, SK 4167\n"
    lines = boki(url, "show", "travel", "t-1").stdout.splitlines()
    assert lines[0] == "workflow  travel t-1"
    assert lines[1] == "state     done"
    drawn = [line for line in lines if ("━" in line or "◆" in line) and "payload" not in line]
    assert [line[:20].strip() for line in drawn[:2]] == ["0  book_hotel", "update seat"]
    assert max(len(line) for line in drawn) <= 80
    followed = boki(url, "tail", "travel", "t-1", "--json").stdout.splitlines()
    names = [json.loads(line)["name"] for line in followed]
    assert names.index("book_hotel") < names.index("signal approve") < names.index("promise flight")


def test_what_has_failed_is_shown_with_its_attempts(url: str) -> None:
    """The error stands below its step, and the exit code of `result` is 1."""
    boki(url, "signal", "travel", "t-2", "approve", "false")  # before the start
    boki(url, "start", "travel", "Rome", "--id", "t-2")
    failed = boki(url, "result", "travel", "t-2", "--wait-s", "20", code=1)
    assert "the bank has refused the card" in failed.stderr
    shown = boki(url, "show", "travel", "t-2").stdout
    line = next(line for line in shown.splitlines() if "charge" in line and "✗" in line)
    assert line.rstrip().endswith("2")
    listed = boki(url, "list", "--workflow", "travel", "--state", "failed", "--json").stdout
    assert [json.loads(one)["id"] for one in listed.splitlines()] == ["t-2"]


def test_lists(url: str) -> None:
    """By state, by the beginning of the id and by time; a function that is no workflow is not in it."""
    for number in (1, 2):
        boki(url, "start", "wait_a_year", "--id", f"year-{number}")
        assert until(url, "wait_a_year", f"year-{number}", "suspended")["next_us"] > time.time() * 1e6 + 3e13
    CliRunner().invoke(app, ["invoke", "hello", "Ada", "--key", "k", "--url", url])
    found = boki(url, "list", "--id", "year-").stdout.splitlines()
    assert [line.split("\t")[:4] for line in found[1:]] == [
        ["year-2", "wait_a_year", "trips", "suspended"],
        ["year-1", "wait_a_year", "trips", "suspended"],
    ]
    assert len(boki(url, "list", "--state", "suspended", "-n", "1", "--json").stdout.splitlines()) == 1
    everything = boki(url, "list", "--json").stdout.splitlines()
    assert {json.loads(line)["workflow"] for line in everything} <= {"travel", "wait_a_year"}
    assert boki(url, "list", "--until-s", "3600").stdout == ""


def test_pausing_cancelling_and_killing(url: str) -> None:
    """Each is seen in the state; what has ended refuses them."""
    for flow_id, end in (("p-1", "cancel"), ("p-2", "kill")):
        boki(url, "start", "wait_a_year", "--id", flow_id)
        boki(url, "pause", "wait_a_year", flow_id, "--reason", "the airline is down")
        assert "the airline is down" in until(url, "wait_a_year", flow_id, "paused")["note"]
        paused, asleep = (boki(url, "list", "--id", flow_id, "--state", state) for state in ("paused", "suspended"))
        assert (flow_id in paused.stdout, flow_id in asleep.stdout) == (True, False)
        boki(url, "resume", "wait_a_year", flow_id)
        until(url, "wait_a_year", flow_id, "suspended")
        boki(url, end, "wait_a_year", flow_id)
        until(url, "wait_a_year", flow_id, "cancelled")
        assert "has ended" in boki(url, "pause", "wait_a_year", flow_id, code=1).stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("start", "travle", "Oslo"), 1, "did you mean travel?"),
        (("start", "hello", "Ada"), 2, "hello is a function and no workflow"),
        (("show", "travel", "never"), 1, "no travel was started under the id 'never'"),
        (("cancel", "travel", "never"), 1, "no travel was started under the id 'never'"),
        (("list", "--state", "asleep"), 2, "state must be accepted, cancelled"),
        (("start", "travel", "Oslo", "--if-ended", "maybe"), 2, "--if-ended must be again"),
    ],
)
def test_refusals(url: str, words: tuple[str, ...], code: int, said: str) -> None:
    """Each says what is wrong, and what exists instead."""
    assert said in " ".join(boki(url, *words, code=code).stderr.split())


def test_an_id_with_other_arguments_is_refused(url: str) -> None:
    """The id is the key of the start: the same arguments give the same workflow."""
    boki(url, "start", "travel", "Lima", "--id", "same")
    assert boki(url, "start", "travel", "Lima", "--id", "same").stdout == "same\n"
    assert "was used for another request" in boki(url, "start", "travel", "Quito", "--id", "same", code=1).stderr
    assert (
        "has not ended" in boki(url, "start", "travel", "Lima", "--id", "same", "--if-running", "fail", code=1).stderr
    )


def test_an_update_without_an_answer_was_sent(url: str) -> None:
    """It was told that nothing had happened, and to try again: then it was there twice."""
    boki(url, "start", "wait_a_year", "--id", "silent")
    said = " ".join(boki(url, "update", "wait_a_year", "silent", "x", "1", "--wait-s", "1", code=1).stderr.split())
    assert "update x was sent to <wait_a_year 'silent'>, and its answer has not come" in said
    assert "Nothing happened" not in said
    with Flows(url, "") as flows, pytest.raises(DeadlineExceeded, match="under the key 'k'") as caught:
        flows.post("wait_a_year", "silent", "update", "x", key="k", query={"wait_s": 1})
    assert (caught.value.outcome, caught.value.details["update"]) == ("unknown", "k")


def test_one_that_runs_is_killed_and_started_again(url: str) -> None:
    """From outside, too. Under a key it would be killed by the repeat that the key is for."""
    boki(url, "start", "travel", "Rome", "--id", "killed")
    boki(url, "start", "travel", "Oslo", "--id", "killed", "--if-running", "kill")
    boki(url, "signal", "travel", "killed", "approve", "true")
    boki(url, "resolve", "travel", "killed", "flight", "LH 1")
    assert boki(url, "result", "travel", "killed", "--wait-s", "20").stdout == "a room in Oslo, LH 1\n"
    boki(url, "start", "travel", "Rome", "--id", "killed", "--if-running", "kill", code=1)  # it has ended: see if_ended
    boki(url, "start", "travel", "Bonn", "--id", "new", "--if-running", "kill")
    boki(url, "start", "travel", "Kiel", "--id", "new", "--if-running", "kill", "--if-ended", "fail")
    with Flows(url, "") as flows, pytest.raises(InvalidArgument, match="a start that kills takes no key"):
        flows.post("travel", body=b"Rome", key="k", query={"id": "new", "if_running": "kill"})


def test_a_fork_that_has_asked_its_limit_frees_its_place(url: str) -> None:
    """The next one begins when it ends. It waited forever."""
    boki(url, "start", "rides_alone", "--id", "first")
    boki(url, "signal", "rides_alone", "first", "go", "1")
    boki(url, "result", "rides_alone", "first", "--wait-s", "20")
    boki(url, "fork", "rides_alone", "first", "--at", "0", "--id", "fork")
    boki(url, "start", "rides_alone", "--id", "next")
    until(url, "rides_alone", "next", "suspended")
    for flow_id in ("next", "fork"):
        boki(url, "signal", "rides_alone", flow_id, "go", "2")
    assert boki(url, "result", "rides_alone", "next", "--wait-s", "20").stdout == "went 2\n"


def test_an_empty_id_is_no_id(url: str) -> None:
    """A variable of a shell that is not set would start another workflow each time."""
    said = boki(url, "start", "greet", "Ada", "--id", "", code=2).stderr
    assert "--id must be 1 to 200 characters" in " ".join(said.split())
    with pytest.raises(HTTPError, match="400"):
        urlopen(f"{url}/flow/greet?id=", data=b"Ada", timeout=30)


def test_new_code_is_checked_against_recorded_workflows(url: str, tmp_path: Path) -> None:
    """The same code does the same; code that begins otherwise is named, and no step of it is run."""
    boki(url, "start", "wait_a_year", "--id", "recorded")
    until(url, "wait_a_year", "recorded", "suspended")
    (tmp_path / "history").mkdir()
    (tmp_path / "history/year.json").write_text(boki(url, "record", "wait_a_year", "recorded").stdout)
    for module, source, code, said in (
        ("trips_as_they_were", WORKFLOWS, 0, "1 workflow replayed, 0 would be paused"),
        ("trips_changed", WORKFLOWS.replace('book_hotel("Paris")', 'book_hotel("Rome")'), 1, "book_hotel#0"),
        ("trips_gone", "", 1, "there is no workflow wait_a_year any more"),
    ):
        functions = tmp_path / module
        functions.mkdir()
        (functions / f"{module}.py").write_text(source)
        words = ["flow", "check", "--history", str(tmp_path / "history"), "--functions", str(functions)]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == code, done.output
        assert said in " ".join(done.output.split())


def test_a_killed_workflow_is_checked_as_far_as_it_came(url: str, tmp_path: Path) -> None:
    """Its body has not ended, so the code that waits where it waited does not diverge."""
    boki(url, "start", "wait_a_year", "--id", "killed early")
    until(url, "wait_a_year", "killed early", "suspended")
    boki(url, "kill", "wait_a_year", "killed early")
    until(url, "wait_a_year", "killed early", "cancelled")
    history, functions = tmp_path / "history", tmp_path / "functions_of_killed"
    for folder in (history, functions):
        folder.mkdir()
    (history / "killed.json").write_text(boki(url, "record", "wait_a_year", "killed early").stdout)
    (functions / "trips_of_killed.py").write_text(WORKFLOWS)
    words = ["flow", "check", "--history", str(history), "--functions", str(functions)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "1 workflow replayed, 0 would be paused" in " ".join(done.output.split())


def test_what_the_code_reads_is_recorded_with_it(url: str, tmp_path: Path) -> None:
    """Without it the check ends at the read, says so, and has an exit code of its own."""
    functions, history = tmp_path / "functions_that_read", tmp_path / "history"
    functions.mkdir()
    history.mkdir()
    (functions / "trips_that_read.py").write_text(WORKFLOWS)
    boki(url, "start", "reads_the_room", "--id", "reads")
    until(url, "reads_the_room", "reads", "done")
    words = ["flow", "check", "--history", str(history), "--functions", str(functions)]
    (history / "room.json").write_text(boki(url, "record", "reads_the_room", "reads").stdout)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == IN_PART, done.output
    said = " ".join(done.output.split())
    assert "room.json: checked in part, 0 of 2 records: it reads object room" in said
    assert "1 workflow replayed, 0 would be paused, 1 checked in part" in said
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert (found["problem"], found["is_whole"], found["unread"]) == ("", False, "object room")
    with_reads = boki(url, "record", "reads_the_room", "reads", "--functions", str(functions)).stdout
    (history / "room.json").write_text(with_reads)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "1 workflow replayed, 0 would be paused" in " ".join(done.output.split())


def test_schedules(url: str) -> None:
    """Created, triggered, shown, listed, paused, resumed and deleted; what cannot be meant is refused with words."""
    schedule = ["schedule"]
    made = boki(url, *schedule, "create", "greet", "nightly", "Ada", "--cron", "30 2 * * *", "--attribute", "team=7")
    assert "30 2 * * * (UTC); its next tick is" in made.stderr
    assert "--replace" in boki(url, *schedule, "create", "greet", "nightly", "--cron", "@daily", code=1).stderr
    assert "never fires" in boki(url, *schedule, "create", "greet", "x", "--cron", "0 0 30 2 *", code=2).stderr
    flow_id = boki(url, *schedule, "trigger", "greet", "nightly").stdout.strip()
    until(url, "greet", flow_id, "done")
    assert boki(url, "result", "greet", flow_id).stdout == f"Ada in {flow_id}\n", "it knows its id"
    boki(url, *schedule, "pause", "greet", "nightly", "--reason", "holidays")
    seen = json.loads(boki(url, *schedule, "show", "greet", "nightly", "--json").stdout)
    assert (seen["status"], seen["note"], seen["counts"]) == ("paused", "holidays", {"started": 1})
    assert "paused: holidays" in boki(url, *schedule, "show", "greet", "nightly").stdout
    boki(url, *schedule, "resume", "greet", "nightly")
    boki(url, *schedule, "backfill", "greet", "nightly", "2026-11-01", "2026-11-03", "--overlap", "allow")
    end = time.monotonic() + 20
    while json.loads(boki(url, *schedule, "show", "greet", "nightly", "--json").stdout)["counts"] != {"started": 3}:
        assert time.monotonic() < end, "both ticks are taken"
    assert "2026-11-02T02:30:00Z" in boki(url, *schedule, "show", "greet", "nightly").stdout
    assert boki(url, *schedule, "list", "--id", "night").stdout.splitlines()[1].startswith("nightly\tgreet\tactive")
    assert "nightly\t" not in boki(url, "list", "--workflow", "greet").stdout, "a schedule is no workflow"
    boki(url, *schedule, "delete", "greet", "nightly")
    assert boki(url, *schedule, "list").stdout == ""
    assert "no schedule 'nightly'" in boki(url, *schedule, "show", "greet", "nightly", code=1).stderr


def test_attributes_and_cancellation(url: str) -> None:
    """Lists find a workflow by what it was started with; one that was cancelled by a request is called so."""
    for number, team in enumerate(("red", "blue"), 1):
        boki(url, "start", "wait_a_year", "--id", f"team-{number}", "--attribute", f"team={team}", "--attribute", "n=1")
    found = boki(url, "list", "--attribute", "team=blue", "--attribute", "n=1", "--json").stdout
    assert [json.loads(line)["id"] for line in found.splitlines()] == ["team-2"]
    assert boki(url, "list", "--attribute", "n='1'", "--json").stdout == ""
    assert state_of(url, "wait_a_year", "team-2")["attributes"] == {"team": "blue", "n": 1}
    assert "a letter and up to 49" in boki(url, "start", "wait_a_year", "--attribute", "9=1", code=2).stderr
    until(url, "wait_a_year", "team-2", "suspended")
    boki(url, "cancel", "wait_a_year", "team-2", "--reason", "enough")
    until(url, "wait_a_year", "team-2", "cancelled")
    for state, count in (("cancelled", 1), ("failed", 0)):
        listed = boki(url, "list", "--state", state, "--id", "team-", "--json").stdout
        assert len(listed.splitlines()) == count, state
    assert "has ended" in boki(url, "signal", "wait_a_year", "team-2", "hello", code=1).stderr


def test_going_back(url: str) -> None:
    """A workflow that has failed is rewound to its last failure, and forked in front of it; one that runs is not."""
    boki(url, "start", "travel", "Bonn", "--id", "back")
    assert "pause it first, or kill it" in boki(url, "rewind", "travel", "back", code=1).stderr
    boki(url, "signal", "travel", "back", "approve", "false")
    until(url, "travel", "back", "failed")
    assert "there is no step 9" in boki(url, "rewind", "travel", "back", "--step", "9", code=2).stderr
    assert boki(url, "rewind", "travel", "back").stderr == "travel back continues with step 1\n"
    until(url, "travel", "back", "failed")
    assert boki(url, "fork", "travel", "back", "--at", "0", "--id", "fork").stdout == "fork\n"
    assert "is in use" in boki(url, "fork", "travel", "back", "--id", "fork", code=1).stderr
    boki(url, "signal", "travel", "fork", "approve", "true")
    boki(url, "resolve", "travel", "fork", "flight", "LH 1")
    assert boki(url, "result", "travel", "fork", "--wait-s", "20").stdout == "a room in Bonn, LH 1\n"
    assert state_of(url, "travel", "fork")["attributes"] == {"boki:forked_from": "back"}


@workflow(book="trips")
async def travel(city: str) -> str:
    """The workflow of the system, as a program knows it that imports its module."""
    raise AssertionError(f"it runs in the system, not here: {city}")


def test_a_client_starts_workflows_and_speaks_to_them(url: str) -> None:
    """By the function or by its name, from code that blocks and from code that awaits; errors are those of handles."""
    with BlockingClient(url) as client:
        flows = BlockingFlowClient(client)
        trip = flows.start(travel, "Bari", id="c-1", attributes={"customer": "Ada", "n": 7})
        assert flows.start("travel", "Bari", id="c-1").id == trip.id
        with pytest.raises(KeyReused):
            flows.start(travel, "Rome", id="c-1")
        assert trip.update("seat", "1A", id="u") == trip.update("seat", "1A", id="u") == "1A is yours"
        assert trip.query("seats") == ["1A"]
        with pytest.raises(FunctionFailed, match="1A is taken"):
            trip.update("seat", "1A")
        with pytest.raises(DeadlineExceeded, match="has not ended"):
            trip.result(wait_s=0)
        (listed,) = flows.list(travel, id="c-", attributes={"customer": "Ada", "n": 7})
        assert (listed.id, listed.attributes) == ("c-1", {"customer": "Ada", "n": 7})
        trip.signal("approve", True, key="s")
        trip.resolve("flight", {"of": "SK"})
        assert trip.result(wait_s=20) == "a room in Bari, {'of': 'SK'}"
        names = [span.name for span in trip.history()]
        assert names.index("book_hotel") < names.index("signal approve")
        with pytest.raises(WorkflowEnded):
            trip.cancel()
        assert flows.handle(travel, "c-1").rewind(0) == 0

    async def awaiting() -> None:
        async with Client(url) as client:
            flows = FlowClient(client)
            assert await flows.handle("travel", "c-1").result() == "a room in Bari, {'of': 'SK'}"
            long = await flows.start("wait_a_year", id="c-2")
            with pytest.raises(NoSuchWorkflow):
                await flows.handle(travel, "nothing").status()
            await long.pause("a test")
            await long.resume()
            await long.kill()
            assert (await long.status()).status == "cancelled"
            with pytest.raises(CallCancelled):
                await long.result()
            with pytest.raises(InvalidArgument, match="needs a payload"):
                await flows.start(travel)  # type: ignore[arg-type]

    asyncio.run(awaiting())


def test_without_versions_an_upgrade_only_checks(url: str) -> None:
    """Under `boki dev` there is no other code: it says whether what runs now may continue what is recorded."""
    boki(url, "start", "wait_a_year", "--id", "v-1")
    until(url, "wait_a_year", "v-1", "suspended")
    told = boki(url, "upgrade", "wait_a_year", "v-1", "--dry-run").stderr
    assert "1 workflow can continue with the code of the functions folder" in told
    assert "name a workflow, or give --all" in boki(url, "upgrade", code=2).stderr
    boki(url, "kill", "wait_a_year", "v-1")
    assert "has ended" in boki(url, "upgrade", "wait_a_year", "v-1", code=1).stderr
    assert "no such workflows" in boki(url, "list", "--version", "3").stderr


def test_the_blocking_client_is_made_from_the_other_one() -> None:
    """Run `python -m tests.unasync` if this fails."""
    for name, twin in FLOW_TWINS.items():
        assert (FLOW_FOLDER / twin).read_text(encoding="utf-8") == plain_client(name)


def test_a_promise_that_is_rejected_raises(url: str) -> None:
    """From the shell and from a program; what ended without it is told that it comes too late."""
    for flow_id in ("r-1", "r-2"):
        boki(url, "start", "travel", "Oslo", "--id", flow_id)
        boki(url, "signal", "travel", flow_id, "approve", "true")
    boki(url, "reject", "travel", "r-1", "flight", "--reason", "no seats to Oslo")
    with BlockingClient(url) as client:
        BlockingFlowClient(client).handle("travel", "r-2").reject("flight")
    assert "no seats to Oslo" in boki(url, "result", "travel", "r-1", "--wait-s", "20", code=1).stderr
    assert "flight was rejected" in boki(url, "result", "travel", "r-2", "--wait-s", "20", code=1).stderr
    boki(url, "reject", "travel", "r-1", "flight")  # again
    assert "has ended" in boki(url, "reject", "travel", "r-1", "hotel", code=1).stderr
