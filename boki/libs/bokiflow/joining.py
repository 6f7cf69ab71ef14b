"""Children in a transaction: what they read and write goes back to their parent, which commits all in one append.

A workflow that is called inside of a transaction **joins** it. Its parent leaves it a `Base`: the seqnum as of which
all of them read, and what was written so far. The child works on a draft of its own and appends nothing to the store.
What it has used and written is a part of its result (`Came`), and the parent takes that into its own draft when it
takes the result. So there is one commit, with the parent's journal: all of it happens, once, or nothing. No lock is
held, so there is none to be released, for reads as little as for writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from boki import InvalidArgument, NewRecord, WrongState
from boki.extending import Function, Payload
from boki.libs.bokiflow.asking import Load
from boki.libs.bokiflow.body import Body
from boki.libs.bokiflow.joins import Base, Came
from boki.libs.bokiflow.replaying import Runnable
from boki.libs.bokiflow.state import OpenTransaction
from boki.libs.bokiflow.work import CallWork
from boki.libs.fold.steps import Steps

R = TypeVar("R")


# the parent


async def call_in(body: Body, txn: OpenTransaction, target: Callable[..., Any], call: Callable[[], CallWork]) -> Any:
    """Call a workflow that joins the transaction; its result. If it fails, the transaction cannot commit any more."""
    draft, machine = txn.draft, body.machine
    info = Function.of(target).info
    if draft.core is None:
        await machine.ask(Load(draft, []))
    assert draft.core is not None, "it has begun"
    assert draft.core.snapshot is not None, "it reads as of a moment"
    base = Base(draft.core.snapshot, [(name, list(updates)) for name, updates in draft.core.written])
    work = call()
    if (work.book or info.book or body.book) != body.book:
        raise InvalidArgument(
            f"{info.name} runs in LogBook {work.book or info.book!r}, and the transaction that calls it in "
            f"{body.book!r}: a transaction is about the objects of one LogBook. Call it outside, or have both use one",
            field="book",
        )
    work.base = base
    draft.calls += 1
    try:
        found = await body.awaited(work)
    except Exception as error:
        draft.failed = draft.failed or f"{info.name} failed in it ({error})"
        raise
    finally:
        draft.calls -= 1
    came = msgspec.msgpack.decode(found.data, type=Came)
    await _take(body, txn, info.name, base, came)
    return Function.of(target).decode_result(came.result)


async def _take(body: Body, txn: OpenTransaction, name: str, base: Base, came: Came) -> None:
    """Take what a child has used and written into the transaction of its parent."""
    if txn.access.is_over:
        return  # nothing of it is to be committed
    draft = txn.draft
    draft.parts.used()
    await body.machine.ask(Load(draft, came.used))
    core = draft.core
    assert core is not None, "it has begun"
    draft.use(came.used)
    before, now = dict(base.written), dict(core.written)
    changed = [used for used in came.used if before.get(used, []) != now.get(used, [])]
    if changed:
        draft.failed = f"{name} has used {changed[0]!r}, which its parent or another child wrote meanwhile"
        raise WrongState(f"{draft.failed}: in one transaction, one after the other uses an object", objects=changed)
    for used in came.used:
        at_once(core.version_of(used))  # if it is another one at the commit, that is a conflict
    for used, updates in came.written:
        for update in updates:
            at_once(core.change(used, update))
    draft.extra += [NewRecord(data, tags) for data, tags in came.extra]


def at_once(steps: Steps[R]) -> R:
    """What steps come to that need nothing of the log."""
    try:
        next(steps)
    except StopIteration as end:
        found: R = end.value
        return found
    raise AssertionError("the object was loaded")


# the child


def came_of(workflow: Runnable, txn: OpenTransaction, result: Any) -> Payload:
    """The result of a child, with what it has used and written. `WrongState` if a child of its own has failed."""
    txn.check()
    draft = txn.draft
    assert draft.base is not None, "it has joined"
    used, written = [], []
    if draft.core is not None:
        before = {name: len(updates) for name, updates in draft.base.written}
        used = [name for name in draft.core.used if name in draft.used]
        written = [(name, updates[before.get(name, 0) :]) for name, updates in draft.core.written]
    encoded = Function.of(workflow).encode_result(result)
    extra = [(record.data, tuple(record.tags)) for record in draft.extra]
    came = Came(encoded, used, [pair for pair in written if pair[1]], extra)
    return Payload("bytes", msgspec.msgpack.encode(came))
