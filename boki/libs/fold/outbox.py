"""Outbox: records and conditions of several libraries that commit as one group, all or none.

A queue's ack, a workflow's step and a transaction's writes go into one `append_many` if they are in one book. Each
library adds its records with the conditions under which they count, and is told their seqnums when they are durable::

    out = Outbox(ctx.logbook)
    out.append(b"seen", ["audit"])                                    # an application's record
    out.add(records, [Expect("!o:cart", last_seqnum=7)], on_commit=view.learn)
    await out.commit(key="order-17")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from boki import BokiError, ConditionFailed, Expect, LogBook, NewRecord, TooLarge, WrongState
from boki.libs.fold.arguments import check_list
from boki.libs.fold.retrying import PATIENT, until_decided
from boki.retry import Backoff

MAX_EFFECTS: Final = 1_000
"""Maximum number of records in one group."""
MAX_EFFECT_BYTES: Final = 3_500_000
"""Maximum size of a group: what one append may have, with room for envelopes."""
_ENVELOPE_BYTES: Final = 100


class Outbox:
    """What commits together."""

    def __init__(self, logbook: LogBook) -> None:
        self.logbook = logbook
        self.records: list[NewRecord] = []
        """What will be appended, in this order."""
        self.is_committed = False
        self._conditions: dict[str, Expect] = {}
        self._size_bytes = 0
        self._told: list[tuple[int, int, Callable[[Sequence[int]], object]]] = []

    @property
    def conditions(self) -> list[Expect]:
        """What must hold; otherwise `ConditionFailed`, and nothing happens."""
        return list(self._conditions.values())

    def append(self, data: bytes, tags: Sequence[str] = ()) -> None:
        """Add a record of the application, in the same book."""
        self.add([NewRecord(data, check_list(tags, "tags"))])

    def add(
        self,
        records: Iterable[NewRecord],
        conditions: Iterable[Expect] = (),
        *,
        on_commit: Callable[[Sequence[int]], object] | None = None,
    ) -> None:
        """Add records of a library, and the conditions under which they count. All of them or, if this raises, none.

        `on_commit` is called with the seqnums of these records once they are durable; it must not raise.
        `ConditionFailed`: two libraries expect different things of one tag, so the group could never be appended.
        """
        if self.is_committed:
            raise WrongState("this outbox was committed: what comes now needs another one")
        added, size_bytes = list(records), self._size_bytes
        for record in added:
            self.logbook.session.check(record.data, record.tags)
            size_bytes += len(record.data) + _ENVELOPE_BYTES
        if len(self.records) + len(added) > MAX_EFFECTS or size_bytes > MAX_EFFECT_BYTES:
            raise TooLarge(
                f"what commits together may have at most {MAX_EFFECTS:,} records and {MAX_EFFECT_BYTES:,} bytes in "
                "all: append a reference to what is larger",
                field="effects",
                limit=MAX_EFFECT_BYTES,
            )
        merged = dict(self._conditions)
        for condition in conditions:
            known = merged.setdefault(condition.tag, condition)
            if known != condition:
                raise ConditionFailed(
                    f"what commits together expects two different things of tag {condition.tag!r}: {known} and "
                    f"{condition}; one of the libraries has seen it later. Nothing was appended: begin again",
                    book=self.logbook.name,
                    tag=condition.tag,
                )
        if on_commit is not None:
            self._told.append((len(self.records), len(added), on_commit))
        self.records += added
        self._conditions, self._size_bytes = merged, size_bytes

    async def commit(self, key: str | None = None, *, backoff: Backoff = PATIENT) -> list[int]:
        """Append the group and tell the libraries; the seqnums, none if nothing was added.

        `key` names the group, so that a repetition within 24 hours (after a crash, of another process) appends nothing
        and returns the first seqnums; a library whose records are not the ones that stand there is not told. With a
        key, lost answers are asked for again; without one, the first error is raised, and its outcome says whether the
        group may have been appended.
        """
        if not self.records:
            self.is_committed = True
            return []
        append = partial(self.logbook.append_many, self.records, when=tuple(self.conditions), key=key)
        if key is None:
            seqnums = await append()
        else:
            seqnums = await until_decided(append, f"a group of book {self.logbook.name}", backoff)
            self._told = [told for told in self._told if await self._stands(seqnums, told[0], told[1])]
        self.committed(seqnums)
        return seqnums

    async def _stands(self, seqnums: Sequence[int], start: int, count: int) -> bool:
        """Whether a library's records are the ones that were appended under the key, as far as that can be told."""
        if not count or len(seqnums) != len(self.records):
            return False
        try:
            return (await self.logbook.get(seqnums[start])).data == self.records[start].data
        except BokiError:
            return False

    def committed(self, seqnums: Sequence[int]) -> None:
        """Tell the libraries. For a library that appends the group itself, behind a record of its own, as a queue does
        with its ack; `seqnums` are those of `records`.
        """
        self.is_committed = True
        for start, count, on_commit in self._told:
            on_commit(seqnums[start : start + count])
