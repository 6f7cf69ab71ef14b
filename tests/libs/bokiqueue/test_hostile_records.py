"""Records that anyone may append under a queue's tags: no fold fails on them, hangs, grows or disagrees."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import Any, Final

import msgspec
import pytest

from boki import BokiError, InvalidArgument, Record, VersionTooNew
from boki.libs.bokiqueue import Queue, queue_names
from boki.libs.bokiqueue.messages import message_shape
from boki.libs.bokiqueue.records import (
    ACK,
    GIVE_BACK,
    MAX_NUMBER,
    MAX_SPAN_US,
    NOW,
    REDRIVE,
    Act,
    Carry,
    Credit,
    Done,
    DropGroup,
    Grant,
    Join,
    OpenGroup,
    Part,
    Push,
    Saved,
    Settings,
    Settle,
    Setup,
    Take,
    checkpoint_tag,
    encode,
    feed_tag,
    fence_tag,
    record_tags,
    settings_tag,
    sound,
    stream_tag,
)
from boki.libs.bokiqueue.state import MAX_GROUPS, ShardState, sound_snapshot
from boki.log.operations import Answer, Operation, Read
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process, small_checkpoints
from tests.libs.bokiqueue.test_same_folds import come_to_rest, folds
from tests.libs.bokiqueue.test_state import Stream

HUGE: Final = 1 << 63


def raw(*parts: Any) -> bytes:
    """A record of this format that holds whatever is given."""
    return b"\x01" + msgspec.msgpack.encode(parts)


def granting(*granted: Any) -> bytes:
    """An act that grants these."""
    return b"\x02" + msgspec.msgpack.encode((11, 0, b"t", 1, [], [], [], 0, granted))


HOSTILE: Final[dict[str, bytes]] = {
    # What cannot be decoded
    "text": b"hello",
    "a version alone": b"\x01",
    "too few fields": b"\x01\x95\x01\x02",
    "an array that is not there": b"\x01\xdd\xff\xff\xff\xff\x01",
    "bytes that are not there": b"\x01\x97\x01\x00\xc6\xff\xff\xff\xff",
    "bad UTF-8 in a group": raw(6, 0, "xx").replace(b"xx", b"\xff\xff"),
    "bad UTF-8 in a key": raw(1, 0, b"\x00", [b"a"], 0, 0, ["xx"]).replace(b"xx", b"\xc3\x28"),
    "a later version": b"\x05\x90",
    "a later version of a push": b"\x03" + encode(Push(0, b"\x00", [b"x"]))[1:],
    "an unknown kind": raw(99, 0),
    "a map": b"\x01" + msgspec.msgpack.encode({"a": 1}),
    "nested arrays": b"\x01\x98\x01\x00\xc4\x01\x00\x90\x00\x00\x90" + b"\x91" * 100_000 + b"\x90",
    "nested maps": b"\x01\x97\x01\x00\xc4\x01\x00\x91\xc4\x00\x00\x00" + b"\x81\xa0" * 50_000 + b"\x80",
    "one field too many": raw(1, 0, b"\x00", [b"x"], 0, 0, [], "more"),
    "one field too many within": raw(2, 0, b"t", 1, [["", 1, 0, "", "more"]]),
    "a number of 64 bits": raw(6, 0, "g", (1 << 64) - 1),
    # Shapes
    "a billion shards": raw(4, 0, [10**9, 10, 0, 0]),
    "a hundred thousand shards": raw(4, 0, [100_000, 10, 0, 0]),
    "no shards": raw(4, 0, [0, 10, 0, 0]),
    "fewer than no shards": raw(4, 0, [-1, 10, 0, 0]),
    "other shards": encode(Setup(0, Settings(5))),
    "other shards, as if the queue began": encode(Setup(0, Settings(5), is_first=True)),
    "a shard that the queue has not": raw(1, 77, b"\x00", [b"x"]),
    "a shard below none": raw(1, -1, b"\x00", [b"x"]),
    "a huge maximum length": raw(4, 0, [1, 10, HUGE, 0]),
    "deliveries below none": raw(4, 0, [1, -5, 0, 0]),
    "retention for ever": raw(4, 0, [1, 10, 0, HUGE]),
    # Pushes
    "a push of nothing": raw(1, 0, b"\x00", []),
    "no forms": raw(1, 0, b"", [b"a", b"b"]),
    "forms for other bodies": raw(1, 0, b"\x00\x00\x00", [b"a", b"b"]),
    "a form that is none": raw(1, 0, b"\x07", [b"a"]),
    "the form of lost bodies": raw(1, 0, b"\xff", [b"a"]),
    "keys for other bodies": raw(1, 0, b"\x00", [b"a", b"b"], 0, 0, ["k"]),
    "a key of a megabyte": raw(1, 0, b"\x00", [b"a"], 0, 0, ["k" * 900_000]),
    "a key with line ends": raw(1, 0, b"\x00", [b"a"], 0, 0, ["a\nb"]),
    "a body that is too large": raw(1, 0, b"\x00", [b"x" * 1_000_001]),
    "hundreds of thousands of bodies": raw(1, 0, b"\x00", [b""] * 300_000),
    "a delay for ever": raw(1, 0, b"\x00", [b"a"], HUGE),
    "a delay into the past": raw(1, 0, b"\x00", [b"a"], -(10**17)),
    "an age below none": raw(1, 0, b"\x00", [b"a"], 0, -1),
    # Acts
    "a take of a negative number": raw(2, 0, b"t", 1, [["", -1]]),
    "a take of none": raw(2, 0, b"t", 1, [["", 0]]),
    "a lease for ever": raw(2, 0, b"t", 1, [["", 1, HUGE]]),
    "an op with a line end": raw(2, 0, b"t", 1, [["", 1, 0, "a\nlease\nb"]]),
    "an op of a megabyte": raw(2, 0, b"t", 1, [["", 1, 0, "o" * 900_000]]),
    "a hundred thousand takes": raw(2, 0, b"t", 1, [["", 1]] * 100_000),
    "a hundred thousand settles": raw(2, 0, b"t", 1, [], [["", 0, []]] * 100_000),
    "a verb that is none": raw(2, 0, b"t", 1, [], [["", 8, [[0, 1]]]]),
    "a nack for ever": raw(2, 0, b"t", 1, [], [["", 1, [[0, 1]], HUGE]]),
    "a reason of a megabyte": raw(2, 0, b"t", 1, [], [["", 4, [[0, 1]], 0, "r" * 900_000]]),
    "positions below none": raw(2, 0, b"t", 1, [], [["", 0, [[-1, -1]]]]),
    "a taker of a megabyte": raw(2, 0, b"t" * 900_000, 1),
    "a number below none": raw(2, 0, b"t", -1),
    "a group that is none": raw(2, 0, b"t", 1, [["a\nb", 1]]),
    "fences without their tag": raw(2, 0, b"t", 1, [], [], [["", 0, 1]]),
    "a group of a megabyte": raw(5, 0, "g" * 900_000),
    "a group that begins before time": raw(5, 0, "g", -1, -1),
    "acks of negative positions": raw(3, 0, "", [[-1, 1]]),
    "a block's name of a megabyte": raw(3, 0, "", [[0, 1]], b"b" * 900_000),
    # Grants
    "credit below none": granting(["", 0, -1]),
    "credit without end": granting(["", 0, HUGE]),
    "credit for a lease for ever": granting(["", HUGE, 1]),
    "credit of a group that is none": granting(["a\nb", 0, 1]),
    "credit since before time": granting(["", 0, 1, -1]),
    "ten thousand credits too many": granting(*[["", 0, 1]] * 20_000),
    "one field too many in credit": granting(["", 0, 1, 0, 0]),
    # Checkpoints and others
    "a checkpoint without parts": raw(7, 0, 0, 0, 0),
    "a checkpoint of what is to come": raw(7, 0, NOW, NOW, NOW),
    "a checkpoint that lets go of all": raw(7, 0, 1, 1, NOW),
    "a checkpoint that grew for ever": raw(7, 0, 1, 1, 0, HUGE),
    "a part in the stream": encode(Part(0, b"\x90")),
    "carried positions without bodies": raw(8, 0, [0, 1, 2], b"\x00", []),
    "carried bodies without positions": raw(8, 0, [], b"\x00", [b"a"]),
    "carried twice": raw(8, 0, [0, 0], b"\x00", [b"a", b"b"]),
    "a process that is there for ever": raw(9, 0, "", b"t", HUGE),
    "a process without a name": raw(9, 0, "", b"", 1),
}
"""By name: none of them counts in a queue's stream."""
WELL_FORMED: Final = {"a checkpoint without parts"}
"""But for these: only a process that begins from it finds out, and passes it by."""

LIES: Final = [
    Setup(0, Settings(1, 1, 1, MAX_SPAN_US)),
    Setup(0, Settings(1), is_first=True),
    Act(0, b"stranger", 1, [Take("", 10**9)], [Settle("", ACK, [(0, 1)]), Settle("", GIVE_BACK, [(1, 2)])]),
    Act(0, b"stranger", 2, [Take("", 5, MAX_SPAN_US, "op"), Take("nobody", 1)], [Settle("", REDRIVE, [(1, 0)])]),
    Act(0, b"stranger", 3, [], [], [("", 0, 1), ("nobody", 5, 5)]),
    Done(0, "", [(0, 1), (1, 1)], b"by"),
    OpenGroup(0, "g", NOW, 10**17),
    OpenGroup(0, "", 0, 0, is_anew=True),
    DropGroup(0, ""),
    Carry(0, [0, 7, 99], b"\xff", [b"", b"", b""]),
    Join(0, "", b"stranger", MAX_SPAN_US),
    Push(0, b"\x02\x01", [b"{", b"\xff"], MAX_SPAN_US, 1, ["k", ""]),
]
"""Valid records that are not true. They count, as those of any queue administrator, and must harm no fold."""


def all_tags(shards: int) -> tuple[str, ...]:
    """Every tag of queue q, so that every reader comes to the record."""
    own = [tag(shard) for shard in range(shards) for tag in (lambda s: stream_tag("q", s), lambda s: fence_tag("q", s))]
    return (*own, feed_tag("q"), checkpoint_tag("q", 0), settings_tag("q"), "!queues", "!queues:q", "!queues:a b")


async def check_works(port: MemoryPort, follows: Queue[Any]) -> None:
    """The queue takes pushes, gives them out, and a process that begins now comes to the same state."""
    begins: Queue[Any] = Queue(Process(port).logbook(), "q")
    pushed = await follows.push("later", wait_s=0 if (await follows.stats()).max_length == 0 else 5)
    assert (await begins.stats()).pushed == (await follows.stats()).pushed
    await begins.peek(3)
    taken: list[str] = []
    while pushed not in taken:
        found = await begins.pop_many(10_000) or await follows.pop_many(10_000)
        assert found, "what was pushed can be taken"
        taken += [one.id for one in found]
    await come_to_rest(follows, begins)
    assert await folds(follows) == await folds(begins)


@pytest.mark.parametrize("shards", [1, 3])
@asynchronous
async def test_hostile_records_are_passed_by_in_every_fold(shards: int) -> None:
    """Each under all tags at once: the queue continues, processes agree, and the figures say how many there were."""
    assert len(HOSTILE) > 37
    for name, data in HOSTILE.items():
        port = MemoryPort()
        follows: Queue[Any] = Queue(Process(port).logbook(), "q")
        await follows.create(shards=shards)
        for number in range(4):
            await follows.push(number)
        tags = [tag for tag in all_tags(shards) if not data[0] > 1 or tag != settings_tag("q")]
        if data == HOSTILE["fences without their tag"]:
            tags = [tag for tag in tags if not tag.startswith("!qf:")]
        try:
            await follows.logbook.append(data, tags)
        except BokiError:
            assert len(data) > 1_000_000, "too large for the log"
            continue
        assert len(await follows.pop_many(3)) > 0, name
        await check_works(port, follows)
        assert (await follows.stats()).passed_by == (name not in WELL_FORMED), name
        assert await queue_names(follows.logbook) == ["q"], name


@asynchronous
async def test_valid_records_that_lie_leave_all_folds_agreeing() -> None:
    """Whatever strangers take, settle or forge in the right form: later pushes are given out, once, by every fold."""
    for seed in range(6):
        random = Random(seed)
        port = MemoryPort()
        follows: Queue[Any] = Queue(Process(port).logbook(), "q")
        await follows.create()
        with small_checkpoints(5):
            for number in range(20):
                await follows.push_many([number, "text", b"bytes"], delay_s=random.choice([0, 0, 5]))
                await follows.lease(random.choice([1, 100]))
                lie = random.choice(LIES)
                tags = [*record_tags("q", 0, 1), fence_tag("q", 0)]
                await follows.logbook.append(encode(lie), tags)
                saved = Saved(0, lie.shard, 0, 1, 5)
                await follows.logbook.append(encode(saved), [*tags, checkpoint_tag("q", 0)])
                await come_to_rest(follows)
        await follows.configure(max_length=0)
        await follows.logbook.append(encode(Setup(0, Settings())), record_tags("q", 0, 1))
        await check_works(port, follows)


def mutated(random: Random, data: bytes) -> bytes:
    """The record with some of its bytes changed, left out, repeated or put in."""
    some = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(1, len(some))
        match random.randrange(4):
            case 0:
                some[at] = random.choice([random.randrange(256), 0x90, 0xC0, 0xCF, 0xD3, 0xDD, 0xFF])
            case 1:
                del some[at : at + random.randint(1, 3)]
            case 2:
                some[at:at] = random.choice([b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7, b"\x90", b"\xa1\xff"])
            case _:
                some[at:at] = some[at : at + random.randint(1, 8)]
        if len(some) < 3:
            return data
    return bytes(some)


@asynchronous
async def test_mutations_of_a_queues_own_records_break_no_fold() -> None:
    """Some are valid by chance and count, the others are skipped: alike everywhere, whatever was trimmed before."""
    for seed in range(3):
        random = Random(seed)
        port = MemoryPort()
        queues: list[Queue[Any]] = [Queue(Process(port).logbook(), "q") for _ in range(2)]
        shards = random.choice([1, 2])
        await queues[0].create(shards=shards)
        await queues[0].create_group("g")
        corpus = [encode(one) for one in LIES if not isinstance(one, Setup)]
        with small_checkpoints(9):
            for number in range(40):
                busy = random.choice(queues)
                await busy.push(number, group_key=random.choice(["", "k"]))
                if (message := await busy.lease(60)) is not None and random.random() < 0.5:
                    await busy.ack(message.receipt)
                for _ in range(10):
                    shard = random.randrange(shards)
                    tags = [*record_tags("q", shard, shards), fence_tag("q", shard)]
                    tags += random.choice([[], [], [checkpoint_tag("q", shard)]])
                    await busy.logbook.append(mutated(random, random.choice(corpus)), tags)
                page = await busy.logbook.read(stream_tag("q", 0), limit=1000)
                corpus += [one.data for one in page.records[-3:] if not isinstance(sound(one), Setup)]
                await come_to_rest(busy)
        await queues[0].logbook.append_many(
            [(encode(Setup(shard, Settings(shards))), record_tags("q", shard, shards)) for shard in range(shards)]
        )
        for queue in queues:  # whoever comes to the end may have a checkpoint to write
            await queue.stats()
            await come_to_rest(*queues)
        queues.append(Queue(Process(port).logbook(), "q"))
        seen = [await folds(queue) for queue in queues]
        assert all(one == seen[0] for one in seen), f"seed {seed}"
        await check_works(port, queues[0])


def test_no_mutation_is_read_in_more_memory_than_a_few_times_its_size() -> None:
    """Nothing is allocated for what a record merely says: 20,000 mutations, and what the table has."""
    random = Random(7)
    corpus = [encode(one) for one in LIES]
    records = [*HOSTILE.values(), *(mutated(random, random.choice(corpus)) for _ in range(20_000))]
    tracemalloc.start()
    try:
        for data in records:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            sound(Record(9, (), data, None, 0))
            assert tracemalloc.get_traced_memory()[1] - before < 200_000 + 100 * len(data)
    finally:
        tracemalloc.stop()


@asynchronous
async def test_a_queue_of_a_later_format_is_refused_by_name() -> None:
    """By every call, pushes included: what is acknowledged can be had. Other queues of the book are not."""
    port = MemoryPort()
    queue: Queue[Any] = Queue(Process(port).logbook(), "q")
    await queue.push(1)
    await queue.logbook.append(b"\x03" + encode(Setup(0, Settings()))[1:], [settings_tag("q")])
    await queue.logbook.append(b"\x03\x91\x01", record_tags("q", 0, 1))
    for one in (queue, Queue[Any](Process(port).logbook(), "q")):
        for work in (one.stats, lambda one=one: one.pop(wait_s=1), lambda one=one: Queue(one.logbook, "q").push(2)):
            with pytest.raises(VersionTooNew, match="version 3"):
                await work()
    await Queue[Any](queue.logbook, "other").push(1)


@asynchronous
async def test_a_queue_whose_format_a_stranger_forged_is_had_back_with_its_messages() -> None:
    """As docs/queues.md says: the last settings that were right are appended again."""
    port = MemoryPort()
    queue: Queue[Any] = Queue(Process(port).logbook(), "q")
    await queue.create(shards=3)
    for number in range(6):
        await queue.push(number)
    await queue.logbook.append(b"\x05\x90", [settings_tag("q")])
    with pytest.raises(VersionTooNew):
        await Queue[Any](Process(port).logbook(), "q").pop()
    (created, _forged) = (await queue.logbook.read(settings_tag("q"))).records
    await queue.logbook.append(created.data, created.tags)
    begins: Queue[Any] = Queue(Process(port).logbook(), "q")
    await begins.push(6)
    found = [one.value for each in (queue, begins) * 3 for one in await each.pop_many(9)]
    assert sorted(found) == list(range(7))


@asynchronous
async def test_credit_on_top_of_credit_leaves_checkpoints_that_can_be_read() -> None:
    """Two valid records made more of it than a checkpoint may hold: every new process was refused, permanently."""
    port = MemoryPort()
    queue: Queue[Any] = Queue(Process(port).logbook(), "q")
    await queue.create()
    with small_checkpoints(10):
        for number, granted in ((1, 1), (2, MAX_NUMBER)):
            act = Grant(0, b"stranger", number, [], [], [], 0, [Credit("", 0, granted)])
            await queue.logbook.append(encode(act), record_tags("q", 0, 1))
            await queue.push(number)
        for number in range(40):
            await queue.push(number)
            await queue.lease(60, op=f"op-{number}")  # it is given nothing, and its act may make a checkpoint
        await come_to_rest(queue)
    assert (await queue.logbook.read(stream_tag("q", 0))).first_seqnum > 0
    begins: Queue[Any] = Queue(Process(port).logbook(), "q")
    assert (await begins.stats()).pushed == 42
    assert await folds(begins) == await folds(queue)


def test_a_checkpoint_of_an_earlier_boki_with_too_much_credit_is_read() -> None:
    """It did not cut what was granted. The fold continues with as much as this one has."""
    stream = Stream()
    for number, granted in ((1, 1), (2, MAX_NUMBER)):
        stream.append(Grant(0, b"stranger", number, [], [], [], 0, [Credit("", 0, granted)]))
        stream.push()
    (one,) = stream.state.standing
    assert one.granted == MAX_NUMBER
    one.granted += one.used
    saved = sound_snapshot(msgspec.msgpack.encode(stream.state.snapshot()), stream.state.at)
    assert saved is not None
    (one,) = ShardState.restored(0, saved).standing
    assert (one.granted, one.used) == (MAX_NUMBER, 2)


def test_groups_of_a_shard_are_bounded() -> None:
    """Records that open groups cost more memory than bytes: they end at a limit."""
    stream = Stream(reload_every=500)
    for number in range(MAX_GROUPS + 5):
        stream.append(OpenGroup(0, f"g{number}"))
    assert len(stream.state.groups) == MAX_GROUPS


@asynchronous
async def test_bodies_that_are_not_what_their_form_says_are_shown_as_bytes() -> None:
    """They take no other message of an answer along; only who asks for such a message's value is refused."""
    queue: Queue[Any] = Queue(Process(MemoryPort()).logbook(), "q")
    await queue.push("fine")
    await queue.logbook.append(encode(Push(0, b"\x02\x01", [b"{", b"\xff"])), record_tags("q", 0, 1))
    found = await queue.pop_many(3)
    shapes = [msgspec.json.decode(msgspec.json.encode(message_shape(one))) for one in found]
    assert [one.get("text", one.get("base64")) for one in shapes] == ["fine", "ew==", "/w=="]
    for one in found[1:]:
        with pytest.raises(InvalidArgument, match="does not hold"):
            _ = one.value


class Counting(Process):
    """A process that counts how often it reads the queue's settings."""

    settings_reads = 0

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        self.settings_reads += isinstance(operation, Read) and operation.tag == settings_tag("q")
        return await super().request(operation, positions, timeout_s)


@asynchronous
async def test_a_flood_of_hostile_records_costs_a_few_reads_and_is_trimmed() -> None:
    """The settings are looked at once a page, and a checkpoint drops what was skipped."""
    port = MemoryPort()
    queue: Queue[Any] = Queue(Process(port).logbook(), "q")
    await queue.create()
    await queue.logbook.append_many([(b"\x05\x90", record_tags("q", 0, 1))] * 3_000)
    process = Counting(port)
    begins: Queue[Any] = Queue(process.logbook(), "q")
    assert (await begins.stats()).passed_by == 3_000
    assert process.settings_reads < 12
    with small_checkpoints(100):
        for number in range(3):
            await begins.push(number)
            await begins.pop()
            await come_to_rest(begins)
    assert (await begins.logbook.read(stream_tag("q", 0), limit=1)).first_seqnum > 3_000
    assert (await Queue[Any](Process(port).logbook(), "q").stats()).passed_by == 3_000
