"""Books: they exist from their first append, can be listed, given a retention, and deleted."""

from __future__ import annotations

from tests.contract.scenarios.logs import Logs, other


async def a_book_is_listed_from_its_first_append(logs: Logs) -> None:
    """With its name, its records, and where they stand."""
    name = logs.logbook.name
    assert await logs.books(name) == []
    seqnums = [await logs.logbook.append(b"12345", tags=["t"]) for _ in range(3)]
    (book,) = await logs.books(name)
    assert (book.name, book.record_count) == (name, 3)
    assert (book.first_seqnum, book.last_seqnum) == (seqnums[0], seqnums[-1])
    assert book.last_time_us == (await logs.logbook.get(seqnums[-1])).time
    assert (book.retention_age_s, book.retention_size_bytes) == (None, None)


async def books_are_listed_by_name(logs: Logs) -> None:
    """In the order of their names, by prefix, a page at a time."""
    names = sorted([f"{logs.logbook.name}.{suffix}" for suffix in ("a", "a.b", "a:c", "b", "B", "z-", "Z_")])
    for name in reversed(names):
        await logs.logbook_named(name).append(b"x")
    prefix = f"{logs.logbook.name}."
    assert [book.name for book in await logs.books(prefix)] == names
    assert [book.name for book in await logs.books(prefix + "a")] == [n for n in names if n.startswith(prefix + "a")]
    paged: list[str] = []
    while page := await logs.books(prefix, after=paged[-1] if paged else "", limit=2):
        paged += [book.name for book in page]
        assert len(page) <= 2
        assert len(paged) <= len(names)
    assert paged == names
    assert await logs.books(prefix + "none") == []


async def a_name_may_be_long_and_odd(logs: Logs) -> None:
    """128 characters of letters, digits and . _ : -"""
    name = (logs.logbook.name + ".-_:" + "Zz09" * 32)[:128]
    await logs.logbook_named(name).append(b"x")
    assert [book.name for book in await logs.books(name)] == [name]


async def a_retention_is_kept_and_lifted(logs: Logs) -> None:
    """Set on one bound or both, it is listed; None lifts it. Records that are within it stay."""
    await logs.logbook.append(b"x")
    for age_s, size_bytes in ((3600.0, None), (None, 1_000_000), (86_400.0, 2_000_000), (None, None)):
        await logs.logbook.set_retention(age_s=age_s, size_bytes=size_bytes)
        (book,) = await logs.books(logs.logbook.name)
        assert (book.retention_age_s, book.retention_size_bytes) == (age_s, size_bytes)
        assert book.record_count == 1


async def deleting_a_book_leaves_its_neighbours(logs: Logs) -> None:
    """Only the one of that very name; a deletion of what does not exist does nothing."""
    for book in (logs.logbook, other(logs, "a"), other(logs, "b")):
        await book.append(b"x")
    await other(logs, "a").delete()
    await other(logs, "never-written").delete()
    names = [book.name for book in await logs.books(logs.logbook.name)]
    assert names == [logs.logbook.name, other(logs, "b").name]


async def a_deleted_book_begins_without_its_retention(logs: Logs) -> None:
    """What the old book was given does not hold for the new one."""
    await logs.logbook.append(b"x")
    await logs.logbook.set_retention(size_bytes=1_000)
    await logs.logbook.delete()
    await logs.logbook.append(b"y")
    (book,) = await logs.books(logs.logbook.name)
    assert (book.record_count, book.retention_size_bytes) == (1, None)
