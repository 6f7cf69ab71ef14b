"""Which batches may wait for the message with their cut: those that the primary beside the engine cuts at once."""

from __future__ import annotations

import pytest

from boki.engine.appends import Appends
from boki.engine.waiter import Waiter
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import NodeId
from boki.protocol.effects import Send
from boki.protocol.messages import StoreBatch
from tests.members import SHARD, view

STORAGE = view().storage
PRIMARY, OTHER, _ = view().sequencers


@pytest.mark.parametrize(
    ("near", "beside", "size_bytes", "can_wait"),
    [
        pytest.param(PRIMARY, STORAGE, 1_000, True, id="the cut follows at once"),
        pytest.param(PRIMARY, STORAGE, 100_000, False, id="it is large"),
        pytest.param(PRIMARY, (), 1_000, False, id="the cut waits for reports"),
        pytest.param(OTHER, STORAGE, 1_000, False, id="the primary is elsewhere"),
    ],
)
def test_a_small_batch_waits_only_for_a_cut_that_goes_the_same_way(
    near: NodeId, beside: tuple[NodeId, ...], size_bytes: int, can_wait: bool
) -> None:
    """A report needs the batch, so where cuts follow reports a batch is not held back."""
    appends = Appends(buffer_bytes=1 << 20, batch_bytes=1 << 20)
    appends.near = {near}
    appends.begin_term(view(beside=beside), 0)
    appends.open_shard(0, SHARD, STORAGE, 0)
    chunk = encode_chunk("book", [Group([(bytes(size_bytes), ())])])
    appends.add("book", chunk, Waiter("book", "token"), 1_000_000)
    sent = [each for each in appends.settle(0) if isinstance(each, Send) and isinstance(each.message, StoreBatch)]
    assert [(each.to, each.can_wait) for each in sent] == [(node, can_wait) for node in STORAGE]
