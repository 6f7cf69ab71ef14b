"""Copies of a journal and of an inbox under the id of a fork, which are made before that begins.

The copies of one fork are the same whichever process makes them, and so is its start: it is named after what the fork
keeps. If that process is lost, or the start is refused, the same fork finds them when it is asked for again, and
continues behind them. Of two that are asked for at once, one writes each record. Only the last record of the journal
has a time of its own, that of the try which has written it: the fork's time continues from there.
"""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from boki import AlreadyExists, ConditionFailed, Expect, LogBook, WrongState
from boki.libs.bokiflow.branching import Branch, branch_at, copied_journal, copied_letter, letters_for, new_scope
from boki.libs.bokiflow.history import History, life_of
from boki.libs.bokiflow.one_round import RoundOver, inbox_of, records_of
from boki.libs.bokiflow.records import entry_of, inbox_tag, journal_tag
from boki.libs.bokiflow.replaying import kept_letters, read_counted
from boki.libs.fold.codec import runs
from boki.libs.fold.retrying import until_answered, until_decided

_AT_ONCE: Final = 100
_AT_ONCE_BYTES: Final = 1 << 18


class Fork(NamedTuple):
    """A fork that is to be made."""

    run: str
    """The workflow that is forked."""
    new_run: str
    start: str
    branch: Branch
    place: int
    """Where its journal begins."""
    stood: int
    """How many records of its journal are there: an earlier try has left them."""
    has_journal: bool
    """Whether its id has a journal: of that try, or of an earlier life."""


async def planned(logbook: LogBook, history: History, step: int | None, run: str, new_run: str) -> Fork:
    """What is to be done, and what of it was done by an earlier try."""
    tag = journal_tag(new_run)
    place = (await read_counted(logbook, tag)).place
    last = await until_answered(partial(logbook.check_tail, tag))  # what came since is found by the first append
    entry = None if last is None else entry_of(last.data)
    if entry is not None and entry.base >= 0:
        start, branch = _named(history, step, run, new_run, entry.base)
        if life_of(start) == entry.life:
            return Fork(run, new_run, start, branch, entry.base, place - entry.base, has_journal=True)
    start, branch = _named(history, step, run, new_run, place)
    return Fork(run, new_run, start, branch, place, 0, has_journal=last is not None)


def _named(history: History, step: int | None, run: str, new_run: str, place: int) -> tuple[str, Branch]:
    """The start of a fork whose journal begins at that place, and the point at which it is made."""
    bare = branch_at(history, step, run, "", is_fork=True)
    kept = history.seqnums[bare.cut - 1] if bare.cut else 0
    named = msgspec.msgpack.encode((run, new_run, place, kept, *bare))
    start = f"fork {blake2b(named, digest_size=16).hexdigest()}"
    return start, branch_at(history, step, run, new_scope(new_run, life_of(start), place), is_fork=True)


async def copy_history(logbook: LogBook, history: History, fork: Fork, in_use: AlreadyExists) -> None:
    """Copy what the fork keeps, as far as it is not there. Raises `in_use` if something else is."""
    moved = await _copy_inbox(logbook, history, fork, in_use)
    life = life_of(fork.start)
    writer = life_of(f"writer of {fork.start}")
    at_us = logbook.session.likely_time_us()
    records = copied_journal(history, fork.branch, moved, writer=writer, place=fork.place, life=life, at_us=at_us)
    await _write(logbook, fork, records, in_use)


async def _copy_inbox(logbook: LogBook, history: History, fork: Fork, in_use: AlreadyExists) -> list[tuple[int, int]]:
    """Copy the messages that the kept part was given: where each stood, and stands now."""
    try:
        inbox = await inbox_of(logbook, fork.run, history)
    except RoundOver:
        raise WrongState(
            "the workflow has continued as new, or was trimmed, while it was read: nothing was forked; fork it again",
            state="changed",
        ) from None
    letters = letters_for(history, fork.branch, [*kept_letters(history), *inbox.letters])
    requests = history.requests(fork.run)
    copies = [copied_letter(letter, requests) for letter in letters]
    tag = inbox_tag(fork.new_run)
    stood = await records_of(logbook, tag)
    if fork.stood:  # behind the copies stand messages to the fork
        is_free = [record.data for record in stood[: len(copies)]] == copies
    else:
        is_free = [record.data for record in stood] == copies[: len(stood)] and not (stood and fork.has_journal)
    if not is_free:
        raise in_use
    seqnums = [record.seqnum for record in stood[: len(copies)]]
    for some in runs(copies[len(seqnums) :], len, _AT_ONCE_BYTES, _AT_ONCE):
        records = [(data, [tag]) for data in some]
        append = partial(logbook.append_many, records, key=f"{fork.start} {len(seqnums)}")
        seqnums += await until_answered(append, "a copy of messages")
    return [(letter.seqnum, seqnum) for letter, seqnum in zip(letters, seqnums, strict=True)]


async def _write(logbook: LogBook, fork: Fork, records: list[bytes], in_use: AlreadyExists) -> None:
    """Write what is missing of the journal. Another try of the same fork may be under way."""
    tag, stood = journal_tag(fork.new_run), fork.stood
    while stood < len(records):
        some = next(runs(records[stood:], len, _AT_ONCE_BYTES, _AT_ONCE))
        when = Expect(tag, count=fork.place + stood)
        append = partial(logbook.append_many, [(data, [tag]) for data in some], when=when)
        try:
            await until_decided(append, "a copy of a journal")
            stood += len(some)
        except ConditionFailed as error:
            last = await until_answered(partial(logbook.check_tail, tag))
            entry = None if last is None else entry_of(last.data)
            if entry is None or (entry.base, entry.life) != (fork.place, life_of(fork.start)):
                raise in_use from None
            stood = int(error.details["actual_count"]) - fork.place


async def drop_copies(logbook: LogBook, fork: Fork) -> None:
    """Trim the copies of a fork whose id no caller knows, and which does not begin."""
    for tag in (journal_tag(fork.new_run), inbox_tag(fork.new_run)):
        last = await logbook.check_tail(tag)
        if last is not None:
            await logbook.trim(last.next_seqnum, tag=tag)
