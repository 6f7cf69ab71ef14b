"""Functions that watch the promises from inside: a call, its child, and what each of them has seen of the log."""

from __future__ import annotations

import msgspec

from boki import Context, function


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


@function
async def witness_child(ctx: Context, step: Step) -> ChildSeen:
    """Look for the parent's record, and append."""
    seqnum = 0
    saw_parent = False
    while not saw_parent and (record := await ctx.logbook.read_next(step.tag, min_seqnum=seqnum)) is not None:
        saw_parent = record.data == step.parent_id.encode()
        seqnum = record.next_seqnum
    return ChildSeen(await ctx.logbook.append(step.child_id.encode(), tags=[step.tag], key=step.child_id), saw_parent)


@function
async def witness(ctx: Context, step: Step) -> Seen:
    """Append, have a child look and append, and look again: both must see what happened before (Boki section 3)."""
    parent_seqnum = await ctx.logbook.append(step.parent_id.encode(), tags=[step.tag], key=step.parent_id)
    child = await ctx.invoke(witness_child, step)
    found = await ctx.logbook.read_next(step.tag, min_seqnum=child.seqnum)
    saw_child = found is not None and found.seqnum == child.seqnum
    return Seen(parent_seqnum, child.seqnum, child.saw_parent, saw_child)


@function
async def note_once(ctx: Context, step: Step) -> int:
    """Append one record under the call's own key: however often the body starts, there is one record."""
    return await ctx.logbook.append(step.parent_id.encode(), tags=[step.tag], key=step.parent_id)
