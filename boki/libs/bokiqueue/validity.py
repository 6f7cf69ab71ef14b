"""Validation of everything that a queue reads from its LogBook, before anything is allocated or decided by it.

Anyone who may append to a book may append under a queue's tags, so a record there is hostile until it has passed: it
decodes, every number, list and text is within what this library itself writes, and it stands under exactly the tags
that its kind needs. What fails is **passed by**: it changes nothing but a counter (`QueueStats.passed_by`), and every
fold passes it by alike, because nothing is looked at here but the record itself and the shape of the queue.

These limits are part of the format: a record that an earlier Boki could write must pass for ever, so they may be
wider than those of the API, and never become narrower. A well-formed record that lies (a purge, a `Setup` that begins
the queue again) is believed: the right to append to a book is the right to administer its queues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from boki import CorruptData, Record, VersionTooNew
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.backlog import Spot
from boki.libs.bokiqueue.groups import DEAD, LEASED, Aside, Delivery
from boki.libs.bokiqueue.messages import JSON
from boki.libs.bokiqueue.records import (
    GIVE_BACK,
    LOST,
    Act,
    Carry,
    Credit,
    Done,
    DropGroup,
    Join,
    Kind,
    OpenGroup,
    Part,
    Push,
    Saved,
    Settings,
    Setup,
)
from boki.libs.bokiqueue.refusals import MAX_BATCH, MAX_KEY_CHARS, MAX_MESSAGE_BYTES, MAX_SHARDS, NAME, UNFIT
from boki.libs.bokiqueue.snapshots import Given, Snapshot
from boki.libs.bokiqueue.standing import Standing

MAX_NUMBER: Final = (1 << 63) - 1
"""Maximum of seqnums, tokens, positions and counts."""
MAX_TIME_US: Final = 10**17
MAX_SPAN_US: Final = 366 * 24 * 3_600 * 1_000_000
"""Maximum delay, age, lease and retention: a leap year, as it was once allowed."""
MAX_TAKER_BYTES: Final = 64
MAX_ENTRIES: Final = 10_000
"""Maximum number of takes, of settles, and of fences in one act."""
MAX_SETTLED_AT_ONCE: Final = 20_000
"""Maximum number of messages that one act settles."""
MAX_REASON_CHARS: Final = 4_000
"""A reason of 500 characters has 3,000 when each of them is escaped, and a few words before it."""
MAX_GROWN_BYTES: Final = 1 << 40


def sound(record: Record) -> Kind | None:
    """The record, if it is a valid one of this format; None if it is to be passed by."""
    if not records.is_own(record.data):
        return None
    try:
        kind = records.decode(record.data)
    except (CorruptData, VersionTooNew):
        return None
    return None if fault(kind, record.seqnum) else kind


def belongs(kind: Kind, tags: Sequence[str], queue: str, shards: int) -> bool:
    """Whether a record of the stream stands under all the tags where other readers look for its kind."""
    if kind.shard >= shards or isinstance(kind, Part):
        return False
    if not all(tag in tags for tag in records.record_tags(queue, kind.shard, shards)):
        return False
    if isinstance(kind, Saved):
        return records.checkpoint_tag(queue, kind.shard) in tags
    return not records.ends_leases(kind) or records.fence_tag(queue, kind.shard) in tags


def fault(kind: Kind, seqnum: int) -> str:
    """What is wrong with a record at that place in the log; "" if nothing is."""
    if not 0 <= kind.shard < MAX_SHARDS:
        return "shard"
    match kind:
        case Push():
            return _push_fault(kind)
        case Act():
            return _act_fault(kind)
        case Done():
            return _first(
                (_is_group(kind.group), "group"),
                (len(kind.messages) <= MAX_ENTRIES and _are_handles(kind.messages), "messages"),
                (len(kind.by) <= MAX_TAKER_BYTES, "by"),
            )
        case Setup():
            return settings_fault(kind.settings) or ("shard" if kind.shard >= kind.settings.shards else "")
        case OpenGroup():
            return _first(
                (_is_group(kind.group), "group"),
                (0 <= kind.start_seqnum <= MAX_NUMBER, "start_seqnum"),
                (0 <= kind.start_time_us <= MAX_TIME_US, "start_time_us"),
            )
        case DropGroup():
            return "" if _is_group(kind.group) else "group"
        case Saved():
            return _first(
                (0 <= kind.first < seqnum and 0 <= kind.covers < seqnum, "covers"),
                (0 <= kind.floor <= kind.covers + 1, "floor"),
                (0 <= kind.grown_bytes <= MAX_GROWN_BYTES, "grown_bytes"),
            )
        case Part():
            return ""
        case Carry():
            return _carry_fault(kind)
        case Join():
            return _first(
                (_is_group(kind.group), "group"),
                (0 < len(kind.taker) <= MAX_TAKER_BYTES, "taker"),
                (0 <= kind.span_us <= MAX_SPAN_US, "span_us"),
            )


def settings_fault(settings: Settings) -> str:
    """What is wrong with the settings of a queue; "" if nothing is."""
    return _first(
        (1 <= settings.shards <= MAX_SHARDS, "shards"),
        (0 <= settings.max_deliveries <= 1_000, "max_deliveries"),
        (0 <= settings.max_length <= 1_000_000_000, "max_length"),
        (0 <= settings.retain_us <= MAX_SPAN_US, "retain_us"),
    )


def _push_fault(push: Push) -> str:
    count = len(push.bodies)
    return _first(
        (0 < count <= MAX_BATCH, "bodies"),
        (len(push.forms) in (1, count) and max(push.forms, default=LOST) <= JSON, "forms"),
        (max(map(len, push.bodies), default=0) <= MAX_MESSAGE_BYTES, "bodies"),
        (0 <= push.delay_us <= MAX_SPAN_US and 0 <= push.ttl_us <= MAX_SPAN_US, "delay_us"),
        (len(push.keys) in (0, count) and _are_keys(push.keys), "keys"),
    )


def _carry_fault(carry: Carry) -> str:
    count = len(carry.bodies)
    return _first(
        (0 < count <= MAX_BATCH and len(carry.positions) == count, "bodies"),
        (len(carry.forms) in (1, count) and all(form <= JSON or form == LOST for form in carry.forms), "forms"),
        (max(map(len, carry.bodies), default=0) <= MAX_MESSAGE_BYTES, "bodies"),
        (all(0 <= pos <= MAX_NUMBER for pos in carry.positions), "positions"),
        (len(set(carry.positions)) == count, "positions"),
    )


def _act_fault(act: Act) -> str:
    for take in act.takes:
        is_valid = (
            _is_group(take.group)
            and 0 < take.count <= MAX_NUMBER
            and 0 <= take.lease_us <= MAX_SPAN_US
            and (not take.op or _are_keys([take.op]))
        )
        if not is_valid:
            return "takes"
    settled = 0
    for settle in act.settles:
        settled += len(settle.messages)
        is_valid = (
            _is_group(settle.group)
            and 0 <= settle.verb <= GIVE_BACK
            and 0 <= settle.span_us <= MAX_SPAN_US
            and len(settle.reason) <= MAX_REASON_CHARS
            and _are_handles(settle.messages)
        )
        if not is_valid:
            return "settles"
    return _first(
        (len(act.taker) <= MAX_TAKER_BYTES, "taker"),
        (0 <= act.number <= MAX_NUMBER and 0 <= act.kept_from <= MAX_NUMBER, "number"),
        (len(act.takes) <= MAX_ENTRIES, "takes"),
        (len(act.granted) <= MAX_ENTRIES, "credits"),
        (all(_is_group(one.group) and _is_credit(one) for one in act.granted), "credits"),
        (len(act.settles) <= MAX_ENTRIES and settled <= MAX_SETTLED_AT_ONCE, "settles"),
        (len(act.fences) <= MAX_ENTRIES, "fences"),
        (all(_is_group(group) and _are_handles([(pos, token)]) for group, pos, token in act.fences), "fences"),
    )


# Checkpoints


def sound_snapshot(data: bytes, saved: Saved) -> Snapshot | None:
    """The state in the parts of a checkpoint, if it is a valid one; None if it is to be passed by."""
    try:
        snapshot = msgspec.msgpack.decode(data, type=Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if snapshot_fault(snapshot, saved) else snapshot


def snapshot_fault(snapshot: Snapshot, saved: Saved) -> str:
    """What is wrong with the state in a checkpoint; "" if nothing is."""
    groups = snapshot.groups.items()
    numbers = (snapshot.resume_pos, snapshot.floor, snapshot.last_fence, snapshot.opened_at, snapshot.passed_by)
    return _first(
        (snapshot.at == saved.covers and 0 <= snapshot.resume <= snapshot.at + 1, "at"),
        (0 <= snapshot.time_us <= MAX_TIME_US, "time_us"),
        (_are_numbers(numbers), "numbers"),
        (not settings_fault(snapshot.settings), "settings"),
        (all(_is_group(name) and snapshot.resume_pos <= one.cursor <= MAX_NUMBER for name, one in groups), "groups"),
        (all(_are_numbers((one.done_count, one.expired_count)) for _, one in groups), "groups"),
        (all(_is_aside(aside, one.cursor) for _, one in groups for aside in one.aside), "aside"),
        (all(_is_given(given) for given in snapshot.takers.values()), "takers"),
        (all(len(taker) <= MAX_TAKER_BYTES for taker in (*snapshot.takers, *snapshot.popped)), "takers"),
        (all(_are_deliveries(one.deliveries) for some in snapshot.popped.values() for one in some), "popped"),
        (all(_are_deliveries(done.deliveries) for done in snapshot.ops.values()), "ops"),
        (all(_are_numbers(mark) for mark in snapshot.marks), "marks"),
        (all(0 <= member.until_us <= MAX_TIME_US + MAX_SPAN_US for member in snapshot.members), "members"),
        (all(_is_standing(one) for one in snapshot.standing), "standing"),
    )


def _is_aside(aside: Aside, cursor: int) -> bool:
    return (
        _is_spot(aside.spot)
        and aside.spot.pos < cursor
        and LEASED <= aside.status <= DEAD
        and _are_numbers((aside.due_us, aside.token, aside.deliveries))
        and (aside.deliveries > 0 or aside.status != LEASED)
        and len(aside.reason) <= 2 * MAX_REASON_CHARS
    )


def _is_standing(one: Standing) -> bool:
    numbers = (one.since, one.granted, one.used)
    return (
        _is_group(one.group)
        and len(one.taker) <= MAX_TAKER_BYTES
        and 0 <= one.lease_us <= MAX_SPAN_US
        and _are_numbers(numbers)
        and 0 <= one.silent_us <= MAX_TIME_US
        and _are_handles(one.unheard)
        and 0 <= one.until_us <= MAX_TIME_US + MAX_SPAN_US
    )


def _is_given(given: Given) -> bool:
    return 0 <= given.number <= MAX_NUMBER and all(_are_deliveries(some or ()) for some in given.takes)


def _are_deliveries(deliveries: Iterable[Delivery]) -> bool:
    return all(_is_spot(one.spot) and _are_numbers((one.token, one.deliveries, one.until_us)) for one in deliveries)


def _is_spot(spot: Spot) -> bool:
    return (
        0 <= spot.pos <= MAX_NUMBER
        and 0 <= spot.seqnum <= MAX_NUMBER
        and 0 <= spot.index < MAX_BATCH
        and 0 <= spot.time_us <= MAX_TIME_US
        and 0 <= spot.expires_us <= MAX_TIME_US + MAX_SPAN_US
        and 0 <= spot.carried_to <= MAX_NUMBER
        and 0 <= spot.carried_index < MAX_BATCH
        and 0 <= spot.size_bytes <= MAX_MESSAGE_BYTES
        and (not spot.key or _are_keys([spot.key]))
    )


# Parts of records


def _first(*checks: tuple[bool, str]) -> str:
    """The name of the first check that fails."""
    for holds, name in checks:
        if not holds:
            return name
    return ""


def _is_group(name: str) -> bool:
    return name == "" or NAME.fullmatch(name) is not None


def _are_keys(keys: Sequence[str]) -> bool:
    """Whether group keys or ops are within their limits."""
    return max(map(len, keys), default=0) <= MAX_KEY_CHARS and UNFIT.search("".join(keys)) is None


def _is_credit(one: Credit) -> bool:
    return 0 <= one.lease_us <= MAX_SPAN_US and 0 <= one.granted <= MAX_NUMBER and 0 <= one.since <= MAX_NUMBER


def _are_handles(messages: Collection[tuple[int, int]]) -> bool:
    return all(0 <= pos <= MAX_NUMBER and 0 <= token <= MAX_NUMBER for pos, token in messages)


def _are_numbers(numbers: Iterable[int]) -> bool:
    return all(0 <= number <= MAX_NUMBER for number in numbers)
