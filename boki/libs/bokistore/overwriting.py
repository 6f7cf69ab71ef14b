"""Whole objects that are put by another library, as by a workflow with its own record, without reading them first.

What a whole object is set to does not depend on what it was, so the write needs neither a read nor a condition on the
row: it always counts, and the order of the log says which of two writes is the last one. Exactly once is for the
library that appends it. What a read would have told is found out otherwise:

- Whether the object is in the list of names. A process that does not know it puts the name in, which changes nothing if
  it is there. One that takes the object for listed may be wrong, if another process has deleted it: so the row is read
  in the background afterwards, and the name is put in if it lacks.
- What the process knows of the object. It knows it as of the write if it did not know it before. If it did, others may
  have changed it in between: the same read tells.
- An object that this process alone has changed lately is guessed to be as the process knows it, as in `accesses`: then
  the write has a condition, and if that holds, nothing is left to be read. If it is refused, the next try has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from boki import Expect, TooLarge
from boki.extending import Compared
from boki.libs.bokistore.accesses import list_again
from boki.libs.bokistore.json_values import MISSING
from boki.libs.bokistore.listing import puts_name, with_names
from boki.libs.bokistore.reading import Reader
from boki.libs.bokistore.records import ORIGIN, Author, row_tag, signed, write_records
from boki.libs.bokistore.refusals import of_object
from boki.libs.bokistore.saving import save
from boki.libs.bokistore.updates import Set, Update, apply
from boki.libs.bokistore.views import Row, View
from boki.libs.fold.outbox import Outbox
from boki.libs.fold.steps import Compare, Steps

_READ_EVERY: Final = 256
"""Of this many writes of objects that the process does not know, about one reads its row afterwards, as a reader would
have: else an object that is never read would never be saved, nor its past trimmed.
"""


def overwrite(
    reader: Reader,
    name: str,
    update: Set,
    author: Author,
    new_nonce: Callable[[], bytes],
    *,
    may_guess: bool = True,
) -> Steps[Overwrite | None]:
    """The whole object set to a value; `TooLarge`. None: it has to be read first. `may_guess`: no try was refused.

    In a fork the other book may no longer have what an object begins with. Such an object cannot be read, and what
    cannot be read is not changed, so a fork's objects are read first.
    """
    if reader.is_far:
        return None
    row = reader.rows.find(name)
    if row is None and not reader.is_plain:
        compared: Compared | None = yield Compare([(ORIGIN, 0)], reader.book)
        if compared is None or compared.changed:
            return None
    try:
        changed = apply(MISSING, 0, [update])
    except TooLarge as error:
        raise of_object(error, name) from None
    view = View(changed.value, changed.size_bytes)
    own = row if may_guess and reader.is_own(row) else None
    return Overwrite(reader, row, own, name, update, view, author, new_nonce)


class Overwrite:
    """The records of one such write. `row`: what the process knows of the object; `own`: if it is guessed to be so."""

    def __init__(
        self,
        reader: Reader,
        row: Row | None,
        own: Row | None,
        name: str,
        update: Set,
        view: View,
        author: Author,
        new_nonce: Callable[[], bytes],
    ) -> None:
        self._reader = reader
        self._is_known = row is not None
        self._own = own
        self._before = 0 if self._own is None else self._own.newest.last
        self._name = name
        self._view = view
        self._author = signed(author)
        self._new_nonce = new_nonce
        self._nonce = new_nonce()
        updates: list[tuple[str, list[Update]]] = with_names([(name, [update])], reader.is_listed)
        self._is_listed = puts_name(updates, name)
        self._records = write_records(updates, self._nonce, self._author, is_transaction=True)

    def hand_over(self, outbox: Outbox) -> None:
        """Have it committed with the records of other libraries."""
        row = self._reader.rows.find(self._name)
        if row is not None:
            row.unsure_to = max(row.unsure_to, row.newest.last + 1)  # no other write guesses on top of that record
        when = [] if self._own is None else [Expect(row_tag(self._name), last_seqnum=self._before)]
        outbox.add(self._records, when, on_commit=self._committed)

    def _committed(self, seqnums: Sequence[int]) -> None:
        """Take in what is known now. The object's own record is the first one, and all count from the last one on."""
        reader, name = self._reader, self._name
        last, since = seqnums[0], seqnums[-1]
        view = View(self._view.value, self._view.size_bytes, last, since, since, is_listed=True)
        row = reader.rows.find(name)
        reader.is_plain |= not self._is_known  # it was asked, and a book that has records becomes no fork
        if self._own is not None:
            self._own.learn(self._before, view, sum(len(record.data) for record in self._records))
            reader.measure(self._own)
            return
        if row is not None:
            row.is_quiet = False
            row.unsure_to = max(row.unsure_to, last)
        elif self._is_listed and self._nonce[0] % _READ_EVERY:
            reader.rows.put(Row(name, view, last + 1, awaited=reader.rows.awaited))
            return
        reader.rows.awaited[self._nonce] = None
        reader.follow_ups.append((name, self._look_after(last)))

    def _look_after(self, seqnum: int) -> Steps[None]:
        """Read the row up to this write, so that the process knows the object, and put its name into the list if the
        write should have done it.
        """
        reader, name = self._reader, self._name
        try:
            row = reader.rows.find(name)
            if row is None or row.known_to <= seqnum:
                row, _ = yield from reader.catch_up(name)
        finally:
            del reader.rows.awaited[self._nonce]
        if row.newest.value is not MISSING and not row.newest.is_listed:
            yield from list_again(row, self._new_nonce(), self._author)
        if name in reader.due:
            yield from save(reader, name)
