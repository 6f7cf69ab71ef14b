"""Bad input: refused with an error that names the field and the limit and says what to write; nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from boki import Expect, InvalidArgument, LogBook, NewRecord, TooLarge, WrongType
from tests.contract.scenarios.logs import Logs, data_of, error_of, other

MIB = 1 << 20
Call = Callable[[LogBook], Coroutine[Any, Any, Any]]


async def _refuses(book: LogBook, kind: type[InvalidArgument], words: str, *calls: Call) -> None:
    for call in calls:
        error = await error_of(call(book))
        assert isinstance(error, kind), f"{error!r} is no {kind.__name__}"
        assert isinstance(error, ValueError)
        assert words in error.message, f"{words!r} is not in {error.message!r}"
        assert (error.outcome, error.retryable) == ("not_applied", False)
    assert await data_of(book) == []


async def data_must_be_bytes(logs: Logs) -> None:
    """Text and objects say how to write them."""
    text: Any = "text"
    book = logs.logbook
    await _refuses(book, WrongType, "data.encode()", lambda b: b.append(text), lambda b: b.append_many([b"x", text]))
    await _refuses(
        book, WrongType, "msgspec.json.encode(data)", *(lambda b, d=d: b.append(d) for d in (None, 1, {}, []))
    )
    await _refuses(book, WrongType, "data.encode()", lambda b: b.append_many([b"x", NewRecord(text)]))
    assert issubclass(WrongType, TypeError)


async def a_lone_string_is_no_list_of_tags(logs: Logs) -> None:
    """`tags="abc"` says to write `tags=["abc"]`."""
    lone: Any = "abc"
    await _refuses(logs.logbook, WrongType, "tags=['abc']", lambda b: b.append(b"x", tags=lone))
    await _refuses(logs.logbook, WrongType, "tags=['abc']", lambda b: b.append_many([(b"x", lone)]))
    await _refuses(logs.logbook, WrongType, "list of str", lambda b: b.append(b"x", tags=7))  # type: ignore[arg-type]
    await _refuses(logs.logbook, WrongType, "list of str", lambda b: b.append(b"x", tags=b"abc"))  # type: ignore[arg-type]


async def tags_are_short_printable_text(logs: Logs) -> None:
    """Empty, not a str, with control characters or lone surrogates, too long in bytes, too many, one twice."""
    await _refuses(logs.logbook, InvalidArgument, "must not be empty", lambda b: b.append(b"x", tags=[""]))
    for tag in ("a\nb", "\x00", "\x7f", "a\x85b", "\x01kmine", "\ud800"):
        await _refuses(
            logs.logbook, InvalidArgument, "control characters", lambda b, t=tag: b.append(b"x", tags=["a", t])
        )
    for wrong in (1, None, b"t"):
        await _refuses(logs.logbook, InvalidArgument, "must be a str", lambda b, t=wrong: b.append(b"x", tags=[t]))
    for tag in ("x" * 256, "é" * 128):
        await _refuses(logs.logbook, TooLarge, "255 bytes", lambda b, t=tag: b.append(b"x", tags=[t]))
    many = [f"{i}" for i in range(17)]
    await _refuses(logs.logbook, TooLarge, "at most 16 tags, not 17", lambda b: b.append(b"x", tags=many))
    await _refuses(logs.logbook, InvalidArgument, "'a' is there twice", lambda b: b.append(b"x", tags=["a", "b", "a"]))


async def conditions_are_bounded(logs: Logs) -> None:
    """Each index decides every condition of an append, so there are 1,024 at most, however they come."""
    most = [Expect(f"t{number}", 0) for number in range(1_024)]
    limit = "at most 1,024 conditions, not 1,025"
    more = [*most, Expect("u", 0)]
    await _refuses(logs.logbook, TooLarge, limit, lambda b: b.append(b"x", when=more))
    await _refuses(logs.logbook, TooLarge, limit, lambda b: b.append_many([b"x", b"y"], when=more))
    assert await logs.logbook.append(b"x", when=most) > 0


async def records_have_a_largest_size(logs: Logs) -> None:
    """1 MiB a record and 4 MiB a request, whichever way they come."""
    large = b"x" * (MIB + 1)
    await _refuses(
        logs.logbook, TooLarge, "1,048,576", lambda b: b.append(large), lambda b: b.append_many([b"", large])
    )
    await _refuses(logs.logbook, TooLarge, "4,194,304", lambda b: b.append_many([b"x" * MIB] * 5))
    await _refuses(logs.logbook, TooLarge, "4,194,304", lambda b: b.append_many([b""] * 300_000))


async def many_records_are_a_list(logs: Logs) -> None:
    """A lone record, nothing at all, and tuples of another length."""
    lone: Any = b"abc"
    await _refuses(logs.logbook, WrongType, "append(data)", lambda b: b.append_many(lone))
    await _refuses(logs.logbook, InvalidArgument, "at least one record", lambda b: b.append_many([]))
    triple: Any = (b"x", ["a"], 1)
    await _refuses(logs.logbook, WrongType, "(data, tags)", lambda b: b.append_many([triple]))


async def one_bad_record_refuses_all(logs: Logs) -> None:
    """The good ones beside it are not appended."""
    await _refuses(logs.logbook, InvalidArgument, "empty", lambda b: b.append_many([b"good", (b"bad", [""]), b"good"]))


async def conditions_and_keys_are_checked(logs: Logs) -> None:
    """`when` holds `Expect`s, with valid tags and seqnums; a key is what a tag may be."""
    for when in ("t", 5, {"t": 0}, [("t", 0)], [None]):
        await _refuses(logs.logbook, WrongType, "Expect", lambda b, w=when: b.append(b"x", when=w))
    await _refuses(logs.logbook, InvalidArgument, "empty", lambda b: b.append(b"x", when=Expect("", 0)))
    await _refuses(
        logs.logbook, InvalidArgument, "needs last_seqnum or count", lambda b: b.append(b"x", when=Expect("t"))
    )
    both = Expect("!t", 0, 0)
    await _refuses(logs.logbook, InvalidArgument, "and not both", lambda b: b.append(b"x", when=both))
    counted = Expect("t", count=0)
    await _refuses(logs.logbook, InvalidArgument, "begin it with '!'", lambda b: b.append(b"x", when=counted))
    for count in (-1, 1 << 63):
        await _refuses(
            logs.logbook, InvalidArgument, "count", lambda b, n=count: b.append(b"x", when=Expect("!t", count=n))
        )
    await _refuses(logs.logbook, WrongType, "count", lambda b: b.append(b"x", when=Expect("!t", count=True)))
    for seqnum in (-1, 1 << 63):
        await _refuses(
            logs.logbook, InvalidArgument, "last_seqnum", lambda b, s=seqnum: b.append(b"x", when=Expect("t", s))
        )
    await _refuses(logs.logbook, WrongType, "key=str(key)", *(lambda b, k=k: b.append(b"x", key=k) for k in (1, b"k")))
    await _refuses(logs.logbook, InvalidArgument, "a key must not be empty", lambda b: b.append(b"x", key=""))
    await _refuses(logs.logbook, InvalidArgument, "a key must not hold control", lambda b: b.append(b"x", key="a\n"))
    await _refuses(logs.logbook, TooLarge, "255", lambda b: b.append(b"x", key="k" * 256))


async def reads_are_checked(logs: Logs) -> None:
    """Seqnums, tags, limits and waits of every read."""
    text: Any = "8796093022208"
    await _refuses(
        logs.logbook,
        WrongType,
        "must be an int",
        lambda b: b.get(text),
        lambda b: b.read_next(min_seqnum=text),
        lambda b: b.read_prev(max_seqnum=1.5),  # type: ignore[arg-type]
        lambda b: b.read(start=text),
        lambda b: b.read(limit="all"),  # type: ignore[arg-type]
        lambda b: b.trim(text),
    )
    await _refuses(
        logs.logbook,
        InvalidArgument,
        "must be a seqnum",
        lambda b: b.get(-1),
        lambda b: b.read_next(min_seqnum=1 << 63),
        lambda b: b.read_prev(max_seqnum=-1),
        lambda b: b.read(start=-1),
        lambda b: b.read(stop=1 << 64),
        lambda b: b.trim(-1),
    )
    await _refuses(logs.logbook, InvalidArgument, "at least 1", lambda b: b.read(limit=0), lambda b: b.read(limit=-1))
    await _refuses(logs.logbook, TooLarge, "10,000", lambda b: b.read(limit=10_001))
    await _refuses(
        logs.logbook,
        InvalidArgument,
        "leave it out",
        lambda b: b.read_next(""),
        lambda b: b.read_prev(""),
        lambda b: b.check_tail(""),
        lambda b: b.read(""),
        lambda b: b.trim(0, tag=""),
    )
    await _refuses(
        logs.logbook,
        InvalidArgument,
        "wait_s",
        *(lambda b, w=wait: b.read_next(wait_s=w) for wait in (-1, float("nan"), float("inf"), "1", True)),
    )


async def subscriptions_are_checked(logs: Logs) -> None:
    """Where they are made, before anything is read."""
    bad: list[dict[str, Any]] = [{"start": "then"}, {"start": -1}, {"start": None}, {"on_trimmed": "stop"}, {"tag": ""}]
    for arguments in bad:
        try:
            logs.logbook.subscribe(**arguments)
        except InvalidArgument as error:
            assert error.outcome == "not_applied"
        else:
            raise AssertionError(f"subscribe({arguments}) was taken")


async def timeouts_are_positive(logs: Logs) -> None:
    """Zero, negative, not a number."""
    bad: list[Any] = [0, -1, float("nan"), "5"]
    await _refuses(
        logs.logbook, InvalidArgument, "timeout_s", *(lambda b, t=t: b.append(b"x", timeout_s=t) for t in bad)
    )


async def auxdata_has_a_largest_size(logs: Logs) -> None:
    """64 KiB, of bytes."""
    seqnum = await other(logs).append(b"x")
    await _refuses(logs.logbook, TooLarge, "65,536", lambda b: b.set_auxdata(seqnum, b"x" * 65_537))
    await _refuses(logs.logbook, WrongType, "auxdata", lambda b: b.set_auxdata(seqnum, "text"))  # type: ignore[arg-type]


async def retentions_are_positive(logs: Logs) -> None:
    """Zero and negative bounds are refused; None lifts one."""
    await _refuses(logs.logbook, InvalidArgument, "age_s", *(lambda b, a=a: b.set_retention(age_s=a) for a in (0, -1)))
    await _refuses(
        logs.logbook, InvalidArgument, "size_bytes", *(lambda b, s=s: b.set_retention(size_bytes=s) for s in (0, -1))
    )


async def books_have_names(logs: Logs) -> None:
    """1 to 128 characters of letters, digits and . _ : -"""
    names: list[Any] = ["", "a b", "a/b", "ü", "x" * 129, None, 7, "a\n"]
    for name in names:
        try:
            logs.logbook_named(name)
        except InvalidArgument as error:
            assert "1 to 128 characters" in error.message
        else:
            raise AssertionError(f"book {name!r} was taken")
    for call in (logs.books("a b"), logs.books(after="ü"), logs.books(limit=0)):
        assert isinstance(await error_of(call), InvalidArgument)


async def the_books_of_the_runtime_are_only_read(logs: Logs) -> None:
    """Books that start with "boki:" refuse every write."""
    book = logs.logbook_named(f"boki:{logs.logbook.name}"[:128])
    calls: list[Call] = [
        lambda b: b.append(b"x"),
        lambda b: b.append_many([b"x"]),
        lambda b: b.trim(0),
        lambda b: b.delete(),
        lambda b: b.set_retention(age_s=1),
    ]
    for call in calls:
        error = await error_of(call(book))
        assert isinstance(error, InvalidArgument)
        assert "belongs to the runtime" in error.message
    assert await book.check_tail() is None
