"""Flow control: at once, how often, how late, and in which order, each decided once by a record of the log."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import boki.testing
from boki import BokiError, ConfigError, InvalidArgument
from boki.extending import CallsById
from boki.libs.bokiflow import Handle, Limit, WorkflowCancelled, flow, workflow
from boki.libs.bokiflow.face import queues as face_queues
from boki.libs.bokiflow.face.queues import Place, Queues
from boki.libs.bokiflow.gates.marks import gate_id_of
from boki.libs.bokiflow.gates.records import Admission, Asked, GateNote, gate_tag
from boki.libs.bokiflow.gates.state import Gate
from tests.libs.bokiflow.crashes import after_each_loss

RAN: list[str] = []
INSIDE: set[str] = set()
PEAK: list[int] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    RAN.clear()
    INSIDE.clear()
    PEAK.clear()


@dataclass
class Order:
    customer: str = "ada"
    seconds: float = 10.0


async def _work(order: Order) -> str:
    if flow.id not in RAN:
        RAN.append(flow.id)
    INSIDE.add(flow.id)
    PEAK.append(len(INSIDE))
    try:
        await flow.sleep(order.seconds)
    finally:
        INSIDE.discard(flow.id)
    return flow.id


@workflow(limit=Limit(concurrency=2))
async def two_at_once(order: Order) -> str:
    return await _work(order)


@workflow(limit=Limit(key="customer", concurrency=1))
async def one_each(order: Order) -> str:
    return await _work(order)


@workflow(limit=Limit(key="customer", concurrency=1, when_full="cancel_newest"))
async def first_only(order: Order) -> str:
    return await _work(order)


@workflow(limit=Limit(key="customer", concurrency=1, when_full="cancel_running"))
async def last_only(order: Order) -> str:
    try:
        return await _work(order)
    except asyncio.CancelledError:
        await flow.sleep(5)  # to clean up
        raise


@workflow(limit=Limit(rate=2, per_s=60))
async def twice_a_minute(order: Order) -> str:
    return await _work(order)


@workflow(limit=Limit(key="customer", debounce_s=5, debounce_most_s=12))
async def quiet(order: Order) -> str:
    return await _work(order)


async def results(handles: list[Handle[str]]) -> list[str]:
    """What each has come to; "" if it was cancelled."""
    found = []
    for handle in handles:
        try:
            found.append(await handle.result())
        except BokiError as error:
            assert "was cancelled" in str(error), error
            found.append("")
    return found


async def test_so_many_run_at_once_and_the_others_wait_in_their_order(
    boki_context: boki.testing.Context, each_mode: None
) -> None:
    """Two at once of seven: they begin in the order of their starts, and what waits says why."""
    ctx = boki_context
    handles = [await two_at_once.start(ctx, Order(), id=f"n{number}") for number in range(7)]
    await ctx.clock.advance(1)
    state = await handles[6].status()
    assert (state.status, state.note) == ("suspended", "waits for its turn: at most 2 at once")
    assert await results(handles) == [f"n{number}" for number in range(7)]
    assert max(PEAK) == 2
    assert [name[1:] for name in RAN] == [str(number) for number in range(7)]


async def test_each_key_has_its_own_limit(boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The field of the payload says whose it is; a start may say another key."""
    ctx = boki_context
    handles = [await one_each.start(ctx, Order(name), id=f"{name}{n}") for n in range(2) for name in ("ada", "bob")]
    handles.append(await one_each.start(ctx, Order("ada"), id="other", limit_key="special"))
    await ctx.clock.advance(2)
    assert sorted(INSIDE) == ["ada0", "bob0", "other"]
    assert (await handles[2].status()).note == "waits for its turn: at most 1 at once for 'ada'"
    hurried = await one_each.start(ctx, Order("ada"), id="hurried", priority=5)
    await ctx.clock.advance(1)
    read: list[str] = []
    records = face_queues._records
    monkeypatch.setattr(face_queues, "_records", lambda book, tag: read.append(tag) or records(book, tag))
    queues = Queues(ctx.logbook.session)
    places = [await queues.place_of(await CallsById(ctx).state(one.invocation_id)) for one in (*handles, hurried)]
    alone, first, second = (Place(n, of) for n, of in ((1, 1), (1, 2), (2, 2)))
    assert places == [None, None, second, alone, None, first]
    assert len(read) == 1, "all keys of a limit are in one log"
    assert len(await results(handles)) == 5


@pytest.mark.parametrize("end", ["fail", "cancel", "kill"])
async def test_a_place_is_free_again_however_a_workflow_ends(boki_context: boki.testing.Context, end: str) -> None:
    """Failed, cancelled or killed: the next one begins."""

    @workflow(limit=Limit(concurrency=1))
    async def single(fails: bool) -> str:
        await flow.sleep(10)
        if fails:
            raise ValueError("it fails")
        return "done"

    ctx = boki_context
    first = await single.start(ctx, end == "fail")
    second = await single.start(ctx, False)
    await ctx.clock.advance(1)
    if end != "fail":
        await (first.cancel() if end == "cancel" else first.kill())
    assert await second.result() == "done"
    third = await single.start(ctx, False)
    assert await third.result() == "done"


async def test_what_waits_can_be_cancelled_and_killed(boki_context: boki.testing.Context) -> None:
    """It never runs, and holds up nobody."""
    ctx = boki_context
    handles = [await one_each.start(ctx, Order(), id=str(n)) for n in range(4)]
    await ctx.clock.advance(1)
    await handles[1].cancel("not wanted")
    await handles[2].kill()
    await ctx.clock.advance(1)
    assert (await handles[1].status()).status == "cancelled"
    assert await handles[3].result() == "3"
    assert RAN == ["0", "3"]


async def cancelled_in_the_queue(ctx: boki.testing.Context) -> tuple[Handle[str], Handle[str]]:
    """One that runs, and one that was cancelled while it waited for its turn."""
    runs, waits = [await one_each.start(ctx, Order(), id=name) for name in ("runs", "waits")]
    await ctx.clock.advance(1)
    await waits.cancel("not wanted")
    assert await results([waits]) == [""]
    return runs, waits


async def test_an_id_that_was_cancelled_in_the_queue_is_started_again(boki_context: boki.testing.Context) -> None:
    """The request was for the life before; the new one has its turn, and can be cancelled in its turn."""
    ctx = boki_context
    await cancelled_in_the_queue(ctx)
    again = await one_each.start(ctx, Order(), id="waits", if_ended="again")
    await ctx.clock.advance(1)
    assert (await again.status()).note.startswith("waits for its turn")
    assert await again.result() == "waits"
    await one_each.start(ctx, Order(), id="other")
    once_more = await one_each.start(ctx, Order(), id="waits", if_ended="again")
    await ctx.clock.advance(1)
    await once_more.cancel("not wanted either")
    with pytest.raises(Exception, match="not wanted either"):
        await once_more.result()


async def test_an_id_that_was_cancelled_in_its_turn_is_started_again(boki_context: boki.testing.Context) -> None:
    """A workflow that ran and was cancelled leaves nothing that cancels the next one of its id."""
    ctx = boki_context
    for _ in range(2):
        handle = await one_each.start(ctx, Order(), id="o", if_ended="again")
        await ctx.clock.advance(1)
        await handle.cancel("not wanted")
        assert await results([handle]) == [""]
    assert await (await one_each.start(ctx, Order(), id="o", if_ended="again")).result() == "o"


async def test_the_newest_is_cancelled_if_the_policy_says_so(boki_context: boki.testing.Context) -> None:
    """What comes while one runs is refused with the limit; what comes after it has ended begins."""
    ctx = boki_context
    handles = [await first_only.start(ctx, Order(), id=str(n)) for n in range(3)]
    await ctx.clock.advance(1)
    with pytest.raises(Exception, match="the limit is reached: at most 1 at once for 'ada'"):
        await handles[1].result()
    assert (await handles[1].status()).status == "cancelled"
    assert await results(handles) == ["0", "", ""]
    handles.append(await first_only.start(ctx, Order(), id="3"))
    assert await handles[3].result() == "3"
    assert RAN == ["0", "3"]


async def test_the_running_one_is_cancelled_if_the_policy_says_so(
    boki_context: boki.testing.Context, each_mode: None
) -> None:
    """It ends as by a request, with its clean-up; of those that wait meanwhile the last one begins."""
    ctx = boki_context
    handles = [await last_only.start(ctx, Order(), id="0")]
    await ctx.clock.advance(2)
    handles += [await last_only.start(ctx, Order(), id=str(n)) for n in (1, 2)]
    assert await results(handles) == ["", "", "2"]
    assert RAN == ["0", "2"]
    with pytest.raises(Exception, match="a later start takes its place"):
        await handles[0].result()
    with pytest.raises(Exception, match="superseded by a later start"):
        await handles[1].result()


async def test_so_many_begin_in_a_time(boki_context: boki.testing.Context) -> None:
    """Two in any sixty seconds, by the log's time; what waits is woken by the clock alone."""
    ctx = boki_context
    handles = [await twice_a_minute.start(ctx, Order(), id=str(n)) for n in range(5)]
    await ctx.clock.advance(5)
    assert RAN == ["0", "1"]
    await ctx.clock.advance(50)
    assert RAN == ["0", "1"]
    await ctx.clock.advance(10)
    assert RAN == ["0", "1", "2", "3"]
    assert await results(handles) == ["0", "1", "2", "3", "4"]


async def test_a_debounced_start_waits_for_quiet_but_not_for_ever(boki_context: boki.testing.Context) -> None:
    """The last of a burst begins 5 s after it; in a burst without an end, 12 s after the first one."""
    ctx = boki_context
    handles = []
    for number in range(3):
        handles.append(await quiet.start(ctx, Order(seconds=0), id=f"a{number}"))
        await ctx.clock.advance(3)
    assert RAN == []
    await ctx.clock.advance(3)
    assert RAN == ["a2"]
    for number in range(8):
        handles.append(await quiet.start(ctx, Order(seconds=0), id=f"b{number}"))
        await ctx.clock.advance(3)
    assert RAN[1] in ("b3", "b4"), "the cap of 12 s"
    await ctx.clock.advance(20)
    found = await results(handles)
    assert [name for name in found if name] == RAN
    assert found[-1] == "b7"


async def test_a_higher_priority_goes_first(boki_context: boki.testing.Context) -> None:
    """Among those that wait; the same priority by the order of the starts."""
    ctx = boki_context
    order = {"low": -5, "one": 0, "high": 9, "two": 0, "higher": 10}
    await one_each.start(ctx, Order(), id="first")
    await ctx.clock.advance(1)
    handles = [await one_each.start(ctx, Order(), id=name, priority=value) for name, value in order.items()]
    await results(handles)
    assert RAN == ["first", "higher", "high", "one", "two", "low"]


async def test_a_limit_may_be_declared_on_a_start(boki_context: boki.testing.Context) -> None:
    """It is recorded with the start; attributes that lists show do not have it."""

    @workflow
    async def free(order: Order) -> str:
        return await _work(order)

    ctx = boki_context
    limit = Limit(concurrency=1)
    handles = [await free.start(ctx, Order(), id=str(n), limit=limit, attributes={"a": 1}) for n in range(3)]
    await ctx.clock.advance(1)
    assert (await handles[0].status()).attributes == {"a": 1}
    await results(handles)
    assert max(PEAK) == 1


async def test_children_and_schedules_are_limited_too(boki_context: boki.testing.Context) -> None:
    """A child has its turn as any other start; its parent waits."""

    @workflow
    async def parent(count: int) -> list[str]:
        return await asyncio.gather(*(flow.call(one_each, Order(), id=f"c{n}") for n in range(count)))

    ctx = boki_context
    assert sorted(await (await parent.start(ctx, 3)).result()) == ["c0", "c1", "c2"]
    assert max(PEAK) == 1
    await one_each.schedule(ctx, Order(seconds=90), id="m", cron="* * * * *", overlap="allow")
    await ctx.clock.advance(400)
    assert max(PEAK) == 1
    assert len(RAN) >= 6


async def test_a_place_is_given_once_whatever_crashes() -> None:
    """Each append is lost once, with and without its effect: never two at once, and all come to their end."""
    tries = 0
    async for ctx in after_each_loss():
        RAN.clear()
        PEAK.clear()
        handles = [await one_each.start(ctx, Order(seconds=3), id=str(n)) for n in range(3)]
        assert sorted(await results(handles)) == ["0", "1", "2"]
        assert max(PEAK) == 1
        tries += 1
    assert tries > 20


async def test_the_records_of_a_limit_are_trimmed(boki_context: boki.testing.Context) -> None:
    """However many have had their turn, there are few records."""
    ctx = boki_context
    handles = [await two_at_once.start(ctx, Order(seconds=0), id=str(n)) for n in range(60)]
    await results(handles)
    await ctx.clock.advance(10)
    gate = gate_id_of("two_at_once", ctx.logbook.name)
    assert len((await ctx.logbook.read(gate_tag(gate))).records) < 140


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (Limit(concurrency=-1), "concurrency must be"),
        (Limit(rate=1, per_s=0), "per_s must be"),
        (Limit(when_full="cancel_newest"), "needs a concurrency"),
        (Limit(concurrency=1, when_full="dance"), "when_full must be one of"),  # type: ignore[arg-type]
        (Limit(debounce_s=5, debounce_most_s=1), "must not be shorter"),
        ("two", "limit must be a Limit"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(limit: Any, said: str) -> None:
    """When the module is loaded, with the field."""
    with pytest.raises((InvalidArgument, ConfigError), match=said):
        workflow(limit=limit)


async def test_wrong_keys_and_priorities_are_refused(boki_context: boki.testing.Context) -> None:
    """A payload without the field, and a priority that is none."""

    @workflow(limit=Limit(key="nobody", concurrency=1))
    async def keyless(order: Order) -> str:
        return order.customer

    ctx = boki_context
    with pytest.raises(InvalidArgument, match="priority must be a whole number"):
        await one_each.start(ctx, Order(), priority=5_000)
    with pytest.raises(Exception, match="counts by the field 'nobody'"):
        await (await keyless.start(ctx, Order())).result()
    assert issubclass(WorkflowCancelled, Exception)


def asked(name: str, *, call: str = "", limit: Limit, priority: int = 0) -> Asked:
    return Asked(name, call or f"call of {name}", "k", priority, limit)


def folded(*notes: GateNote) -> Gate:
    gate = Gate()
    for seqnum, note in enumerate(notes, 1):
        gate.apply(seqnum, seqnum * 1_000_000, note)
    return gate


def test_the_fold_decides_once() -> None:
    """What was let begin is not let begin again; a request that comes again is the same one; ends make room."""
    one = Limit(concurrency=1)
    gate = folded(asked("a", limit=one), asked("a", limit=one), asked("b", limit=one))
    decided = gate.decide(9)
    assert decided is not None
    assert decided.admitted == ("a",)
    assert gate.calls_of(decided) == ["call of a"]
    gate.apply(9, 9, decided)
    assert gate.decide(10) is None
    gate.end("call of a", 77)
    after = gate.decide(11)
    assert after == Admission(11, ("b",), (), (), ("a",), 77)
    again = folded(gate.kept())
    assert (again.waiting, again.running) == (gate.waiting, gate.running)


def test_a_workflow_that_is_started_again_keeps_its_place() -> None:
    """The end of its life before frees the place of that one, and not the request of the new one."""
    one = Limit(concurrency=1)
    gate = folded(asked("a1", call="a", limit=one), Admission(5, ("a1",)), asked("a2", call="a", limit=one))
    gate.end("a", 9)
    decided = gate.decide(20)
    assert decided is not None
    assert (decided.ended, decided.admitted) == (("a1",), ("a2",))
