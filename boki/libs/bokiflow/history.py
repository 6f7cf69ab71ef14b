"""The journal of a run as its records tell it: what happened in which order, and where the next record goes.

Pure. A `History` is folded from the records of the journal's tag in ascending order. Two rules keep executions of one
run that overlap from mixing:

- a record counts if its writer began at its place, having read all before it, or if the record in front of it counts
  and is by the same writer;
- a record that does not count has its place all the same, because conditions on the count see it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b

import msgspec

from boki.extending import Payload
from boki.libs.bokiflow.records import (
    Beat,
    Began,
    Continued,
    Done,
    Ended,
    Entry,
    Fact,
    Fired,
    Intended,
    Marked,
    Retrying,
    Rewound,
    entry_of,
    uncounted,
)


class Scopes:
    """What the numbers of commands are unique in: one scope, or after a rewind another one from a number on."""

    def __init__(self, parts: Sequence[tuple[int, str]], opens: Sequence[tuple[str, Collection[int]]] = ()) -> None:
        """`opens`: see `boki.libs.bokiflow.records.Rewound`."""
        self.parts = tuple(parts)
        self.opens = tuple(opens)

    def at(self, n: int) -> str:
        """The scope of command number `n`."""
        if len(self.parts) == 1:
            return self.parts[0][1]
        return next(scope for first, scope in reversed(self.parts) if first <= n or not first)

    def of_key(self, n: int) -> str:
        """The scope of the key of command number `n`: another one, if another workflow runs the same command."""
        return next((scope for scope, numbers in self.opens if n in numbers), None) or self.at(n)


def life_of(start: str) -> int:
    """Tells the runs of one id apart by the starts that began them: see `Entry.life`."""
    return int.from_bytes(blake2b(start.encode(), digest_size=4).digest(), "big")


def request_of(run: str, life: int) -> str:
    """Names the request of that life to begin."""
    return f"{run}:{life:x}"


def number_of(fact: Fact) -> int | None:
    """The number of the command that a fact is about; None: it is about none."""
    return fact.n if isinstance(fact, Done | Fired | Intended | Retrying | Beat) else None


def cut_at(entries: Sequence[Entry], n: int) -> int:
    """The place among the entries of the first that is about command `n` or a later one, or only says which messages
    were delivered before that.
    """
    numbers = ((place, number_of(entry.fact)) for place, entry in enumerate(entries))
    cut = next((place for place, number in numbers if number is not None and number >= n), len(entries))
    while 0 < cut < len(entries) and _only_orders(entries[cut - 1]):
        cut -= 1
    return cut


def _only_orders(entry: Entry) -> bool:
    """Whether a record says no more than which message was delivered last."""
    return isinstance(entry.fact, Began) and entry.seen > 0 and not entry.read_at


class History:
    """What a run did since it began, or since it was last continued.

    `life`: of which life; what stands there of an earlier one is skipped. None: the latest.
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
        self.is_counted = True
        """Whether the place is certain; not where a part of an earlier life's records is trimmed."""
        self.next_start = 0
        """The seqnum from which on the journal was not read yet."""
        self.began_us = 0
        """The workflow's time when it began."""
        self.cursor = 0
        """The inbox is read from behind this seqnum."""
        self.taken: frozenset[int] = frozenset()
        """Messages behind the cursor that were taken all the same, by this life or an earlier one."""
        self.kept: tuple[tuple[int, bytes], ...] = ()
        """Messages in front of the cursor that were not taken: see `Continued`."""
        self.trimmed_to = 0
        """The seqnum of the last `Continued`: what stands below it is of no use."""
        self._last: Entry | None = None
        """The record in front of the next one, if it counts."""
        self._facts: dict[int, Done | Fired | Intended] = {}
        self.marks: dict[str, Payload] = {}
        """Decisions, by name."""
        self.forgotten: list[tuple[int, int, int]] = []
        """Between two seqnums of the inbox, and until a time if it is not 0, requests to cancel, to pause and to resume
        are not this life's: they were forgotten by a rewind, or sent to an earlier life.
        """
        self._scopes: tuple[tuple[int, str], ...] = ()
        self._opens: tuple[tuple[str, tuple[int, ...]], ...] = ()
        self._lives: set[int] = set()
        """The lives that this history is of: a rewind continues with what earlier ones have recorded."""
        self._until_us = 0
        """See `Ended.until_us`, if the last record is one."""
        self._heard = 0
        """The seqnum up to which the lives so far have read the inbox: a later life begins behind it."""
        self.has_ended = False
        """Whether the last record says that the workflow has ended."""
        self.last_read_at = 0
        """As of where the body read the log before it ended, if only the record of its end says so."""
        self.has_begun = False
        """Whether this life has run before, maybe without a record that is kept: nothing has to let it begin."""
        self.progress_run = 0
        """See `Entry.progress_run`."""

    def fold(self, data: bytes, seqnum: int) -> Entry | None:
        """Take in the next record; the entry, if it counts."""
        place = self.place
        entry = entry_of(data)
        if entry is not None and not place and isinstance(entry.fact, Continued):
            place = entry.fact.place  # the records in front of it were trimmed
            self._last = entry  # and it was looked at before they were
        elif entry is not None and (not place or entry.base > place):  # those in front of it may be trimmed, or some
            place = entry.base if entry.base >= 0 else uncounted(entry.base)
        self.place = place + 1
        before = self.next_start - 1
        self.next_start = seqnum + 1
        does_count = entry is not None and self._counts(entry, place)
        # the writer of the last one was refused here: what it writes next has a gap before it
        self._last = entry if does_count else None
        if entry is not None and does_count:
            self._apply(entry, seqnum, before)
        self._until_us = entry.fact.until_us if entry is not None and isinstance(entry.fact, Ended) else 0
        return self._last

    def _counts(self, entry: Entry, place: int) -> bool:
        last = self._last
        return entry.base == place or (last is not None and (last.writer, last.base) == (entry.writer, entry.base))

    def _apply(self, entry: Entry, seqnum: int, before: int) -> None:
        """`before`: the seqnum of the record in front of it."""
        if isinstance(entry.fact, Rewound) and self.began_us:
            self._last_life = entry.life  # the new life has the history of the one before
        if entry.life != self._last_life or not self.began_us:
            self._last_life = entry.life
            self._begin_life(before)
            self._clear(entry.began_us)
        self._lives.add(entry.life)
        self.progress_run = entry.progress_run
        hears_all = isinstance(entry.fact, Ended) and not entry.fact.until_us
        self._heard = max(self._heard, entry.seen, seqnum if hears_all else 0)
        match entry.fact:
            case Continued():
                self.continued = entry.fact
                self.cursor, self.taken, self.kept = entry.seen, frozenset(entry.fact.taken), entry.fact.kept
                self.trimmed_to = seqnum
                self.has_begun = True
                self._clear(entry.at_us)
                return
            case Rewound():
                self.has_begun = self.began_us > 0 and entry.began_us == 0
                self._rewind(entry, entry.fact, seqnum)
                return
            case Ended():
                self.has_ended, self.last_read_at = True, entry.read_at  # a rewind may continue behind it
                self.has_begun = self.has_begun or entry.began_us > 0  # its body did nothing that is recorded
                return
            case _:
                pass
        self.has_begun = True
        self._keep(entry, entry.stood_at or seqnum)

    def _begin_life(self, before: int) -> None:
        """Another life begins. What the earlier ones did not take of their messages is for it, but for requests to end
        or to pause that stood in front of their last record: those were for the life that made it.
        """
        self.continued = None
        self._lives.clear()
        self.progress_run = 0
        self.cursor = self._heard
        self.kept = ()
        self.forgotten = [(self.cursor, before, self._until_us)] if before > self.cursor else []
        self.has_begun = False

    def _keep(self, entry: Entry, seqnum: int) -> None:
        match entry.fact:
            case Done() | Fired() | Intended():
                self._facts[entry.fact.n] = entry.fact
            case Marked():
                self.marks[entry.fact.name] = entry.fact.value
            case _:
                pass
        self.entries.append(entry)
        self.seqnums.append(seqnum)
        self.has_ended, self.last_read_at = False, 0

    def _rewind(self, entry: Entry, fact: Rewound, seqnum: int) -> None:
        """Forget what came after the cut. The workflow's time continues from the rewind: its timers are not overdue."""
        cut = cut_at(self.entries, fact.n)
        kept = list(zip(self.entries[:cut], self.seqnums[:cut], strict=True))
        self._clear(self.began_us if kept else entry.at_us)
        for one, stood in kept:
            self._keep(one, stood)
        if kept:
            self.entries[-1] = msgspec.structs.replace(kept[-1][0], at_us=max(kept[-1][0].at_us, entry.at_us))
        self._scopes, self._opens = fact.scopes, fact.opens
        self.forgotten.append((kept[-1][0].seen if kept else self.cursor, seqnum, 0))

    def _clear(self, began_us: int) -> None:
        self.began_us = began_us
        self.entries.clear()
        self.seqnums.clear()
        self._facts.clear()
        self.marks.clear()
        self._scopes, self._opens = (), ()
        self.has_ended, self.last_read_at = False, 0

    def settle(self) -> None:
        """All was read: what is left of an earlier life only counts places."""
        if self._life is not None and self._last_life != self._life:
            self._begin_life(self.next_start - 1)
            self._clear(0)

    @property
    def life(self) -> int:
        """Whose history this is."""
        return self._last_life if self._life is None else self._life

    @property
    def lives(self) -> frozenset[int]:
        """The lives that this history is of, this one included; none that is not known."""
        return frozenset((*self._lives, self.life)) - {0}

    def requests(self, run: str) -> frozenset[str]:
        """Under what names a limit knows this history: see `boki.libs.bokiflow.gates.records.Asked`."""
        return frozenset(request_of(run, life) for life in (*self._lives, self.life))

    def scopes(self, run: str) -> Scopes:
        """Names what the commands of this journal number: they are numbered again in each life and each
        continuation.
        """
        return Scopes(self._scopes or ((0, self.scope(run, self.life)),), self._opens)

    def scope(self, run: str, life: int) -> str:
        """The scope of the commands of that life since it began, or last continued."""
        return f"{run}:{life:x}.{self.continued.number if self.continued is not None else 0}"

    def fact(self, n: int) -> Done | Fired | Intended | None:
        """What the journal says of the end of command number `n`, else that it was about to begin, at most once."""
        return self._facts.get(n)


def is_about(fact: Done | Fired | Intended | Retrying | Beat, name: str, digest: bytes) -> bool:
    """Whether a fact is about a command of that name, with arguments of that digest."""
    return not isinstance(fact, Fired) and (fact.name, fact.digest) == (name, digest)


def describe(fact: Done | Fired | Intended | Retrying | Beat) -> str:
    """Which command a fact is about, for people."""
    return f"timer#{fact.n}" if isinstance(fact, Fired) else f"{fact.name}#{fact.n}"
