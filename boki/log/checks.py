"""What may come in: every value of a log operation is held to the limits before anything is allocated for it.

The same rules stand at two edges. `check_data` to `check_wait` look at Python values where a LogBook method is called,
so that a mistake is found in the line that made it. `check_operation` and `check_append` look at values that came over
a wire from a worker or a stranger, who may have sent anything; after them, code behind the edge need not doubt a
number. Each refusal names the field and the limit, and says what to write instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Final, assert_never

from boki.errors import CorruptData, InvalidArgument, TooLarge, VersionTooNew, WrongType
from boki.log.chunk import FREED, Chunk
from boki.log.ids import (
    KEY_TAG_PREFIX,
    MAX_SEQNUM,
    SYSTEM_BOOK_PREFIX,
    SYSTEM_TAG_PREFIX,
    check_name,
    check_not_dots,
    check_tag,
    is_system_tag,
)
from boki.log.limits import MAX_CONDITIONS, Limits
from boki.log.operations import (
    Append,
    Compare,
    Get,
    ListBooks,
    Operation,
    Read,
    SetAuxdata,
    SetRetention,
    Sync,
    TrimBook,
)
from boki.log.record import Expect

RECORD_OVERHEAD_BYTES: Final = 24
"""What a record costs in a chunk besides its data and tags, about."""
MAX_FORGOTTEN: Final = 256
"""Maximum number of tags that one operation forgets: they are one entry of the metalog."""

# Python values, where a LogBook method is called


def check_data(data: object, max_bytes: int, field: str = "data") -> bytes:
    """`data` as bytes, if it is bytes-like and small enough; else `WrongType` or `TooLarge`."""
    if not isinstance(data, bytes):
        if not isinstance(data, (bytearray, memoryview)):
            remedy = "data.encode()" if isinstance(data, str) else "msgspec.json.encode(data)"
            raise WrongType(f"{field} must be bytes, not {type(data).__name__}: write {remedy}", field=field)
        data = bytes(data)
    if len(data) > max_bytes:
        raise TooLarge(
            f"{field} may have at most {max_bytes:,} bytes, not {len(data):,}: split it, or store a reference to it",
            field=field,
            limit=max_bytes,
        )
    return data


def check_tags(tags: object, limits: Limits) -> tuple[str, ...]:
    """`tags` as a tuple, if they are valid, few enough and each there once."""
    if isinstance(tags, str):
        raise WrongType(f"tags must be a list, not one str: write tags=[{tags!r}]", field="tags")
    if not isinstance(tags, tuple):
        if not isinstance(tags, Iterable) or isinstance(tags, (bytes, bytearray, memoryview)):
            raise WrongType(f'tags must be a list of str, not {type(tags).__name__}: write tags=["a"]', field="tags")
        tags = tuple(tags)
    count = len(tags)
    if count > limits.tags_per_record:
        raise TooLarge(
            f"a record may have at most {limits.tags_per_record} tags, not {count}",
            field="tags",
            limit=limits.tags_per_record,
        )
    for tag in tags:
        check_tag(tag, limits.tag_bytes)
    if count > 1 and len(set(tags)) != count:
        twice = next(tag for tag in tags if tags.count(tag) > 1)
        raise InvalidArgument(f"a record carries each tag once, and {twice!r} is there twice", field="tags")
    return tags


def check_when(when: object, limits: Limits) -> tuple[Expect, ...]:
    """`when` as a tuple of conditions."""
    if isinstance(when, Expect):
        when = (when,)
    if not isinstance(when, (list, tuple)):
        raise WrongType(f"when must be Expect(tag, last_seqnum) or a list of them, not {when!r:.60}", field="when")
    check_condition_count(len(when))
    for expect in when:
        if not isinstance(expect, Expect):
            raise WrongType(
                f"when holds {expect!r:.60}, which is not an Expect: write when=Expect(tag, last_seqnum)", field="when"
            )
        check_tag(expect.tag, limits.tag_bytes)
        if (expect.last_seqnum is None) == (expect.count is None):
            raise InvalidArgument(
                f"a condition on tag {expect.tag!r:.60} needs last_seqnum or count, and not both: "
                "write Expect(tag, last_seqnum) or Expect(tag, count=n)",
                field="when",
            )
        if expect.count is None:
            check_seqnum(expect.last_seqnum, "when.last_seqnum")
        else:
            check_count(expect.count)
            check_counted_tag(expect.tag)
    return tuple(when)


def check_condition_count(count: int) -> None:
    """Refuse an append with too many conditions, before any of them is looked at."""
    if count > MAX_CONDITIONS:
        raise TooLarge(
            f"an append may have at most {MAX_CONDITIONS:,} conditions, not {count:,}: let one tag stand for several",
            field="when",
            limit=MAX_CONDITIONS,
        )


def check_count(count: object) -> int:
    """`count`, if a tag can ever have that many records."""
    if type(count) is not int:
        raise WrongType(f"when.count must be an int, not {type(count).__name__} {count!r:.60}", field="when.count")
    if not 0 <= count < MAX_SEQNUM:
        raise InvalidArgument(f"when.count must be at least 0 and below {MAX_SEQNUM}, not {count}", field="when.count")
    return count


def check_counted_tag(tag: str) -> None:
    """Refuse a condition on the count of a tag whose rows go with trims of the whole book."""
    if not is_system_tag(tag):
        raise InvalidArgument(
            f"a condition on a count needs a tag that outlives trims of the book, and {tag!r:.60} does not: "
            f"begin it with {SYSTEM_TAG_PREFIX!r}",
            field="when.count",
        )


def check_key(key: object, limits: Limits) -> str:
    """`key`, if it may be an idempotency key: what a tag may be."""
    if not isinstance(key, str):
        raise WrongType(f"key must be a str, not {type(key).__name__}: write key=str(key)", field="key")
    if not key:
        raise InvalidArgument("a key must not be empty: leave it out, or name what must happen once", field="key")
    try:
        return check_tag(key, limits.tag_bytes)
    except InvalidArgument as error:
        raise type(error)(error.message.replace("a tag", "a key", 1), field="key") from None


def check_seqnum(seqnum: object, field: str) -> int:
    """`seqnum`, if it is one, or 0, or MAX."""
    if type(seqnum) is not int:
        raise WrongType(f"{field} must be an int, not {type(seqnum).__name__} {seqnum!r:.60}", field=field)
    if not 0 <= seqnum <= MAX_SEQNUM:
        raise InvalidArgument(f"{field} must be a seqnum, 0 to {MAX_SEQNUM}, not {seqnum}", field=field)
    return seqnum


def check_limit(limit: object, limits: Limits) -> int:
    """`limit`, if a page may have this many records."""
    if type(limit) is not int:
        raise WrongType(f"limit must be an int, not {type(limit).__name__}", field="limit")
    if limit < 1:
        raise InvalidArgument(f"limit must be at least 1, not {limit}", field="limit")
    if limit > limits.page_records:
        raise TooLarge(
            f"limit may be at most {limits.page_records:,} records a page, not {limit:,}: read page after page",
            field="limit",
            limit=limits.page_records,
        )
    return limit


def check_seconds(value: object, field: str, *, positive: bool) -> float:
    """`value`, if it is a finite number of seconds that is not negative (or zero, if `positive`)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongType(f"{field} must be a number of seconds, not {type(value).__name__}", field=field)
    if not isfinite(value):
        raise InvalidArgument(f"{field} must be finite, not {value}", field=field)
    if value < 0 or (positive and value == 0):
        raise InvalidArgument(f"{field} must be {'above' if positive else 'at least'} 0, not {value:.15g}", field=field)
    return float(value)


def check_book(book: object) -> str:
    """`book`, if it may name a LogBook."""
    return check_not_dots(check_name(book, "book"), "book")


def check_writable(book: str) -> None:
    """Refuse to let a user write a book of the runtime itself."""
    if book.startswith(SYSTEM_BOOK_PREFIX):
        raise InvalidArgument(
            f"book {book!r} belongs to the runtime: it can be read; write to one that does not start with "
            f"{SYSTEM_BOOK_PREFIX!r}",
            field="book",
        )


# Values that came over a wire


def check_operation(operation: Operation, limits: Limits) -> None:
    """Hold an operation of a worker or a stranger to the rules; `InvalidArgument`, `TooLarge` or `WrongType` if not.

    Of an `Append` this looks at the envelope only: who opens the chunk continues with `check_append`.
    """
    if isinstance(operation, ListBooks):
        _check_list(operation, limits)
        return
    check_book(operation.book)
    match operation:
        case Append():
            check_writable(operation.book)
            _check_request_size(len(operation.chunk), limits)
        case Read():
            _check_read(operation, limits)
        case Get():
            check_seqnum(operation.seqnum, "seqnum")
        case Compare():
            _check_compare(operation, limits)
        case TrimBook():
            check_writable(operation.book)
            check_seqnum(operation.before, "before")
            _check_optional_tag(operation.tag, limits)
            if operation.everything and (operation.tag is not None or operation.before != MAX_SEQNUM):
                # a cut through the records of one key would leave a repetition with a part of the first answer
                field = "before" if operation.tag is None else "tag"
                raise InvalidArgument(f"a book is deleted as a whole: leave {field} out", field=field)
            if operation.forgets:
                _check_forgotten(operation, limits)
        case SetAuxdata():
            check_seqnum(operation.seqnum, "seqnum")
            check_data(operation.data, limits.aux_bytes, "auxdata")
        case SetRetention():
            check_writable(operation.book)
            check_retention(operation.age_s, operation.size_bytes)
        case Sync():
            pass
        case _:
            assert_never(operation)


def check_request(operation: Operation, limits: Limits) -> None:
    """`check_operation`, and of an `Append` also `check_append`."""
    check_operation(operation, limits)
    if isinstance(operation, Append):
        try:
            chunk = Chunk(operation.chunk)
        except (CorruptData, VersionTooNew) as error:
            raise InvalidArgument(f"the chunk of an append cannot be read: {error.message}", field="chunk") from None
        check_append(chunk, operation.book, limits)


def _check_forgotten(operation: TrimBook, limits: Limits) -> None:
    tags = operation.forgets
    if len(tags) > MAX_FORGOTTEN:
        raise TooLarge(
            f"at most {MAX_FORGOTTEN} tags are forgotten at once, not {len(tags)}", field="forgets", limit=MAX_FORGOTTEN
        )
    if operation.tag != tags[0] or operation.everything:
        raise InvalidArgument("tag is the first of those in forgets", field="tag")
    for tag in tags:
        check_tag(tag, limits.tag_bytes)


def _check_read(read: Read, limits: Limits) -> None:
    _check_optional_tag(read.tag, limits)
    check_seqnum(read.start, "start")
    check_seqnum(read.stop, "stop")
    check_limit(read.limit, limits)
    for field, value in (("wait_us", read.wait_us), ("start_time_us", read.start_time_us)):
        if type(value) is not int or not 0 <= value <= MAX_SEQNUM:
            raise InvalidArgument(f"{field} must be microseconds, at least 0, not {value!r:.60}", field=field)
    if read.backward and read.wait_us:
        raise InvalidArgument("a backward read looks at what is there: leave wait_us out", field="wait_us")


def _check_list(listing: ListBooks, limits: Limits) -> None:
    for field, value in (("prefix", listing.prefix), ("after", listing.after)):
        if value:
            check_name(value, field)
    check_limit(listing.limit, limits)


def _check_compare(operation: Compare, limits: Limits) -> None:
    if len(operation.tags) != len(operation.lasts):
        count = f"{len(operation.tags):,} tags and {len(operation.lasts):,} seqnums"
        raise InvalidArgument(f"each tag has the seqnum of its last record beside it: here are {count}", field="lasts")
    check_limit(len(operation.tags), limits)
    for tag in operation.tags:
        check_tag(tag, limits.tag_bytes)
    for seqnum in operation.lasts:
        check_seqnum(seqnum, "lasts")


def _check_optional_tag(tag: str | None, limits: Limits) -> None:
    if tag is not None:
        check_tag(tag, limits.tag_bytes)


def check_retention(age_s: float | None, size_bytes: int | None) -> None:
    """Hold a retention to the rules; None lifts a bound."""
    if age_s is not None:
        check_seconds(age_s, "age_s", positive=True)
    if size_bytes is not None and (type(size_bytes) is not int or not 0 < size_bytes <= MAX_SEQNUM):
        raise InvalidArgument(f"size_bytes must be above 0, not {size_bytes!r:.60}; None: no bound", field="size_bytes")


def check_append(chunk: Chunk, book: str, limits: Limits) -> None:
    """Hold a chunk of a worker or a stranger to the rules, every number in it and every checksum.

    `book` is the one that the request named; who may write to it has been checked.
    """
    try:
        flags = chunk.verify_columns()
        chunk.verify_payloads()
    except CorruptData as error:
        raise InvalidArgument(
            f"the chunk of an append was badly made or damaged: {error.message}", field="chunk"
        ) from None
    if chunk.size != len(chunk.buffer) - chunk.offset:
        raise InvalidArgument("bytes follow the chunk of an append: send one chunk a request", field="chunk")
    _check_request_size(chunk.size, limits)
    if chunk.book != book:
        raise InvalidArgument(f"the chunk is of book {chunk.book!r:.60} and the request of {book!r:.60}", field="book")
    if not chunk.count:
        raise InvalidArgument("an append needs at least one record", field="records")
    if flags & FREED:
        raise InvalidArgument("a record of an append claims that it has been trimmed", field="chunk")
    if chunk.payload_bytes > limits.record_bytes:
        check_sizes(chunk.payload_sizes(), limits)
    if len(chunk.raw.tags) // 4 > limits.tags_per_record:
        _check_tag_counts(chunk, limits)
    _check_strings(chunk.strings[1:], limits)
    conditions = list(chunk.conditions())
    if len(conditions) > MAX_CONDITIONS:
        check_condition_count(max(Counter(record for record, _, _ in conditions).values()))
    for _, tag, number in conditions:
        if number < 0:
            check_counted_tag(tag)


def check_sizes(sizes: Sequence[int], limits: Limits) -> None:
    """Hold the records of one append to the limit of a record's size."""
    largest = max(sizes)
    if largest > limits.record_bytes:
        raise TooLarge(
            f"record {sizes.index(largest)} of the append has {largest:,} bytes of data, and the limit is "
            f"{limits.record_bytes:,}: split it, or store a reference to it",
            field="data",
            limit=limits.record_bytes,
        )


def _check_tag_counts(chunk: Chunk, limits: Limits) -> None:
    for i, count in enumerate(chunk.tag_counts()):
        if count > limits.tags_per_record and len(chunk.tags(i)) > limits.tags_per_record:
            raise TooLarge(
                f"record {i} of the append has {len(chunk.tags(i))} tags, and the limit is {limits.tags_per_record}",
                field="tags",
                limit=limits.tags_per_record,
            )


def _check_strings(names: Sequence[str], limits: Limits) -> None:
    for name in names:
        if name.startswith(KEY_TAG_PREFIX):
            check_key(name.removeprefix(KEY_TAG_PREFIX), limits)
        else:
            check_tag(name, limits.tag_bytes)


def _check_request_size(size: int, limits: Limits) -> None:
    if size > limits.request_bytes:
        raise TooLarge(
            f"one append may have at most {limits.request_bytes:,} bytes in all, not {size:,}: append in several calls",
            field="records",
            limit=limits.request_bytes,
        )
