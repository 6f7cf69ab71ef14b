"""Records by which the life of a logged call continues elsewhere in the book, begins again, or ends. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from boki.books.calls.ledger import CODEC, Accepted, Finished, accepted_at, attributes_of, name_of
from boki.books.calls.runs import Runs
from boki.books.calls.waiting import Owner, Waiting
from boki.errors import TooLarge
from boki.log.limits import KIB
from boki.log.operations import Failure
from boki.protocol.calls import PINNED, Call, Outcome, most_call_bytes

_ATTENDED_BYTES: Final = 4 * KIB
"""How much less what attends to something may have, such as a schedule: calls that it starts with the same payload have
longer names, and report to it.
"""


def check_size(entry: Accepted, most_bytes: int) -> None:
    """`TooLarge` for a call that could not be carried forward: it would hold up the trimming of all."""
    limit = most_call_bytes(most_bytes)
    if entry.call.chosen is not None and entry.call.chosen.attends:
        limit -= min(_ATTENDED_BYTES, most_bytes // 16)
    if len(entry.call.payload.data) < limit // 2:
        return
    size = len(CODEC.encode(entry))
    if size > limit:
        raise TooLarge(
            f"the call has {size:,} bytes with its payload, and a logged one may have at most {limit:,}: append it to "
            "a LogBook and pass where it is",
            limit=limit,
        )


def carry_forward(entry: Accepted, record_time_us: int, waiting: Waiting, runs: Runs) -> Accepted:
    """The same call as a new record, of its owner now, as far as it has come: with the runs of its last record."""
    return msgspec.structs.replace(
        entry,
        accepted_us=accepted_at(entry, record_time_us),
        owner=waiting.owner,
        starts=waiting.starts,
        state=waiting.state,
        next_us=waiting.due_us if waiting.state == "retrying" else 0,
        runs=runs,
        suspension=waiting.suspension,
    )


def pinned(call: Call, version: int) -> Call:
    """The call as it is accepted: one that asks for the version that runs now is pinned to that."""
    if call.chosen is None or call.chosen.attributes.get(PINNED) != 0:
        return call
    attributes = {name: value for name, value in call.chosen.attributes.items() if name != PINNED}
    if version:
        attributes[PINNED] = version
    return msgspec.structs.replace(call, chosen=msgspec.structs.replace(call.chosen, attributes=attributes))


def copy_of(call: Call, known: Call) -> Call:
    """The call with the payload of one that was accepted. If that is an earlier life of it, the same one waits for its
    end, unless it names another.
    """
    call = msgspec.structs.replace(call, payload=known.payload)
    if call.id != known.id or call.chosen is None or call.chosen.reports_to or known.chosen is None:
        return call
    chosen = msgspec.structs.replace(call.chosen, reports_to=known.chosen.reports_to)
    return msgspec.structs.replace(call, chosen=chosen)


def moved(entry: Accepted, version: int) -> Accepted:
    """The same call, pinned to another version."""
    assert entry.call.chosen is not None, "others are not pinned"
    attributes = {**entry.call.chosen.attributes, PINNED: version}
    chosen = msgspec.structs.replace(entry.call.chosen, attributes=attributes)
    return msgspec.structs.replace(entry, call=msgspec.structs.replace(entry.call, chosen=chosen))


def run_again(entry: Accepted, owner: Owner, finished: Finished, now_us: int) -> Accepted:
    """The call of a life that has ended, to be run at once: it is due now, and was accepted when it was."""
    runs = finished.runs if finished.runs.total else Runs(finished.attempts, finished.started_us, finished.started_us)
    delay_us = max(now_us - finished.accepted_us, 0)
    return Accepted(
        entry.call,
        entry.request_hash,
        delay_us,
        finished.accepted_us,
        owner,
        runs=msgspec.structs.replace(runs, since_us=0),
    )


def ended(call: Call, outcome: Outcome, accepted_us: int, due_us: int, runs: Runs, accepted_seqnum: int) -> Finished:
    """The record of a call's end."""
    return Finished(
        call.id,
        call.function,
        call.book,
        outcome,
        accepted_us,
        due_us,
        runs.first_us,
        runs.total,
        accepted_seqnum,
        runs,
        "" if call.chosen is None else call.chosen.reports_to,
        name_of(call),
        attributes_of(call),
        "" if call.chosen is None else call.chosen.watcher,
    )


def fitting(entry: Finished, most_bytes: int) -> Finished:
    """The record of an outcome; one that is too large for a record becomes the failure that says so."""
    size = len(CODEC.encode(entry))
    if size <= most_bytes:
        return entry
    size = len(entry.outcome.result.data) if entry.outcome.result else size
    error = TooLarge(
        f"the function ran, but its result has {size:,} bytes, and that of a logged call may have at most "
        f"{most_bytes:,}: append it to a LogBook and return where it is",
        outcome="failed",
        limit=most_bytes,
    )
    return msgspec.structs.replace(entry, outcome=Outcome(None, Failure.of(error), entry.outcome.positions))
