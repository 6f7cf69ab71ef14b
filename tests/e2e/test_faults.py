"""Real faults on a real cluster of processes: classes of `boki chaos`, each once, and stories of single losses.

One cluster serves all tests of this file, in their order; each leaves it with every node at work. That the round could
fail is shown, too: its own history, falsified in one place, does not pass the checkers.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from typing import Any

import pytest

from boki.client import Client
from boki.errors import BokiError
from boki.log.membership import Role
from boki.verify.chaos import object_watch, queue_watch
from boki.verify.chaos.faults import FAULTS, Fault, becomes_so
from boki.verify.chaos.run import Chaos, Report
from boki.verify.histories.checkers import find_violations
from boki.verify.histories.history import Appending, Call, History, Ordered, Reading, Readout, Row, Seen, Shown
from tests.e2e.ward import SEED, Ward

pytestmark = pytest.mark.xdist_group("faults")

SAMPLE = {
    "kill-gateway",
    "kill-storage",
    "kill-controller",
    "kill-primary",
    "stop-engine",
    "stop-primary",
    "cut-one-way",
    "cut-both-ways",
    "reset-links",
    "disk-full",
    "sync-fails",
    "zookeeper-leader",
    "reconfigure",
}
"""Classes of the round in the ordinary run. The stories have others; `--whole` has all."""
HOLD_S = 0.5
PAYLOAD = b"x" * 2000
HALT_S = 6.5
"""Longer than every timeout of nodes, sessions and connections."""
CALLERS = 8
CALLS = 6
TURNS = 3


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    with asyncio.Runner() as runner:
        made = Ward(tmp_path_factory.mktemp("faults"), runner)
        try:
            made.run(made.target.start())
            yield made
        finally:
            made.run(made.target.stop())


@pytest.fixture(scope="module")
def faults(pytestconfig: pytest.Config) -> list[Fault]:
    """What a round consists of: each held no longer than it must."""
    is_whole = pytestconfig.getoption("whole")
    chosen = [fault for fault in FAULTS if is_whole or fault.name in SAMPLE]
    return [replace(fault, hold_s=(min(fault.hold_s[0], HOLD_S), HOLD_S)) for fault in chosen]


@pytest.fixture(scope="module")
def report(ward: Ward, faults: list[Fault]) -> Report:
    """A round of faults."""
    chaos = Chaos(
        ward.target,
        ward.folder,
        seed=SEED,
        duration_s=0,
        faults=faults,
        sessions=4,
        rest_s=(0.1, 0.2),
        tell=ward.said.append,
    )
    return ward.run(chaos.run())


@pytest.fixture(scope="module")
def rows(report: Report, ward: Ward) -> list[Row]:
    """What the sessions of the round have asked, and were told."""
    with (ward.folder / "history.jsonl").open("rb") as lines:
        return History.from_lines(lines).rows


def test_every_class_of_faults_is_felt_and_breaks_no_promise(report: Report, faults: list[Fault], ward: Ward) -> None:
    """Nothing acknowledged is lost or doubled, nobody reads the past, and all continues: issue 3, point 10."""
    assert report.is_clean, "\n".join([*report.violations, *report.missing, *ward.said])
    users = {queue_watch.KILL, queue_watch.STOP, object_watch.KILL, object_watch.STOP}
    assert report.faults.keys() == users | {fault.name for fault in faults}
    assert report.messages > 20
    assert report.acknowledged > 50
    assert report.transactions > 5
    assert report.workflows > 0
    assert report.terms > 1


def _acknowledged(rows: list[Row]) -> tuple[Call, int]:
    """An append of one record without a key whose record stands in the end, and its seqnum."""
    standing = {seen.seqnum for row in rows if isinstance(row, Readout) for seen in row.records}
    return next(
        (row, row.result.seqnums[0])
        for row in rows
        if isinstance(row, Call)
        and isinstance(row.request, Appending)
        and len(row.request.records) == 1
        and row.request.key is None
        and isinstance(row.result, Ordered)
        and row.result.seqnums[0] in standing
    )


def _in_readouts(rows: list[Row], change: Callable[[str, tuple[Seen, ...]], tuple[Seen, ...]]) -> list[Row]:
    """The rows, with other records found in the end."""
    return [
        Readout(row.reader, row.book, row.at_us, change(row.book, row.records)) if isinstance(row, Readout) else row
        for row in rows
    ]


def _without_an_acknowledged_record(rows: list[Row]) -> list[Row]:
    _, lost = _acknowledged(rows)
    return _in_readouts(rows, lambda _book, found: tuple(seen for seen in found if seen.seqnum != lost))


def _with_a_record_twice(rows: list[Row]) -> list[Row]:
    call, seqnum = _acknowledged(rows)

    def change(book: str, found: tuple[Seen, ...]) -> tuple[Seen, ...]:
        if book != call.book:
            return found
        record = next(seen for seen in found if seen.seqnum == seqnum)
        return (*found, Seen(found[-1].seqnum + 1, record.payload, record.tags, found[-1].time_us))

    return _in_readouts(rows, change)


def _with_two_records_exchanged_for_one_reader(rows: list[Row]) -> list[Row]:
    readout = next(row for row in rows if isinstance(row, Readout) and len(row.records) > 1)
    first, second, *others = readout.records
    exchanged = (
        Seen(first.seqnum, second.payload, second.tags, first.time_us),
        Seen(second.seqnum, first.payload, first.tags, second.time_us),
    )
    changed = Readout(readout.reader, readout.book, readout.at_us, (*exchanged, *others))
    return [changed if row is readout else row for row in rows]


def _with_a_read_of_the_past(rows: list[Row]) -> list[Row]:
    """The session that appended asks for the book's end, and its record is not there yet."""
    call, seqnum = _acknowledged(rows)
    asked = Reading(start=seqnum, limit=1)
    past = Call(
        call.session, call.book, asked, call.end_us + 1, call.end_us + 10**7, call.end_us + 2, Shown(()), call.positions
    )
    at = rows.index(call) + 1
    return [*rows[:at], past, *rows[at:]]


@pytest.mark.parametrize(
    ("falsify", "promise"),
    [
        (_without_an_acknowledged_record, "nothing acknowledged is lost"),
        (_with_a_record_twice, "nothing is doubled"),
        (_with_two_records_exchanged_for_one_reader, "total order"),
        (_with_a_read_of_the_past, "read your writes"),
    ],
)
def test_the_round_could_have_failed(falsify: Callable[[list[Row]], list[Row]], promise: str, rows: list[Row]) -> None:
    """The very history that passed does not pass with one lie in it."""
    assert not find_violations(History(rows))
    found = find_violations(History(falsify(rows)))
    assert any(violation.promise.startswith(promise) for violation in found), found


def test_a_storage_node_that_lost_its_disk_refills_itself(report: Report, ward: Ward) -> None:
    """As another incarnation it takes what it held from the others; then the next one may be lost."""

    async def story() -> None:
        async with ward.client() as client:
            book = client.logbook("refill")
            rows = [(PAYLOAD, ("all",)) for _ in range(200)]
            seqnums = await ward.insist(lambda: book.append_many(rows, key="rows"))
            await ward.until(ward.target.is_whole)
            victim = await _holder(ward)
            ward.target.wipe(victim)

            async def is_refilled() -> bool:
                told = (await _nodes(ward)).get(victim) or {}
                # the newest shard, with what was just appended, may be one of those that it does not hold
                has_copied = told.get("at_work") and told["repair"]["copied_bytes"] > 0
                return bool(has_copied) and await ward.target.is_whole()

            await ward.until(is_refilled)
            others = [node for node in ward.target.nodes(Role.STORAGE) if node != victim]
            ward.target.kill(others[0])
            await ward.append(book, b"on")
            assert [record.seqnum for record in await ward.read_all(book, "all")] == seqnums
            await ward.all_at_work()

    ward.run(story())


async def _holder(ward: Ward) -> str:
    """The storage node that holds most shards."""
    await ward.all_at_work()
    nodes = await ward.insist(lambda: _nodes(ward))
    return max(ward.target.nodes(Role.STORAGE), key=lambda node: (nodes[node] or {}).get("shards", 0))


def test_a_sequencer_that_lost_its_disk_counts_again_in_a_later_term(report: Report, ward: Ward) -> None:
    """Until then it has no vote; after that the primary may be killed, and the two that are left order appends."""

    async def story() -> None:
        async with ward.client() as client:
            book = client.logbook("votes")
            first = await ward.append(book, b"first")
            term = await _term(ward)
            await ward.inflict("wipe-sequencer")

            async def counts_again() -> bool:
                return await _term(ward) > term

            await ward.until(counts_again)
            await ward.inflict("kill-primary")
            second = await ward.append(book, b"second")
            assert [record.seqnum for record in await ward.read_all(book)] == [first, second]
            await ward.all_at_work()

    ward.run(story())


async def _term(ward: Ward) -> int:
    """The newest term that a node has heard of."""
    return max((told.get("term", 0) for told in (await _nodes(ward)).values() if told), default=0)


async def _nodes(ward: Ward) -> dict[str, Any]:
    """What each node reports of itself; nothing while the gateway is too busy to say."""
    nodes: dict[str, Any] = (await ward.target.status()).get("nodes", {})
    return nodes


def test_calls_in_flight_on_a_killed_engine_run_again_elsewhere_and_are_recorded_once(
    report: Report, ward: Ward
) -> None:
    """An accepted call and one under a key start a second time, on the engine that is left; each has one result."""

    async def story() -> None:
        async with ward.client() as client:
            runs = client.logbook("runs")

            def accept() -> Awaitable[str]:
                return client.invoke_later("hang", "accepted", key="accepted")

            def invoke() -> Awaitable[str]:
                return client.invoke("hang", "keyed", key="keyed", timeout_s=50, result_type=str)

            accepted = await ward.insist(accept)
            await ward.insist(lambda: runs.read_next("accepted", wait_s=20))
            await _kill_engine_at_work(ward)
            state = await ward.insist(lambda: client.invocation(accepted, wait_s=40))
            assert (state.state, state.result) == ("done", "did accepted")
            await ward.all_at_work()
            keyed = asyncio.create_task(ward.insist(invoke))
            await ward.insist(lambda: runs.read_next("keyed", wait_s=20))
            await _kill_engine_at_work(ward)
            assert await keyed == "did keyed"
            assert await ward.insist(invoke) == "did keyed"
            assert await ward.insist(accept) == accepted
            assert all([len(await ward.read_all(runs, name)) > 1 for name in ("accepted", "keyed")])
            await ward.all_at_work()

    ward.run(story())


async def _kill_engine_at_work(ward: Ward) -> None:
    """The one that runs a logged call."""

    async def is_killed() -> bool:
        nodes = await _nodes(ward)
        engines = ward.target.nodes(Role.ENGINE)
        at_work = [node for node in engines if (nodes.get(node) or {}).get("calls", {}).get("running")]
        for node in at_work:
            ward.target.kill(node)
        return bool(at_work)

    await ward.until(is_killed)


def test_answers_and_streams_cross_the_gateway_and_break_with_their_engine(ward: Ward) -> None:
    """A `Response`, a route, and a stream come as the function made them; one whose engine is killed is cut off.

    The links between the nodes go through this event loop, so all reads are in threads.
    """

    def fetch(path: str) -> HTTPResponse:
        connection = HTTPConnection(ward.target.url.removeprefix("http://"), timeout=30)
        connection.request("GET", path, headers={"Connection": "close"})
        return connection.getresponse()

    async def answered(path: str, status: int = 200) -> HTTPResponse:
        async def ask() -> HTTPResponse:
            answer = await asyncio.to_thread(fetch, path)
            if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:  # an engine or the gateway has lost its session
                raise HTTPException
            return answer

        answer = await ward.insist(ask)
        assert answer.status == status
        return answer

    async def story() -> None:
        await ward.all_at_work()
        for _ in range(4):  # by each engine
            answer = await answered("/echo/tea?more=1&more=2", 203)
            assert answer.headers["X-Mine"] == "tea"
            assert json.loads(await asyncio.to_thread(answer.read)) == ["tea", "/echo/tea", ["1", "2"]]
        ended = await answered("/lines/3")
        assert await asyncio.to_thread(ended.read) == b"line 0\nline 1\nline 2\n"
        endless = await answered("/lines/-1")
        assert await asyncio.to_thread(endless.readline) == b"line 0\n"
        for node in ward.target.nodes(Role.ENGINE):
            ward.target.kill(node)
        with pytest.raises(IncompleteRead):
            await asyncio.to_thread(endless.read)
        await ward.all_at_work()

    ward.run(story())


def test_an_engine_that_is_told_to_stop_fails_no_call(report: Report, ward: Ward) -> None:
    """Plain calls continue while one engine drains and ends; its process ends in good order."""

    async def story() -> None:
        async with ward.client() as client:
            for turn in range(TURNS):
                await ward.all_at_work()
                before = await _lives(ward)
                failures = await drain(client, turn)
                await ward.all_at_work()
                if before == await _lives(ward):  # else others have lost their sessions meanwhile, on a loaded machine
                    assert not failures
                    runs = await ward.read_all(client.logbook("runs"))
                    done = {record.data for record in runs if record.data.startswith(f"drain-{turn}-".encode())}
                    assert len(done) == CALLERS * CALLS
                    break
        assert any(re.search(r"engine-1 ended with code 0", line) for line in ward.said)

    async def drain(client: Client, turn: int) -> list[BokiError]:
        failures: list[BokiError] = []

        async def call_all_the_time(caller: int) -> None:
            for number in range(CALLS):
                name = f"drain-{turn}-{caller}-{number}"
                try:
                    assert await client.invoke("count", name, timeout_s=20, result_type=str) == f"did {name}"
                except BokiError as error:
                    failures.append(error)

        calling = asyncio.gather(*(call_all_the_time(number) for number in range(CALLERS)))
        before = ward.target.pid("engine-1")
        ward.target.signal("engine-1", signal.SIGTERM)
        await calling

        async def is_another() -> bool:
            return ward.target.pid("engine-1") not in (0, before)

        await ward.until(is_another)
        return failures

    ward.run(story())


async def _lives(ward: Ward) -> dict[str, int]:
    """The incarnations of all nodes but engine-1."""
    nodes = await ward.insist(lambda: _nodes(ward))
    return {node: told["incarnation"] for node, told in nodes.items() if told and node != "engine-1"}


def test_nodes_that_stood_still_go_on_as_the_same_processes(report: Report, ward: Ward) -> None:
    """Longer than every timeout, one of each role and then all at once: libzmq ended four of eight (found.md part 3,
    1). What was appended meanwhile is there or was never acknowledged."""

    async def story() -> None:
        target = ward.target
        one_each = [target.nodes(role)[0] for role in Role if role is not Role.GATEWAY]
        async with ward.client() as client:
            book = client.logbook("halted")
            await ward.all_at_work()
            pids = {node: target.pid(node) for node in target.all_nodes()}
            for nodes in (one_each, target.all_nodes()):
                for node in nodes:
                    target.pause(node)
                appends = [asyncio.create_task(book.append(PAYLOAD, timeout_s=HALT_S)) for _ in range(500)]
                assert not await becomes_so(nothing, HALT_S)
                for node in nodes:
                    target.resume(node)
                outcomes = await asyncio.gather(*appends, return_exceptions=True)
                await ward.all_at_work()
                seqnums = {one for one in outcomes if isinstance(one, int)} | {
                    await ward.append(book, f"on {nodes}".encode())
                }
                assert seqnums <= {record.seqnum for record in await ward.read_all(book)}
            assert {node: target.pid(node) for node in target.all_nodes()} == pids

    ward.run(story())


async def nothing() -> bool:
    """What is never so."""
    return False


def test_after_a_power_cut_nodes_may_come_back_in_any_order(report: Report, ward: Ward) -> None:
    """Every acknowledged record is there, and appends continue."""

    async def story() -> None:
        async with ward.client() as client:
            book = client.logbook("dark")
            seqnums = [await ward.append(book, str(number).encode()) for number in range(20)]
            await ward.inflict("power-cut")
            assert "they come back as" in next(line for line in reversed(ward.said) if "power cut" in line)
            await ward.all_at_work()
            seqnums.append(await ward.append(book, b"after"))
            assert [record.seqnum for record in await ward.read_all(book)] == seqnums

    ward.run(story())
