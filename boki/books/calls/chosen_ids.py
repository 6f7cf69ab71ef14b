"""Accepting a call under an id that its caller has chosen: at most one call of an id at a time, whoever starts it."""

from __future__ import annotations

from functools import partial

from boki.books.calls.call_book import CallBook
from boki.books.calls.ledger import Accepted, CallEntry, Finished, name_of, waiting_of
from boki.books.calls.lives import copy_of
from boki.books.calls.waiting import Waiting
from boki.errors import AlreadyExists, InvalidArgument, KeyReused, NoSuchInvocation, NotFound, Trimmed
from boki.libs.fold.retrying import until_answered
from boki.protocol.calls import Call, ChosenId


async def accept_chosen(book: CallBook, entry: Accepted, chosen: ChosenId) -> tuple[Accepted, int, Waiting | None]:
    """Log the acceptance, or find the call that stands for it: see `CallBook.accept`.

    `AlreadyExists` where the start is not to stand for a call that is there, `KeyReused` if that was asked for another
    request.
    """
    last_seqnum = 0
    while True:
        accepted = await book.accept_after(entry, last_seqnum)
        if accepted is not None:
            return accepted
        found = await book.newest(entry.call.id)
        if found is None:  # all its records were trimmed in this moment
            last_seqnum = 0
            continue
        last, record = found
        known = await _acceptance(book, last)
        if known is not None and known.call.chosen is not None and known.call.chosen.start == chosen.start:
            waits = waiting_of(last, record.seqnum, record.time) if isinstance(last, Accepted) else None
            return known, record.time, waits  # this start, now or by an earlier try
        if not isinstance(last, Finished):
            if chosen.if_running == "fail":
                raise _exists(entry.call, "has not ended")
            return _same(known, entry), record.time, None
        if not _begins_again(last, entry, chosen):
            return _same(known, entry), record.time, None
        last_seqnum = record.seqnum


async def copied(book: CallBook, call: Call, source: str) -> Call:
    """The call with the payload of another call of its function. `NoSuchInvocation`, or `Trimmed` if that is gone."""
    found = await until_answered(partial(book.find, source), f"a look at call {source}")
    if found is None:
        raise NoSuchInvocation(f"no logged call has the id {source[:64]!r}, whose payload is wanted", field="copies")
    known = await _acceptance(book, found[0])
    if known is None:
        raise Trimmed(
            f"the payload of call {source} is gone: what was accepted is kept for a time. Start the function with it",
            next_seqnum=found[1].seqnum,
        )
    if known.call.function != call.function:
        raise InvalidArgument(
            f"call {source} is one of {known.call.function!r}, not of {call.function!r}", field="copies"
        )
    return copy_of(call, known.call)


async def _acceptance(book: CallBook, last: CallEntry) -> Accepted | None:
    """How the call was accepted; None if that has been trimmed."""
    if isinstance(last, Accepted):
        return last
    try:
        return (await book.acceptance(last.accepted_seqnum))[0]
    except (NotFound, Trimmed):
        return None


def _begins_again(ended: Finished, entry: Accepted, chosen: ChosenId) -> bool:
    """Whether a call that has ended gives way to a new one; False: it stands for the start."""
    if chosen.if_ended == "fail":
        raise _exists(entry.call, f"has ended ({ended.state})")
    return chosen.if_ended == "again" or (chosen.if_ended == "again_if_failed" and ended.state != "done")


def _same(known: Accepted | None, entry: Accepted) -> Accepted:
    """The call that stands for the start, if it was asked for the same; what is trimmed is trusted."""
    if known is None:
        return entry
    if known.request_hash != entry.request_hash:
        raise KeyReused(
            f"id {name_of(entry.call) or entry.call.id} was used for another request, a call of "
            f"{known.call.function!r}: choose another id",
            field="id",
            invocation=entry.call.id,
        )
    return known


def _exists(call: Call, how: str) -> AlreadyExists:
    return AlreadyExists(
        f"there is a call of id {name_of(call) or call.id}, which {how}: use it, choose another id, or start with "
        "another policy",
        invocation=call.id,
    )
