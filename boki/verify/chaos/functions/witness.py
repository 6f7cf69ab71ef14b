"""Functions that watch the promises from inside: a call, its child, and what each of them has seen of the log."""

from __future__ import annotations

import asyncio

import msgspec

from boki import ConnectionLost, Context, DeadlineExceeded, NotFound, Overloaded, Trimmed, Unavailable, function

_RETRY_S = 0.2


class Step(msgspec.Struct, frozen=True):
    """Append records with these unique ids under `tag`, the parent one and its child the other."""

    tag: str
    parent_id: str
    child_id: str


class Seen(msgspec.Struct, frozen=True):
    """What the call saw: its own record, what its child found there, and what it found after its child."""

    parent_seqnum: int
    child_seqnum: int
    child_saw_parent: bool
    parent_saw_child: bool


class ChildSeen(msgspec.Struct, frozen=True):
    """What the child did."""

    seqnum: int
    saw_parent: bool


class Looked(msgspec.Struct, frozen=True):
    """Look for this record of the parent, and append `child_id`."""

    tag: str
    parent_seqnum: int
    child_id: str


async def _shows(ctx: Context, tag: str, seqnum: int) -> bool:
    """Whether that record is seen, or is known to have been trimmed meanwhile."""
    found = await ctx.logbook.read_next(tag, min_seqnum=seqnum)
    if found is not None and found.seqnum == seqnum:
        return True
    try:
        await ctx.logbook.get(seqnum)
    except Trimmed:
        return True
    except NotFound:
        return False
    return False


@function
async def witness_child(ctx: Context, look: Looked) -> ChildSeen:
    """Look for the parent's record, and append."""
    saw_parent = await _shows(ctx, look.tag, look.parent_seqnum)
    return ChildSeen(await ctx.logbook.append(look.child_id.encode(), tags=[look.tag], key=look.child_id), saw_parent)


@function
async def witness(ctx: Context, step: Step) -> Seen:
    """Append, have a child look and append, and look again: both must see what happened before (Boki section 3)."""
    parent_seqnum = await ctx.logbook.append(step.parent_id.encode(), tags=[step.tag], key=step.parent_id)
    child = await ctx.invoke(witness_child, Looked(step.tag, parent_seqnum, step.child_id))
    return Seen(parent_seqnum, child.seqnum, child.saw_parent, await _shows(ctx, step.tag, child.seqnum))


@function
async def note_once(ctx: Context, step: Step) -> int:
    """Append one record under the call's own key: however often the body starts, or tries, there is one record."""
    while True:
        try:
            return await ctx.logbook.append(step.parent_id.encode(), tags=[step.tag], key=step.parent_id)
        except (ConnectionLost, DeadlineExceeded, Overloaded, Unavailable):
            await asyncio.sleep(_RETRY_S)  # until the call's own deadline
