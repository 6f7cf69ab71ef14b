"""The fold of a queue's shard: against a naive model, from checkpoints, and its rules one by one."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boki import CorruptData, Record, VersionTooNew
from boki.libs.bokiqueue import state
from boki.libs.bokiqueue.groups import MAX_ASIDE, Segment
from boki.libs.bokiqueue.operating import depth, length
from boki.libs.bokiqueue.records import (
    ACK,
    BURY,
    EXTEND,
    GIVE_BACK,
    NACK,
    REDRIVE,
    RELEASE,
    Act,
    Carry,
    Credit,
    Done,
    DropGroup,
    Grant,
    OpenGroup,
    Push,
    Saved,
    Settings,
    Settle,
    Setup,
    Take,
    decode,
    encode,
    fault,
    sound,
)
from boki.libs.bokiqueue.sessions import TAKER_US, Given
from boki.libs.bokiqueue.state import OP_US, ShardState, Snapshot
from tests.libs.bokiqueue.naive import NaiveShard

SECOND = 1_000_000


class Stream:
    """Records in order, and the fold over them. From time to time the fold continues from a checkpoint of itself."""

    def __init__(self, *, max_deliveries: int = 0, retain_us: int = 0, reload_every: int = 0) -> None:
        self.state = ShardState()
        self.records: list[tuple[int, int, Any]] = []
        self.now_us = 1_000 * SECOND
        self.number = 0
        self.reload_every = reload_every
        self.append(Setup(0, Settings(1, max_deliveries, 0, retain_us)))

    def append(self, record: Any) -> Given | None:
        seqnum = 10 * (len(self.records) + 1)
        record = decode(encode(record))
        assert fault(record, seqnum) == "", "what the library writes is valid"
        history = self.state.history_for(record)
        if history is not None:
            self.state.backlog.put_before(self.pushes(*history))
        self.records.append((seqnum, self.now_us, record))
        given = self.state.apply(seqnum, self.now_us, record)
        if self.reload_every and len(self.records) % self.reload_every == 0:
            self.reload()
        return given

    def pushes(self, start: int, stop: int) -> list[Segment]:
        start = max(start, self.state.floor)
        return [Segment.of(s, 0, t, r) for s, t, r in self.records if start <= s < stop and isinstance(r, Push)]

    def reload(self) -> None:
        """Start again from a checkpoint, and from what a trim up to its floor would have left."""
        snapshot = msgspec.msgpack.decode(msgspec.msgpack.encode(self.state.snapshot()), type=Snapshot)
        self.state = ShardState.restored(0, snapshot)
        for seqnum, time_us, record in self.records:
            if seqnum >= snapshot.resume:
                self.state.apply(seqnum, time_us, record)

    def push(self, count: int = 1, **options: Any) -> int:
        self.append(Push(0, b"\x00", [b"x"] * count, **options))
        return self.records[-1][0]

    def act(self, taker: bytes = b"me", **parts: Any) -> Given:
        self.number += 1
        given = self.append(Act(0, taker, self.number, **parts))
        assert given is not None
        return given

    def take(self, count: int = 1, lease_s: float = 0, group: str = "", **options: Any) -> list[int]:
        deliveries = self.act(takes=[Take(group, count, int(lease_s * SECOND), **options)]).takes[0]
        assert deliveries is not None
        return [one.spot.pos for one in deliveries]

    @property
    def token(self) -> int:
        """Of the take that was appended last."""
        return self.records[-1][0]

    def settle(self, verb: int, pos: int, token: int, span_s: float = 0, reason: str = "", group: str = "") -> bool:
        one = Settle(group, verb, [(pos, token)], int(span_s * SECOND), reason)
        return self.act(settles=[one]).settles[0][0]

    def fence(self, group: str = "") -> None:
        overdue = self.state.groups[group].overdue(self.now_us, 1_000)
        self.act(fences=[(group, pos, token) for pos, token in overdue])


def settled(model: NaiveShard, verb: int, pos: int, token: int, now_us: int, span_us: int) -> bool:
    """What the naive model says to a settlement."""
    match verb:
        case 0:
            return model.ack(pos, token, now_us)
        case 1:
            return model.nack(pos, token, now_us, span_us)
        case 2:
            return model.extend(pos, token, now_us, span_us)
        case 3:
            return model.release(pos, token, now_us)
        case _:
            return model.redrive(pos)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 7]), st.sampled_from([0, 1, 3]), st.booleans())
def test_the_fold_gives_what_the_naive_model_gives(
    seed: int, reload_every: int, max_deliveries: int, has_keys: bool
) -> None:
    """Any history of pushes, takes, acks, nacks, leases that run out, delays, expiries and keys: the same messages go
    to the same takes, and the same settlements hold; also if the fold starts from checkpoints all the time.
    """
    random = Random(seed)
    stream = Stream(max_deliveries=max_deliveries, reload_every=reload_every)
    model = NaiveShard(max_deliveries)
    leases = [(0, 0)]
    for _ in range(60):
        stream.now_us += random.choice([0, 0, 1, 2, 10]) * SECOND
        now_us = stream.now_us
        step = random.choice(["push", "push", "take", "take", "lease", "lease", "settle", "settle", "fence"])
        if step == "push":
            count = random.randint(1, 4)
            keys = [random.choice(["", "a", "b"]) for _ in range(count)] if has_keys else []
            delay_us, ttl_us = random.choice([0, 0, 3 * SECOND]), random.choice([0, 0, 0, 8 * SECOND])
            stream.push(count, delay_us=delay_us, ttl_us=ttl_us, keys=keys)
            model.push(now_us, keys, count, delay_us, ttl_us)
        elif step in ("take", "lease"):
            count, lease_s = random.randint(1, 5), random.choice([2, 5]) if step == "lease" else 0
            taken = stream.take(count, lease_s)
            assert taken == model.take(now_us, count, lease_s * SECOND, stream.token)
            leases += [(pos, stream.token) for pos in taken]
        elif step == "fence" and "" in stream.state.groups:
            stream.fence()
            model.fence(now_us)
        else:
            pos, token = random.choice(leases)
            verb = random.choice([ACK, ACK, NACK, EXTEND, RELEASE, REDRIVE])
            span_s = random.choice([0, 4])
            if verb == RELEASE and pos < len(model.messages) and model.messages[pos].status == "done":
                continue  # giving back what was taken permanently has a test of its own
            assert stream.settle(verb, pos, token, span_s) == settled(model, verb, pos, token, now_us, span_s * SECOND)


def test_messages_come_in_the_order_of_their_pushes() -> None:
    """Across pushes of one and of many, and takes that end within a push."""
    stream = Stream()
    for count in (1, 5, 2):
        stream.push(count)
    assert [stream.take(3), stream.take(2), stream.take(9), stream.take()] == [[0, 1, 2], [3, 4], [5, 6, 7], []]


def test_an_act_counts_once() -> None:
    """A process repeats an act whose outcome it does not know: nothing is taken twice."""
    stream = Stream()
    stream.push(2)
    act = Act(0, b"me", 1, takes=[Take("", 1)])
    assert stream.append(act) is not None
    assert stream.append(act) is None
    stream.number = 1
    assert stream.take() == [1]


def test_an_op_is_given_the_same_messages_again() -> None:
    """From whichever process, until it is forgotten; its messages are kept for it this long."""
    stream = Stream(reload_every=1)
    stream.push(2)
    assert stream.take(op="a") == [0]
    again = stream.act(b"other", takes=[Take("", 1, 0, "a")]).takes[0]
    assert again is not None
    assert [one.spot.pos for one in again] == [0]
    assert stream.state.needed_floor(stream.now_us) == 20
    stream.now_us += OP_US
    assert stream.take(op="a") == [1]
    assert stream.take(op="b") == []
    stream.push()
    assert stream.take(op="b") == [2]


def test_what_a_taker_was_given_is_kept_until_it_acts_again() -> None:
    """A process that has not seen the answer yet can still read the message; one that is gone is forgotten."""
    stream = Stream()
    first = stream.push()
    stream.take()
    assert stream.state.needed_floor(stream.now_us) == first
    stream.take()
    assert stream.state.needed_floor(stream.now_us) > first
    second = stream.push()
    stream.take()
    stream.now_us += TAKER_US + SECOND
    stream.act(b"other")
    assert b"me" not in stream.state.takers.last
    assert stream.state.needed_floor(stream.now_us) > second


def test_what_nobody_received_is_put_back() -> None:
    """Only by its taker, for as long as that says that it may be, once, and under its token; users cannot do it."""
    stream = Stream(reload_every=1)
    stream.push(4)
    assert stream.take(3) == [0, 1, 2]
    token = stream.token
    assert not stream.settle(RELEASE, 0, token)
    assert stream.act(b"other", settles=[Settle("", GIVE_BACK, [(0, token)])]).settles == [[False]]
    stream = Stream(reload_every=1)
    first = stream.push(4)
    assert stream.take(3) == [0, 1, 2]
    token = stream.token
    for _ in range(3):
        stream.act(kept_from=token)
    assert stream.state.needed_floor(stream.now_us) == first
    back = Settle("", GIVE_BACK, [(1, token), (0, token + 1), (7, token)])
    assert stream.act(settles=[back], kept_from=token).settles == [[True, False, False]]
    assert stream.act(settles=[back], kept_from=token).settles == [[False, False, False]]
    assert stream.act(b"other", takes=[Take("", 1)]).takes[0][0].spot.pos == 1  # type: ignore[index]
    assert stream.act(settles=[back], kept_from=token).settles == [[False, False, False]]
    stream.act()
    assert stream.act(settles=[Settle("", GIVE_BACK, [(2, token)])], kept_from=token).settles == [[False]]
    assert stream.take(9) == [3]


def test_what_was_taken_before_a_group_began_anew_is_not_put_back() -> None:
    """It is given to the new one anyway."""
    stream = Stream(retain_us=1000 * SECOND)
    stream.push(2)
    stream.take(2)
    token = stream.token
    stream.append(OpenGroup(0, "", is_anew=True))
    stream.act(settles=[Settle("", GIVE_BACK, [(0, token), (1, token)])], kept_from=token)
    assert stream.take(9) == [0, 1]


def test_a_lease_ends_by_its_time_and_a_fence() -> None:
    """From its end on an ack changes nothing; a fence that comes too early changes nothing either."""
    stream = Stream()
    stream.push()
    assert stream.take(lease_s=10) == [0]
    token = stream.token
    stream.now_us += 10 * SECOND - 1
    assert not stream.act(fences=[("", 0, token)], takes=[Take("", 1)]).takes[0]
    stream.now_us += 1
    assert not stream.settle(ACK, 0, token)
    fenced = stream.act(fences=[("", 0, token)], takes=[Take("", 1, SECOND)]).takes[0]
    assert fenced is not None
    assert fenced[0].deliveries == 2
    assert not stream.settle(ACK, 0, token)
    assert stream.settle(ACK, 0, stream.records[-2][0])


def test_effects_that_committed_count_until_the_fence() -> None:
    """They stand in the log only if no fence came first, so their ack holds also a little after the lease's time."""
    stream = Stream()
    stream.push(2)
    stream.take(2, lease_s=10)
    token = stream.token
    stream.now_us += 11 * SECOND
    stream.append(Done(0, "", [(0, token), (0, token)]))
    assert depth(stream.state, "") == 1
    stream.fence()
    stream.append(Done(0, "", [(1, token)]))
    assert stream.take() == [1]


def test_a_fence_that_was_appended_twice_is_the_last_one_where_it_stands_last() -> None:
    """It counts once, and still is the last record of the fence tag: who commits expects it there (simulator, 153)."""
    stream = Stream()
    stream.push()
    stream.take(lease_s=10)
    stream.now_us += 10 * SECOND
    stream.fence()
    again = stream.records[-1]
    assert stream.state.last_fence == again[0]
    assert stream.append(again[2]) is None
    assert stream.state.last_fence == stream.records[-1][0] > again[0]
    stream.reload()
    assert stream.state.last_fence == stream.records[-1][0]


def test_a_message_that_fails_too_often_becomes_a_dead_letter_with_the_reason() -> None:
    """By nacks and by leases that run out; it is taken again only when it is redriven."""
    stream = Stream(max_deliveries=2, reload_every=1)
    stream.push(2)
    for number in range(2):
        assert stream.take(lease_s=10) == [0]
        assert stream.settle(NACK, 0, stream.token, reason=f"no {number}")
    for _ in range(2):
        assert stream.take(lease_s=10) == [1]
        stream.now_us += 10 * SECOND
        stream.fence()
    group = stream.state.groups[""]
    assert group.aside[0].reason == "delivered 2 times; the last time: no 1"
    assert group.aside[1].reason == "delivered 2 times; the last time: its lease ran out"
    assert stream.take() == []
    assert stream.settle(REDRIVE, 1, 0)
    assert not stream.settle(REDRIVE, 1, 0)
    assert stream.take() == [1]
    assert stream.take(lease_s=1) == []


def test_a_consumer_may_give_a_message_up_at_once() -> None:
    """Whatever is left of its deliveries."""
    stream = Stream(max_deliveries=9)
    stream.push()
    stream.take(lease_s=10)
    assert stream.settle(BURY, 0, stream.token, reason="not JSON")
    assert stream.state.groups[""].aside[0].reason == "not JSON"


def test_each_group_is_given_every_message() -> None:
    """From where it began; what one does with a message is nothing to the others; unknown groups are told so."""
    stream = Stream(reload_every=1)
    stream.push(2)
    stream.append(OpenGroup(0, "early"))
    stream.append(OpenGroup(0, "late", start_seqnum=stream.records[-1][0]))
    stream.push()
    assert (stream.take(9, group="early"), stream.take(9, group="late")) == ([0, 1, 2], [2])
    assert stream.act(takes=[Take("nobody", 1)]).takes == [None]
    stream.append(DropGroup(0, "early"))
    assert stream.act(takes=[Take("early", 1)]).takes == [None]


def test_a_new_group_begins_at_any_point_that_is_retained() -> None:
    """By seqnum and by time, though every other group has passed it; what was trimmed is gone."""
    stream = Stream(retain_us=100 * SECOND)
    times = {}
    for number in range(6):
        times[number] = stream.now_us
        stream.push()
        stream.take()
        stream.append(Saved(0, stream.state.at, 1, stream.state.needed_floor(stream.now_us)))
        stream.now_us += 40 * SECOND
    pushed = [seqnum for seqnum, _, record in stream.records if isinstance(record, Push)]
    assert pushed[1] < stream.state.floor <= pushed[3]
    stream.append(OpenGroup(0, "a", start_seqnum=pushed[4]))
    stream.append(OpenGroup(0, "b", start_time_us=times[5]))
    stream.append(OpenGroup(0, "c"))
    assert stream.take(9, group="a") == [4, 5]
    assert stream.take(9, group="b") == [5]
    assert stream.take(9, group="c") == [3, 4, 5]


def test_the_floor_moves_only_past_what_every_group_has_done() -> None:
    """Leased, delayed and dead messages hold it, until they are carried to a later record."""
    stream = Stream(reload_every=1)
    first = stream.push(1, delay_us=365 * 24 * 3600 * SECOND)
    stream.push(50)
    stream.append(OpenGroup(0, "slow"))
    assert len(stream.take(50)) == 50
    stream.append(Saved(0, stream.state.at, 1, stream.state.at))
    assert stream.state.floor == first
    assert len(stream.take(50, group="slow")) == 50
    stream.act()
    stream.append(Carry(0, [0], b"\x00", [b"x"]))
    carried_to = stream.records[-1][0]
    stream.append(Saved(0, stream.state.at, 1, stream.state.at))
    assert stream.state.floor == carried_to
    stream.now_us += 365 * 24 * 3600 * SECOND
    due = stream.act(takes=[Take("", 1)]).takes[0]
    assert due is not None
    assert due[0].spot.place == (carried_to, 0)


def test_one_key_leased_for_ever_leaves_the_others_flowing() -> None:
    """Messages of one key wait for each other, in order, and for nobody else."""
    stream = Stream()
    for _ in range(20):
        stream.push(3, keys=["stuck", "a", "b"])
    assert stream.take(1, lease_s=10**6) == [0]
    stuck = stream.token
    flowing = [pos for _ in range(20) for pos in stream.take(2)]
    assert flowing == [pos for pos in range(60) if pos % 3]
    assert stream.take() == []
    assert stream.settle(ACK, 0, stuck)
    assert stream.take(9) == list(range(3, 30, 3))


def test_what_lies_aside_is_bounded() -> None:
    """At the limit the queue stalls instead of growing; an ack lets it continue."""
    stream = Stream()
    for count in (*[10_000] * (MAX_ASIDE // 10_000), 1):
        stream.push(count)
    assert len(stream.take(MAX_ASIDE + 1, lease_s=10)) == MAX_ASIDE
    token = stream.token
    assert stream.take(1, lease_s=10) == []
    assert stream.settle(ACK, 5, token)
    assert stream.take(1, lease_s=10) == [MAX_ASIDE]


def test_records_of_strangers_and_of_later_versions_are_refused_by_name() -> None:
    """Neither is taken for something else."""
    with pytest.raises(VersionTooNew, match="version 3"):
        decode(b"\x03" + encode(Setup(0, Settings()))[1:])
    for data in (b"", b"\x00", b"\x01\x93junk", b"\x01" + msgspec.msgpack.encode([99, 0])):
        with pytest.raises(CorruptData):
            decode(data)
    for stranger in (b"", b"\x01", b"hello", "grüß".encode(), b"{}", b"\x80\x04pickle", msgspec.msgpack.encode([1, 2])):
        assert sound(Record(9, (), stranger, None, 0)) is None


def test_records_keep_their_form() -> None:
    """What version 1 wrote is read by every later version: these bytes may never change."""
    assert encode(Push(3, b"\x02", [b"{}"], 5, 6, ["k"])).hex() == "01970103c4010291c4027b7d050691a16b"
    assert decode(bytes.fromhex("01970103c4010291c4027b7d050691a16b")) == Push(3, b"\x02", [b"{}"], 5, 6, ["k"])
    act = Act(0, b"t", 7, [Take("g", 2, 9, "op")], [Settle("", GIVE_BACK, [(1, 2)])], [("", 3, 4)], 5)
    assert encode(act).hex() == "01980200c40174079194a1670209a26f709195a0079192010200a09193a0030405"
    assert encode(OpenGroup(1, "g", 2, 3, is_anew=True)).hex() == "01960501a1670203c3"
    setup = bytes.fromhex("019404009402030405c3")
    assert decode(setup) == Setup(0, Settings(2, 3, 4, 5), is_first=True)
    assert encode(decode(setup)) == b"\x02" + setup[1:], "what reads version 1 alone refuses the queue"
    grant = Grant(0, b"t", 7, [], [], [], 5, [Credit("g", 9, 3, 2)])
    assert encode(grant).hex() == "02990b00c40174079090900591" + "94a167090302"
    assert decode(encode(grant)) == grant
    for record in (act, OpenGroup(1, "g", 2, 3, is_anew=True), Setup(0, Settings(2, 3, 4, 5), is_first=True)):
        assert decode(encode(record)) == record


def test_what_is_remembered_of_ops_is_bounded_by_their_messages() -> None:
    """Not by their number alone: the oldest go first, and the last one stays however much it was given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "MAX_OP_MESSAGES", 10)
        stream = Stream(reload_every=3)
        stream.push(100)
        assert stream.take(6, op="a") == list(range(6))
        assert stream.take(4, op="b") == list(range(6, 10))
        assert stream.take(6, op="a") == list(range(6))
        assert stream.take(1, op="c") == [10]
        assert stream.take(4, op="b") == list(range(6, 10))
        assert stream.take(1, op="a") == [11]
        assert stream.take(20, op="d") == list(range(12, 32))
        assert stream.take(20, op="d") == list(range(12, 32))
        assert list(stream.state.ops.last) == ["\npop\nd"]


def test_an_op_of_a_lease_is_answered_while_that_lasts() -> None:
    """With what is still leased under it; then it is a new lease. A pop of the same name is another thing."""
    stream = Stream(reload_every=1)
    stream.push(4)
    assert stream.take(2, lease_s=10, op="o") == [0, 1]
    token = stream.token
    assert stream.take(2, lease_s=10, op="o") == [0, 1]
    assert stream.settle(ACK, 0, token)
    assert stream.take(2, lease_s=10, op="o") == [1]
    assert stream.take(1, op="o") == [2]
    stream.now_us += 11 * SECOND
    stream.fence()
    assert stream.take(2, lease_s=10, op="o") == [1, 3]
    assert stream.token > token
    assert stream.take(1, op="o") == [2]


def test_the_length_of_a_queue_does_not_count_what_has_expired() -> None:
    """Whether somebody has looked at it or not."""
    stream = Stream()
    stream.push(3, ttl_us=5 * SECOND)
    stream.push(2)
    assert length(stream.state) == length(stream.state, stream.now_us) == 5
    assert length(stream.state, stream.now_us + 5 * SECOND) == 2
    assert stream.take(1, lease_s=100) == [0]
    assert stream.settle(NACK, 0, stream.token)
    assert length(stream.state, stream.now_us + 5 * SECOND) == 2


def test_a_group_needs_no_history_while_nothing_was_forgotten() -> None:
    """Reading it takes a round trip for each shard; it is read when a message that others have done must come back."""
    world = Stream()
    world.append(Push(0, b"\0", [b"a"]))
    group = OpenGroup(0, "late")
    assert world.state.history_for(group) is None
    world.append(OpenGroup(0, ""))
    world.append(Act(0, b"me", 1, takes=[Take("", 1)]))
    assert world.state.history_for(group) is not None
