"""Transactions: any objects of a book, read at one moment and changed in one append. Generators of operations.

**Reads** are as of one seqnum, the *snapshot*: at first the end of the log as the first read has found it. So what a
transaction sees was true together at one moment, even if it will not commit (opacity).

**Commit.** The writes are appended on the condition that the row of every object that was read or written still ends
with the record that the transaction has seen. The index of the log decides that at the append's own place in the order:
the transaction happens there, and everything that it has read is true there. So transactions that write are strictly
serializable, and a transaction that was refused stands in no row.

**A guess** spares the read at the beginning. A transaction that begins with a change of an object which this process
alone has changed lately takes it that it still is the only one, as it does for the objects that were used with that one
the last time: its snapshot is where the process knows all of them. The commit proves it. If there is no commit, the end
of the transaction asks: what was seen, and is not so, is a conflict.

**Conflicts** are finer than conditions. If a row has grown, the transaction reads what came and tries its own actions
on the new version (`drafts`): if all of them come to the same results, it is appended again with the new condition.
Only if something that it has seen is different now, it ends with `ConflictError`. So transactions that use different
fields of an object, or a scan and a change that the scan does not meet, do not abort each other.

**The snapshot moves on** while everything that was seen is still so: a transaction that asks for what has changed since
its snapshot could not commit, so it tries its actions at the end of the log, and continues there if all come to the
same results. What other transactions of the process are committing just now is waited for (`under_way`).

**Lost answers** are asked for again. The conditions make that safe: of two appends of one transaction only the first
can hold, since it changes the rows itself; and its nonce tells whose record stands there. One that changes no object,
and commits records of the application alone, is appended under its nonce as a key. A transaction without either appends
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from boki import (
    BokiError,
    ConditionFailed,
    ConnectionLost,
    Expect,
    InvalidArgument,
    KeyReused,
    NewRecord,
    NotFound,
    TooLarge,
    Trimmed,
    WrongState,
)
from boki.libs.bokistore.accesses import look_all
from boki.libs.bokistore.drafts import Draft, answer_on, is_same_outcome, result_on
from boki.libs.bokistore.json_values import MISSING
from boki.libs.bokistore.keys import is_same_work
from boki.libs.bokistore.listing import with_names, without_names
from boki.libs.bokistore.parts import Parts
from boki.libs.bokistore.queries import Question
from boki.libs.bokistore.reading import Reader, certain
from boki.libs.bokistore.records import ROW, Author, Write, codec, row_tag, signed, write_records
from boki.libs.bokistore.refusals import ConflictError, conflict, key_expired, of_commit, used_before
from boki.libs.bokistore.under_way import Action
from boki.libs.bokistore.updates import Update
from boki.libs.bokistore.views import View
from boki.libs.fold import steps
from boki.libs.fold.outbox import Outbox
from boki.libs.fold.retrying import Repetition
from boki.libs.fold.steps import Append, Pause, ReadPage, Steps, Sync
from boki.retry import Backoff

MAX_OBJECTS: Final = 1_000
"""Maximum number of objects of one transaction: each is a condition of its append."""
MAX_OVERTAKEN: Final = 32
"""A transaction that was overtaken this often without a conflict gives up."""
MAX_TOGETHER: Final = 16
"""Maximum number of objects that a transaction leaves to the next one as those that are used with its first one."""
_NEVER: Final = "!o"
"""A tag that no record has."""
_DECIDE: Final = Backoff(first_s=0.02, longest_s=1.0, tries=30)


class Transaction:
    """One transaction. `nonce` tells its records from all others."""

    def __init__(self, reader: Reader, nonce: bytes, author: Author, key: str | None = None) -> None:
        self._reader = reader
        self._nonce = nonce
        self.author = author
        """Who its records say has written them."""
        self._key = None if key is None else f"{_NEVER}:{key}"
        self._shown_key = key
        self._drafts: dict[str, Draft] = {}
        self._extra: list[NewRecord] = []
        self._writes: list[NewRecord] = []
        self.parts = Parts()
        """Blocks of several tasks inside of its block."""
        self._marks = 0
        self.snapshot: int | None = None
        """The seqnum as of which it reads; None: it has not read yet."""
        self.is_over = False
        self._earlier: list[int] = []
        """The records of an earlier transaction under the same key."""
        self._has_looked = True
        self._is_fixed = False
        self.only_reads = False
        """It will write nothing, so it cannot conflict, and waits for no other one."""
        self.may_guess = False
        """Whether it may guess its snapshot. What is handed over to an outbox must not: it has no end here that asks,
        and nothing here is told that it was refused, so the next one would guess the same again.
        """
        self._is_guess = False
        """The snapshot is where this process takes the end of the log to be, for the objects that it has used."""

    def begin(self, *, fresh: bool, looks_up_key: bool = True) -> Steps[None]:
        """`fresh`: see all that was acknowledged to anybody. Under a key that was used, read as of before its use.

        `looks_up_key=False`: take it that the key was not used, which spares an append. `UsedBefore` if it was: then
        nothing was changed, and what the transaction has seen and decided means nothing; begin again with a look.
        """
        if fresh:
            self.may_guess = False
            yield Sync()
        self._has_looked = self._key is None or looks_up_key
        if self._key is not None and looks_up_key:
            self._earlier = yield from self._find_key()
            if self._earlier:
                self.snapshot = self._earlier[0] - 1

    def begin_at(self, seqnum: int) -> None:
        """Read as of that seqnum, which another library has chosen. `Trimmed` if that is too long ago: then the
        transaction is not run again at another moment.
        """
        self.snapshot, self._is_fixed = seqnum, True

    def load(self, name: str) -> Steps[None]:
        """Read an object that is going to be used: from then on nothing that is done with it needs the log."""
        yield from self._draft(name)

    def put_last(self, names: Iterable[str]) -> None:
        """Tell these last of what was used and written. Objects that are loaded side by side come in any order."""
        for name in names:
            self._drafts[name] = self._drafts.pop(name)

    @property
    def used(self) -> list[str]:
        """The objects that were read or written."""
        return list(self._drafts)

    @property
    def written(self) -> list[tuple[str, list[Update]]]:
        """What is to be committed, by object."""
        return [(name, draft.updates) for name, draft in self._drafts.items() if draft.updates]

    def _find_key(self) -> Steps[list[int]]:
        """The records of the key's first use; none if it was not used."""
        try:
            # a condition that never holds: the answer is the records of the first use, or that there was none
            found: list[int] = yield Append([NewRecord(b"", (_NEVER,))], (Expect(_NEVER, last_seqnum=1),), self._key)
        except ConditionFailed:
            return []
        return found

    def give_up(self) -> Steps[None]:
        """End it without a commit. `UsedBefore`: it must not end so, since it was committed earlier. `ConflictError`:
        what it has seen is not so, and what the caller has concluded from it may be wrong.
        """
        self.is_over = True
        if self._is_guess:
            yield from self.rebase()
        if not self._has_looked and (yield from self._find_key()):
            raise used_before(self._reader.book)

    def _check_open(self) -> None:
        if self.is_over:
            raise WrongState("this transaction has ended: begin another one")

    def _draft(self, name: str, *, is_written: bool = False) -> Steps[Draft]:
        self._check_open()
        known = self._drafts.get(name)
        if known is not None:
            return known
        if len(self._drafts) >= MAX_OBJECTS and not self.only_reads:
            raise TooLarge(
                f"a transaction may use at most {MAX_OBJECTS:,} objects: split it, or keep in one what belongs "
                "together",
                field="objects",
                limit=MAX_OBJECTS,
            )
        if self.snapshot is None and is_written and self.may_guess:
            self.snapshot = self._reader.guess_with(name)
            self._is_guess = self.snapshot is not None
        if self.snapshot is None:
            seen_to = yield from self._reader.begin_with(name)
            if self.snapshot is None:  # another task of the transaction may have been faster
                self.snapshot = max(0, seen_to - 1)
        elif self._is_guess and self._drafts and not self._reader.is_own(self._reader.rows.find(name)):
            yield from self._move_on()  # others change it: as of a guess it may be old, and end in a conflict
        while True:
            snapshot = self.snapshot
            view = yield from self._view_at(name, snapshot)
            self._check_open()  # what comes after its commit is not in it
            if snapshot == self.snapshot:  # another task of the transaction may have moved it on
                return self._drafts.setdefault(name, Draft(view, name))

    def _view_at(self, name: str, snapshot: int) -> Steps[View]:
        try:
            return (yield from self._reader.view_at(name, snapshot))
        except Trimmed:
            if self._earlier:
                raise key_expired(self._shown_key, self._reader.book, self._earlier[0]) from None
            if self._is_fixed:
                raise
            raise conflict([name], self._reader.book) from None  # it has taken longer than the past is kept

    def _draft_for(self, name: str, action: Action, *, is_written: bool = False) -> Steps[Draft]:
        """The draft of an object, at a moment at which an action on it can be committed."""
        if not (self._is_fixed or self.only_reads or self._earlier):
            if behind := self._reader.under_way.changing(name, action):
                yield from self._reader.wait_for(behind)
            if self._is_outdated(name, action):
                yield from self._move_on()
        return (yield from self._draft(name, is_written=is_written))

    def _is_outdated(self, name: str, action: Action) -> bool:
        """Whether the action is known to come to something else now than at the snapshot."""
        row, draft = self._reader.rows.find(name), self._drafts.get(name)
        if row is None or not self._drafts or self.snapshot is None or row.newest.last <= self.snapshot:
            return False
        seen = row.at(self.snapshot) if draft is None else draft.base
        return seen is None or not is_same_outcome(action(seen), action(row.newest))

    def prefetch(self, names: Sequence[str]) -> Steps[None]:
        """Read several objects at once that are going to be used."""
        unknown = [name for name in names if name not in self._drafts]
        if len(unknown) > 1:
            if self.snapshot is None:
                _, seen_to = yield from self._reader.catch_up(unknown[0])
                self.snapshot = max(0, seen_to - 1) if self.snapshot is None else self.snapshot
            yield from self._reader.prefetch(unknown, self.snapshot)

    def look(self, name: str, query: Question) -> Steps[Any]:
        """The answer to a query, as of the snapshot and with the transaction's own writes."""
        self.parts.used()
        draft = yield from self._draft_for(name, partial(answer_on, query))
        return draft.look(query)

    def change(self, name: str, update: Update, key: str | None = None) -> Steps[Any]:
        """The result of an update, which others see after the commit."""
        if key is not None:
            raise InvalidArgument(
                "an update in a transaction has no key of its own: give it to the transaction", field="key"
            )
        self.parts.used()
        draft = yield from self._draft_for(name, partial(result_on, update), is_written=True)
        return draft.change(update)

    def look_all(self, questions: Sequence[tuple[str, Question]]) -> Steps[list[Any]]:
        """See `accesses.Access`."""
        return (yield from look_all(self, questions))

    def version_of(self, name: str) -> Steps[int]:
        """The version of the object that the transaction has begun with."""
        draft = yield from self._draft(name)
        version = draft.version()
        return version

    def append(self, record: NewRecord) -> None:
        """Add a record of the application, which is appended together with the commit."""
        self._check_open()
        self.parts.used()
        self._extra.append(record)

    # parts

    def mark(self) -> int:
        """Begin a part that can be undone."""
        self._marks += 1
        for draft in self._drafts.values():
            draft.mark(self._marks)
        return self._marks

    def go_back(self, mark: int, extra: int) -> None:
        """Undo what was written since that mark, and the records added after the first `extra` ones."""
        for draft in self._drafts.values():
            draft.go_back(mark)
        del self._extra[extra:]

    @property
    def extra_count(self) -> int:
        """How many records of the application were added."""
        return len(self._extra)

    # the end

    def commit(self) -> Steps[int]:
        """Append what was written; its seqnum. A transaction that wrote nothing has that of its snapshot.

        `ConflictError`: nothing was appended. `KeyReused`: another transaction was committed under the key.
        `UsedBefore`: a transaction was committed under the key meanwhile, or before if nobody has looked.
        """
        self._end()
        if self._earlier:
            return (yield from self._compare())
        self._writes = self._records()
        if not self._writes and not self._extra:
            yield from self.give_up()
            return self.snapshot or 0
        seqnums = yield from self._append()
        if self._key is not None and not (yield from certain(self._is_own(seqnums[0]))):
            raise used_before(self._reader.book)
        self._learn(seqnums)
        return seqnums[len(self._writes) - 1 if self._writes else -1]

    def _end(self) -> None:
        """Nothing more is read or written. The next transaction that begins with the same object is likely to use the
        same others.
        """
        self.is_over = True
        self.parts.check()
        first, *others = self._drafts or [""]
        row = self._reader.rows.find(first)
        if row is not None:
            row.together = tuple(others[:MAX_TOGETHER])

    def hand_over(self, outbox: Outbox) -> None:
        """Have it committed with the records of other libraries, in one append that is not repeated here.

        `WrongState`: the outbox has another transaction that uses one of the objects, which would not see this one.
        """
        assert not self._is_guess, "it must not guess"
        self._end()
        conditions = self.conditions()
        taken = {condition.tag for condition in outbox.conditions}
        both = [condition.tag for condition in conditions if condition.tag in taken]
        if both:
            raise WrongState(
                f"object {both[0][len(ROW) :]!r} is in another transaction of this outbox already: use one transaction "
                "for both"
            )
        self._writes = self._records()
        outbox.add([*self._writes, *self._extra], conditions, on_commit=self._learn)

    def _records(self) -> list[NewRecord]:
        def is_listed(name: str) -> bool:
            return self._drafts[name].base.is_listed

        updates = with_names(
            [(name, draft.updates) for name, draft in self._drafts.items() if draft.updates], is_listed
        )
        author = signed(self.author)
        if self._key is not None and self._extra and not updates:  # without it nothing tells whose use of the key it is
            return [NewRecord(codec.encode(Write([], self._nonce, 0, author, is_transaction=True)))]
        return write_records(updates, self._nonce, author, is_transaction=True)

    def conditions(self) -> list[Expect]:
        """What must hold where the commit is appended: nothing has come to the rows that were read or written."""
        return [Expect(row_tag(name), last_seqnum=draft.base.last) for name, draft in self._drafts.items()]

    def _append(self) -> Steps[Sequence[int]]:
        under_way = self._reader.under_way
        commit, behind = under_way.enter(self._drafts, self._nonce)
        try:
            if behind:
                yield from self._reader.wait_for(behind)
            self._build_on_what_is_known()
            return (yield from self._append_until_decided())
        finally:
            under_way.leave(commit)

    def _build_on_what_is_known(self) -> None:
        """Move to the newest versions that the process knows: on older ones the append would be refused."""
        rows = self._reader.rows
        newest = {name: row.newest for name in self._drafts if (row := rows.find(name)) is not None}
        newer = {name: view for name, view in newest.items() if view.last > self._drafts[name].base.last}
        if newer:
            self._move(newer)
            self._writes = self._records()

    def _append_until_decided(self) -> Steps[Sequence[int]]:
        overtaken = 0
        lost = Repetition(_DECIDE, decides=True)
        # what changes no row would be appended again after a lost answer: its conditions hold twice
        key = self._key if self._writes or self._key else f"{_NEVER}:{self._nonce.hex()}"
        while True:
            try:
                seqnums: list[int] = yield Append([*self._writes, *self._extra], self.conditions(), key)
                return seqnums
            except ConditionFailed:
                if lost.is_doubtful:
                    found = yield from certain(self._find_own())
                    if found:
                        return found
                    lost = Repetition(_DECIDE, decides=True)  # what was lost was refused, and stays refused
                self._reader.expect_news(self._drafts)
                overtaken += 1
                if overtaken > MAX_OVERTAKEN:
                    raise conflict(self._drafts, self._reader.book, tries=overtaken) from None
                yield from self.rebase()
                self._writes = self._records()  # whether an object is to be listed may be another question now
            except BokiError as error:
                yield Pause(lost.failed(of_commit(error)))

    def rebase(self) -> Steps[None]:
        """Try everything that was done on the newest versions; `ConflictError`"""
        snapshot, views = yield from self._reader.views_of(list(self._drafts))
        self._move(views)
        self.snapshot, self._is_guess = snapshot, False

    def _move_on(self) -> Steps[None]:
        """The same, if it can be done; otherwise the transaction stays where it is."""
        before = self.snapshot
        snapshot, views = yield from self._reader.views_of(list(self._drafts))
        self._check_open()  # the drafts are what its commit decides by, and what its record is looked for from
        if self.snapshot != before or views.keys() != self._drafts.keys():
            return  # another task of the transaction was faster
        try:
            self._move(views)
        except ConflictError:
            return
        self.snapshot, self._is_guess = snapshot, False

    def _move(self, views: Mapping[str, View]) -> None:
        """Continue with these versions; `ConflictError`, and nothing is changed, if something was seen otherwise."""
        moved = {name: self._drafts[name].on(view) for name, view in views.items()}
        if different := [name for name, draft in moved.items() if draft is None]:
            raise conflict(different, self._reader.book)
        self._drafts.update((name, draft) for name, draft in moved.items() if draft is not None)

    def _find_own(self) -> Steps[Sequence[int]]:
        """The seqnums of a commit whose answer was lost; none: it was refused. `ConnectionLost`: nobody can tell."""
        written = [(name, draft) for name, draft in self._drafts.items() if draft.updates]
        for name, draft in written:
            start, is_whole = draft.base.last + 1, True
            while True:
                page = yield from steps.page(ReadPage(row_tag(name), start))
                is_whole = is_whole and page.first_seqnum <= start
                for record in page.records:
                    write = codec.own(record.data)
                    if isinstance(write, Write) and write.nonce == self._nonce:
                        first = record.seqnum + write.more + 1 - len(self._writes)
                        return range(first, first + len(self._writes) + len(self._extra))
                start = page.next_start
                if page.is_end:
                    break
            if is_whole:
                return ()
        if written:
            raise ConnectionLost(
                f"whether the transaction was committed in book {self._reader.book!r} is not known: its answer was "
                f"lost, and what came to {written[0][0]!r} meanwhile was trimmed. Give transactions a key",
                outcome="unknown",
            )
        return ()

    def _learn(self, seqnums: Sequence[int]) -> None:
        """Take in what was committed, so that the next read need not: the conditions say what was before it."""
        last_of: dict[str, int] = {}
        for seqnum, record in zip(seqnums, self._writes, strict=False):
            for tag in record.tags:
                last_of[tag] = seqnum
        since = max(last_of.values(), default=0)
        brought = sum(len(record.data) for record in self._writes)
        for name, draft in self._drafts.items():
            row = self._reader.rows.find(name)
            last = last_of.get(row_tag(name))
            if row is not None and last is not None and draft.updates:
                is_listed = draft.value is not MISSING
                view = View(draft.value, draft.size_bytes, last, since, since, is_listed)
                row.learn(draft.base.last, view, brought)
                self._reader.measure(row)

    # keys

    def _is_own(self, seqnum: int) -> Steps[bool]:
        record = yield from steps.get(seqnum)
        write = codec.own(record.data)
        return isinstance(write, Write) and write.nonce == self._nonce

    def _compare(self) -> Steps[int]:
        """The seqnum of the first commit under the key, if that was the same transaction. `KeyReused`"""
        committed: list[tuple[str, list[Update]]] = []
        last = self._earlier[0]
        for seqnum in self._earlier:
            try:
                record = yield from steps.get(seqnum)
            except (NotFound, Trimmed):
                raise key_expired(self._shown_key, self._reader.book, seqnum) from None
            write = codec.own(record.data)
            if not isinstance(write, Write):
                break
            committed += without_names(write.updates)
            last = seqnum
        if not is_same_work(committed, self.written):
            raise KeyReused(
                f"key {self._shown_key!r} was used for another transaction of book {self._reader.book!r}, which was "
                "committed: give each transaction a key of its own",
                key=self._shown_key,
            )
        return last
