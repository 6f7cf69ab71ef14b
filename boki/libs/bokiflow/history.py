"""The journal of a run as its records tell it: what happened in which order, and where the next record goes.

Pure. A `History` is folded from the records of the journal's tag in ascending order. Two rules keep executions of one
run that overlap from mixing:

- a record counts if its writer began at its place, having read all before it, or if the record in front of it counts
  and is by the same writer;
- a record that does not count has its place all the same, because conditions on the count see it.
"""

from __future__ import annotations

from boki.extending import Payload
from boki.libs.bokiflow.records import Continued, Done, Entry, Fired, Marked, entry_of


class History:
    """What a run did since it began, or since it was last continued.

    `life`: of which life; what stands there of an earlier one is passed by. None: the latest.
    """

    def __init__(self, life: int | None = None) -> None:
        self._life = life
        self._last_life = 0
        self.entries: list[Entry] = []
        """The records that count, since the last `Continued`, which is not among them."""
        self.seqnums: list[int] = []
        """Where each of them stands."""
        self.continued: Continued | None = None
        self.place = 0
        """The place of the next record: how many the tag has ever had."""
        self.next_start = 0
        """The seqnum from which on the journal was not read yet."""
        self.began_us = 0
        """The workflow's time when it began."""
        self.cursor = 0
        """The inbox is read from behind this seqnum."""
        self.trimmed_to = 0
        """The seqnum of the last `Continued`: what stands below it is of no use."""
        self._last: Entry | None = None
        self._facts: dict[int, Done | Fired] = {}
        self.marks: dict[str, Payload] = {}
        """Decisions, by name."""

    def fold(self, data: bytes, seqnum: int) -> Entry | None:
        """Take in the next record; the entry, if it counts."""
        place = self.place
        entry = entry_of(data)
        if entry is not None and not place and isinstance(entry.fact, Continued):
            place = entry.fact.place  # the records in front of it were trimmed
            self._last = entry  # and it was looked at before they were
        self.place = place + 1
        self.next_start = seqnum + 1
        if entry is None or not self._counts(entry, place):
            return None
        self._last = entry
        self._apply(entry, seqnum)
        return entry

    def _counts(self, entry: Entry, place: int) -> bool:
        last = self._last
        return entry.base == place or (last is not None and (last.writer, last.base) == (entry.writer, entry.base))

    def _apply(self, entry: Entry, seqnum: int) -> None:
        if entry.life != self._last_life or not self.began_us:
            self._last_life = entry.life
            self.continued = None
            self.cursor = 0
            self._clear(entry.began_us)
        if self._life is not None and entry.life != self._life:
            return
        match entry.fact:
            case Continued():
                self.continued = entry.fact
                self.cursor = entry.seen
                self.trimmed_to = seqnum
                self._clear(entry.at_us)
                return
            case Done() | Fired():
                self._facts[entry.fact.n] = entry.fact
            case Marked():
                self.marks[entry.fact.name] = entry.fact.value
            case _:
                pass
        self.entries.append(entry)
        self.seqnums.append(seqnum)

    def _clear(self, began_us: int) -> None:
        self.began_us = began_us
        self.entries.clear()
        self.seqnums.clear()
        self._facts.clear()
        self.marks.clear()

    def settle(self) -> None:
        """All was read: what is left of an earlier life only counts places."""
        if self._life is not None and self._last_life != self._life:
            self.continued = None
            self.cursor = 0
            self._clear(0)

    def scope(self, run: str) -> str:
        """Names what the commands of this journal number: they are numbered anew in each life and each continuation."""
        life = self._last_life if self._life is None else self._life
        return f"{run}:{life:x}.{self.continued.number if self.continued is not None else 0}"

    def fact(self, n: int) -> Done | Fired | None:
        """What the journal says of the end of command number `n`."""
        return self._facts.get(n)


def describe(fact: Done | Fired) -> str:
    """Which command a fact is about, for people."""
    return f"{fact.name}#{fact.n}" if isinstance(fact, Done) else f"timer#{fact.n}"
