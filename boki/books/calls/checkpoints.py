"""Checkpoints of the book of logged calls: which calls are unfinished, so that a start need not read further back."""

from __future__ import annotations

from typing import Final

from boki.api.logbook import LogBook
from boki.books.calls.ledger import CHECKPOINT_TAG, CODEC, Checkpoint, CheckpointPart, Ledger, part_of
from boki.errors import NotFound, Trimmed

_CALLS_IN_PART: Final = 1_000
"""Of a checkpoint: some 200 bytes each, unless they wait for much."""


async def newest_checkpoint(book: LogBook) -> Checkpoint | None:
    """None if there is none, or trims took a part of it, or records that it builds on: then what is left of the book
    says as much, because unfinished calls are carried forward before a trim.
    """
    tail = await book.check_tail(CHECKPOINT_TAG)
    if tail is None:
        return None
    checkpoint = CODEC.decode(tail.data)
    assert isinstance(checkpoint, Checkpoint), "the tag says what the record is"
    if checkpoint.fold_from < (await book.read(limit=1)).first_seqnum:
        return None
    waiting = list(checkpoint.waiting)
    for seqnum in checkpoint.parts:
        try:
            part = CODEC.decode((await book.get(seqnum)).data)
        except (NotFound, Trimmed):
            return None
        assert isinstance(part, CheckpointPart), "a checkpoint names its parts"
        waiting += part.waiting
    return Checkpoint(checkpoint.fold_from, tuple(waiting))


async def write_checkpoint(book: LogBook, ledger: Ledger, record_bytes: int) -> None:
    """Append what the ledger holds, in parts that fit a record of that size."""
    fold_from, calls = ledger.fold_from, list(ledger.waiting.all_kept())
    size = _CALLS_IN_PART
    while size > 1 and len(CODEC.encode(part_of(calls[:size]))) > record_bytes // 2:
        size //= 2
    *before, last = [calls[i : i + size] for i in range(0, len(calls), size)] or [[]]
    parts = []
    for some in before:
        parts.append(await book.append(CODEC.encode(part_of(some))))
    whole = Checkpoint(fold_from, part_of(last).waiting, tuple(parts))
    await book.append(CODEC.encode(whole), [CHECKPOINT_TAG])
