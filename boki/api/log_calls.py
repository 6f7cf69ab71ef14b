"""What each LogBook method means: its arguments as an operation, and the answer as its result.

Pure, and shared by the async and the blocking LogBook, so that nothing about the log is written twice: those two only
carry values to a port and back. Wrong arguments raise here, in the line that made the mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from math import ceil
from struct import unpack
from typing import Any, Final, Literal, TypeVar

import msgspec

from boki.api.deadline import Caller
from boki.errors import ConditionFailed, InvalidArgument, TooLarge, Trimmed, WrongType
from boki.log.checks import (
    check_book,
    check_data,
    check_key,
    check_limit,
    check_retention,
    check_seconds,
    check_seqnum,
    check_tags,
    check_when,
)
from boki.log.chunk import MIN_RECORD_BYTES, Chunk, Group, encode_chunk
from boki.log.ids import MAX_SEQNUM, check_tag
from boki.log.limits import Limits
from boki.log.operations import (
    Append,
    Found,
    Get,
    ListBooks,
    Read,
    Rejected,
    SetAuxdata,
    SetRetention,
    TrimBook,
)
from boki.log.record import Expect, Page, Record

T = TypeVar("T")

Tags = list[str] | tuple[str, ...] | AbstractSet[str]
"""Not `Iterable[str]`, which a lone string is, too."""

When = Expect | list[Expect] | tuple[Expect, ...]

OnTrimmed = Literal["raise", "skip"]

DEFAULT_PAGE_RECORDS: Final = 1000


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to be appended by `append_many`."""

    data: bytes
    tags: Tags = ()


Appendable = bytes | tuple[bytes, Tags] | NewRecord
"""What `append_many` takes: bytes without tags, (data, tags), or a `NewRecord`."""


# Appends


def one_record(data: bytes, tags: Tags, when: When, key: str | None, limits: Limits) -> Group:
    """The group of an `append`."""
    record = (check_data(data, limits.record_bytes), check_tags(tags, limits) if tags else ())
    if when == () and key is None:
        return Group((record,))
    return Group((record,), check_when(when, limits), None if key is None else check_key(key, limits))


def many_records(records: Iterable[Appendable], when: When, key: str | None, limits: Limits) -> Group:
    """The group of an `append_many`; its records may not be more than one request holds."""
    if isinstance(records, (bytes, bytearray, memoryview, str)) or not isinstance(records, Iterable):
        raise WrongType(
            f"records must be a list of bytes, (data, tags) or NewRecord, not {type(records).__name__}: "
            "write append(data) for one record",
            field="records",
        )
    checked = []
    size = 0
    last: Tags = ()
    last_checked: tuple[str, ...] = ()
    for record in records:
        data, tags = _data_and_tags(record)
        data = check_data(data, limits.record_bytes)
        size += len(data) + MIN_RECORD_BYTES
        if size > limits.request_bytes:
            raise _request_too_large(limits)
        if tags is not last:  # records of one journal share theirs
            last, last_checked = tags, check_tags(tags, limits) if tags else ()
        checked.append((data, last_checked))
    if not checked:
        raise InvalidArgument("append_many needs at least one record", field="records")
    return Group(checked, check_when(when, limits), None if key is None else check_key(key, limits))


def _data_and_tags(record: Appendable) -> tuple[bytes, Tags]:
    if isinstance(record, tuple):
        if len(record) == 2:
            return record
        raise WrongType(f"a record must be (data, tags), not a tuple of {len(record)}", field="records")
    if isinstance(record, NewRecord):
        return record.data, record.tags
    return record, ()


def group_bytes(group: Group) -> int:
    """About how many bytes the group takes in a chunk."""
    size = 0
    for data, tags in group.records:
        size += len(data) + 24 + 24 * len(tags)
    return size


def append_operation(book: str, groups: Sequence[Group], limits: Limits) -> Append:
    """The groups as one request; `TooLarge` if a lone group is too much for one."""
    chunk = encode_chunk(book, groups)
    if len(chunk) > limits.request_bytes:
        raise _request_too_large(limits)
    return Append(book, chunk)


def _request_too_large(limits: Limits) -> TooLarge:
    return TooLarge(
        f"one append_many may have at most {limits.request_bytes:,} bytes in all: append in several calls",
        field="records",
        limit=limits.request_bytes,
    )


class FirstUse(tuple[int, ...]):
    """The seqnums of the first use of a key, which was used before: nothing was appended now."""

    __slots__ = ()


def seqnums_of(first_seqnum: int, group: Group, rejected: Rejected | None, book: str) -> Sequence[int]:
    """The seqnums of a group whose first record was given `first_seqnum`, or the `FirstUse` of its key.

    `ConditionFailed` if that is why the group was rejected.
    """
    if rejected is None:
        return range(first_seqnum, first_seqnum + len(group.records))
    if rejected.seqnums:
        return FirstUse(rejected.seqnums)
    if rejected.actual_count >= 0:
        raise ConditionFailed(
            f"tag {rejected.tag!r} in book {book!r} has had {rejected.actual_count} records, not "
            f"{rejected.expected_count}: nothing was appended; read on and decide again",
            book=book,
            tag=rejected.tag,
            expected_count=rejected.expected_count,
            actual_count=rejected.actual_count,
            actual_seqnum=rejected.actual_seqnum,
        )
    raise ConditionFailed(
        f"the last record of tag {rejected.tag!r} in book {book!r} is {rejected.actual_seqnum or 'none'}, not "
        f"{rejected.expected_seqnum or 'none'}: nothing was appended; read on and decide again",
        book=book,
        tag=rejected.tag,
        expected_seqnum=rejected.expected_seqnum,
        actual_seqnum=rejected.actual_seqnum,
    )


# Reads


def get(book: str, seqnum: int) -> Get:
    """The operation of `get`."""
    return Get(book, check_seqnum(seqnum, "seqnum"))


def read_next(book: str, tag: str | None, min_seqnum: int, size: int, limits: Limits) -> Read:
    """The operation of `read_next`, without its wait, for `size` records."""
    return Read(book, _checked_tag(tag, limits), check_seqnum(min_seqnum, "min_seqnum"), limit=size)


def read_prev(book: str, tag: str | None, max_seqnum: int, limits: Limits, *, fresh: bool = False) -> Read:
    """The operation of `read_prev` and `check_tail`."""
    stop = min(check_seqnum(max_seqnum, "max_seqnum") + 1, MAX_SEQNUM)
    return Read(book, _checked_tag(tag, limits), stop=stop, backward=True, fresh=fresh)


def read_page(
    book: str, tag: str | None, start: int, stop: int | None, limit: int, limits: Limits, start_time_s: float = 0
) -> Read:
    """The operation of `read`."""
    stop = MAX_SEQNUM if stop is None else check_seqnum(stop, "stop")
    read = Read(book, _checked_tag(tag, limits), check_seqnum(start, "start"), stop, check_limit(limit, limits))
    if start_time_s:
        time_us = round(check_seconds(start_time_s, "start_time_s", positive=False) * 1e6)
        read = msgspec.structs.replace(read, start_time_us=min(time_us, MAX_SEQNUM))
    return read


def _checked_tag(tag: str | None, limits: Limits) -> str | None:
    return None if tag is None else check_tag(tag, limits.tag_bytes)


def polls(read: Read, wait_s: float, caller: Caller) -> Iterator[Read]:
    """The read, with waits that no peer minds, until `wait_s` is over or the call's deadline is near. At least once."""
    clock = caller.deadline.clock
    until = clock() + caller.deadline.wait_s(check_seconds(wait_s, "wait_s", positive=False))
    left_s = until - clock()
    while True:
        yield with_wait(read, min(left_s, caller.longest_poll_s))
        left_s = until - clock()
        if left_s < 0.001:
            return


def with_wait(read: Read, wait_s: float) -> Read:
    """The same read, waiting for its first record."""
    return msgspec.structs.replace(read, wait_us=ceil(wait_s * 1e6)) if wait_s > 0 else read


def records_of(found: Found) -> list[Record]:
    """The records of an answer, in order."""
    records: list[Record] = []
    for slab in found.slabs:
        chunk = Chunk(slab.chunk)
        records += chunk.records(unpack(f"<{chunk.count}q", slab.seqnums), slab.time_us, slab.aux)
    return records


def first_record(found: Found) -> Record | None:
    """The record of an answer that holds at most one."""
    return records_of(found)[0] if found.slabs else None


def page_of(found: Found) -> Page:
    """The answer as a page."""
    return Page(records_of(found), found.next_start, found.first_seqnum, found.is_end)


class Cursor:
    """Where a subscription stands. `read` says what to ask next; `take` continues to the end of the answer.

    A trim that passes the cursor takes records away that the subscriber has not seen, which it should know of:
    `Trimmed` is raised, unless `on_trimmed` is "skip". The beginning of the book (`start=0`) is wherever trims have
    left it.
    """

    def __init__(
        self, book: str, tag: str | None, start: int | Literal["now"], on_trimmed: OnTrimmed, caller: Caller
    ) -> None:
        if on_trimmed not in ("raise", "skip"):
            raise InvalidArgument(f'on_trimmed must be "raise" or "skip", not {on_trimmed!r:.60}', field="on_trimmed")
        if isinstance(start, str) and start != "now":
            raise InvalidArgument(f'start must be a seqnum or "now", not {start!r:.60}', field="start")
        self._read = Read(
            book, _checked_tag(tag, caller.limits), limit=min(DEFAULT_PAGE_RECORDS, caller.limits.page_records)
        )
        self._next_start = None if start == "now" else check_seqnum(start, "start")
        self._on_trimmed = on_trimmed
        self._caller = caller

    @property
    def is_placed(self) -> bool:
        """Whether it is known where the subscription begins; if not, the next read asks where "now" is."""
        return self._next_start is not None

    def read(self) -> Read:
        """What to ask next: for "now" first where the end is, then for what comes after the cursor."""
        if self._next_start is None:
            return msgspec.structs.replace(self._read, limit=1, backward=True, fresh=True)
        wait_s = self._caller.deadline.wait_s(self._caller.longest_poll_s)
        return msgspec.structs.replace(self._read, start=self._next_start, wait_us=ceil(wait_s * 1e6))

    def take(self, found: Found) -> Page | None:
        """The records to hand out now, if any."""
        if self._next_start is None:
            last = first_record(found)
            self._next_start = last.next_seqnum if last else 0
            return None
        if 0 < self._next_start < found.first_seqnum and self._on_trimmed == "raise":
            overtaken, self._next_start = self._next_start, found.first_seqnum
            raise Trimmed(
                f"records of book {self._read.book!r} from {overtaken} on were trimmed before this subscription had "
                f'read them: go on at {found.first_seqnum}, or subscribe with on_trimmed="skip"',
                next_seqnum=found.first_seqnum,
            )
        self._next_start = found.next_start
        return page_of(found) if found.slabs else None

    def go_back(self, next_start: int) -> None:
        """Of the page that `take` gave, only the records below this seqnum were taken: the rest is read again."""
        self._next_start = next_start


# What libraries keep


def shared(kept: dict[Callable[[], Any], Any], make: Callable[[], T]) -> T:
    """What `make` returned when it was first asked for."""
    if make not in kept:
        kept.setdefault(make, make())  # another thread may be first
    found: T = kept[make]
    return found


# The book itself


def trim(book: str, before: int, tag: str | None, caller: Caller) -> TrimBook:
    """The operation of `trim`."""
    caller.check_writable(book)
    return TrimBook(book, check_seqnum(before, "before"), _checked_tag(tag, caller.limits))


def forget_tags(book: str, before: int, tags: Sequence[str], caller: Caller) -> TrimBook:
    """The operation of `forget_tags`."""
    trimming = trim(book, before, tags[0], caller)
    return TrimBook(trimming.book, trimming.before, trimming.tag, forgets=tuple(tags))


def delete(book: str, caller: Caller) -> TrimBook:
    """The operation of `delete`."""
    caller.check_writable(book)
    return TrimBook(book, MAX_SEQNUM, everything=True)


def set_auxdata(book: str, seqnum: int, data: bytes, limits: Limits) -> SetAuxdata:
    """The operation of `set_auxdata`."""
    return SetAuxdata(book, check_seqnum(seqnum, "seqnum"), check_data(data, limits.aux_bytes, "auxdata"))


def set_retention(book: str, age_s: float | None, size_bytes: int | None, caller: Caller) -> SetRetention:
    """The operation of `set_retention`."""
    caller.check_writable(book)
    check_retention(age_s, size_bytes)
    return SetRetention(book, age_s, size_bytes)


def list_books(prefix: str, after: str, limit: int, limits: Limits) -> ListBooks:
    """The operation of `books`."""
    for name in filter(None, (prefix, after)):
        check_book(name)
    return ListBooks(prefix, after, check_limit(limit, limits))
