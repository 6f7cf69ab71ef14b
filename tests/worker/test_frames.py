"""Frames survive any way of being cut up, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.errors import CorruptData
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.operations import Append, Done, Found, Get, Read, Slab
from boki.protocol.calls import Call, Outcome, Payload
from boki.worker.frames import (
    VERSION,
    Abandon,
    Accepted,
    Broken,
    Cancel,
    ChildEnded,
    ConsoleLine,
    Ended,
    Frame,
    Hello,
    Invoke,
    InvokeLater,
    LogReply,
    LogRequest,
    Said,
    Start,
    encode_frame,
    from_worker,
    max_frame_bytes,
    ticket_of_try,
    to_worker,
)

CALL = Call("0" * 32, "greet", Payload("json", b'"Ada"'), "guests", 5, 1, {0: 7}, "00-a-b-01", "f" * 32)
FROM_WORKER: list[Frame | LogRequest] = [
    Hello(VERSION),
    Broken("m.py:3: SyntaxError"),
    LogRequest(1, {0: 1 << 40}, 30_000_000, Read("book", "tag")),
    LogRequest(2, {}, 1, Append("book", b"chunk")),
    LogRequest(3, {}, 1, Get("book", 1 << 62)),
    Invoke(4, 9, CALL),
    InvokeLater(5, 9, CALL, 1.5, None),
    InvokeLater(5, 9, CALL, 0.0, None, ticket_of_try(1 << 20, 1 << 39)),
    Ended(9, Outcome(Payload("bytes", bytes(100)), None, {1: 2})),
    Said((ConsoleLine("m", "f", "0" * 32, "stdout", 20, "", "hé", 1),), 3),
    Abandon(4, 9),
]
TO_WORKER: list[Frame | LogReply] = [
    Start(9, CALL),
    Cancel(9),
    LogReply(1, {0: 5}, Found((Slab(b"12345678", 5, b"chunk", {7: b"aux"}),), 8)),
    LogReply(2, {}, Done()),
    ChildEnded(4, Outcome(None, None)),
    Accepted(5, "0" * 32),
    Accepted(5, "0" * 32, None, Payload("json", b"3"), True),
]


@given(st.data())
def test_frames_arrive_whole_however_the_bytes_are_cut(data: st.DataObject) -> None:
    """Both directions: what was sent comes out, in order, whatever pieces it came in."""
    for frames, decoder in ((FROM_WORKER, from_worker(DEFAULT_LIMITS)), (TO_WORKER, to_worker(DEFAULT_LIMITS))):
        sent = data.draw(st.lists(st.sampled_from(frames), max_size=8))
        stream = b"".join(map(encode_frame, sent))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
        came = []
        for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            came += decoder.feed(stream[start:stop])
        assert came == sent


def test_a_length_is_checked_before_its_bytes_are_awaited() -> None:
    """A peer cannot make this process hold more than a frame may have."""
    limits = Limits()
    most = max_frame_bytes(limits)
    assert from_worker(limits).feed(most.to_bytes(4, "little")) == []
    with pytest.raises(CorruptData, match=f"the limit is {most}"):
        from_worker(limits).feed((most + 1).to_bytes(4, "little"))


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x93\x07", encode_frame(Start(9, CALL))[4:], b"\x91\x63", b"\x93\x02\xa0" + b"\x91" * 100_000],
    ids=lambda body: body[:2].hex(),
)
def test_what_is_no_frame_of_this_direction_is_refused(body: bytes) -> None:
    """Garbage, cut structs, unknown numbers, bottomless lists, and frames that only the other side may send."""
    with pytest.raises(CorruptData, match="cannot be read"):
        from_worker(DEFAULT_LIMITS).feed(len(body).to_bytes(4, "little") + body)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_refused_or_awaited(noise: bytes) -> None:
    """Nothing but `CorruptData` ever comes of bytes that somebody made up."""
    try:
        from_worker(Limits(request_bytes=100, record_bytes=50, page_bytes=50)).feed(noise)
    except CorruptData as error:
        assert error.message


def test_a_page_and_the_record_that_ends_it_fit_into_a_frame() -> None:
    """The largest answer that an engine may give travels."""
    limits = Limits()
    slab = Slab(bytes(8), 1, bytes(limits.page_bytes + limits.record_bytes))
    frame = encode_frame(LogReply(1, {}, Found((slab,), 1)))
    assert len(to_worker(limits).feed(frame)) == 1
