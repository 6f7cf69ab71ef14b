"""Packs on a stream: however its bytes are cut, the same packs come out; what is no pack is refused early."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.net.codec import MAX_FRAMES, Refusal
from boki.net.framing import PackReader, frame_head

PACKS = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), max_size=6)


def written(packs: list[list[bytes]]) -> bytes:
    return b"".join(frame_head([len(frame) for frame in pack]) + b"".join(pack) for pack in packs)


@given(PACKS, st.data())
def test_the_same_packs_come_out_however_the_stream_is_cut(packs: list[list[bytes]], data: st.DataObject) -> None:
    """The kernel may hand over any number of bytes at a time."""
    stream = written(packs)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = PackReader(1000)
    read = [
        pack
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for pack in reader.feed(stream[begin:end])
    ]
    assert read == packs


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"\0\0\0\0", "0 frames"),
        ((MAX_FRAMES + 1).to_bytes(4, "big"), "over the limit"),
        (frame_head([600, 401]), "1001 bytes, and 1000"),
        (frame_head([1 << 31]), "bytes, and 1000"),
    ],
)
def test_what_is_over_a_limit_is_refused_before_it_comes(head: bytes, reason: str) -> None:
    """Nothing of a pack's frames is waited for, or kept, once its head says too much."""
    with pytest.raises(Refusal, match=reason):
        PackReader(1000).feed(head)
