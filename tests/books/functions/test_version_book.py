"""Versions in the book `boki:functions`: numbered, gone back to, kept and trimmed, however many deploy at once."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.api.log_calls import records_of
from boki.books.functions.bundle import File, pack_files
from boki.books.functions.version_book import VersionBook
from boki.books.functions.versions import (
    BOOK,
    CODEC,
    KEPT_VERSIONS,
    VERSIONS_TAG,
    Deployed,
    Entry,
    Piece,
    Used,
    Versions,
)
from boki.errors import CorruptData, InvalidArgument, NotFound, Trimmed, VersionTooNew
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import MAX_SEQNUM
from boki.log.limits import Limits
from boki.log.operations import Append, Found, Read, TrimBook
from tests.books.calls.call_world import Fault, FaultyPort, WatchedLog, now_us, run, time_passes

LIMITS = Limits(record_bytes=1000, request_bytes=10_000)


def bundle(number: int, size: int = 0) -> bytes:
    return pack_files([File("app.py", b"x" * size + str(number).encode())])


def book(log: WatchedLog, faults: dict[int, Fault] | None = None) -> VersionBook:
    return VersionBook(FaultyPort(log, faults), LIMITS)


async def deploy(log: WatchedLog, number: int, size: int = 0) -> Deployed:
    one = book(log)
    return await one.activate(await one.upload(bundle(number, size)))


def record_count(log: WatchedLog) -> int:
    found = log.answer(Read(BOOK, limit=10_000), now_us())
    assert isinstance(found, Found)
    return len(records_of(found))


def test_a_bundle_comes_back_from_the_log_as_it_was() -> None:
    """In as many records as it takes."""

    async def scenario() -> None:
        log = WatchedLog(LIMITS)
        for size in (0, 900, 5000, 20_000):
            version = await deploy(log, 1, size)
            assert await book(log).fetch(version) == bundle(1, size)
        infos = (await book(log).versions()).infos()
        assert [(info.number, info.is_active) for info in infos] == [(4, True), (3, False), (2, False), (1, False)]

    run(scenario())


def test_concurrent_deployments_get_numbers_of_their_own() -> None:
    """No number twice, none left out; the last one decided runs."""

    async def scenario() -> None:
        log = WatchedLog(LIMITS)
        versions = await asyncio.gather(*(deploy(log, number) for number in range(6)))
        assert sorted(version.number for version in versions) == list(range(1, 7))
        found = await book(log).versions()
        assert found.active is not None
        assert found.active.number == 6
        for version in versions:
            assert await book(log).fetch(version) == bundle(versions.index(version))

    run(scenario())


def test_going_back_and_forth() -> None:
    """By number, and to what ran before; a new deployment gets a new number."""

    async def scenario() -> None:
        log = WatchedLog(LIMITS)
        for number in range(3):
            await deploy(log, number)
        assert await book(log).use("previous") == 2
        assert await book(log).use("previous") == 3
        assert await book(log).use("1") == 1
        assert await book(log).use("1") == 1
        assert await book(log).use("previous") == 3
        assert (await deploy(log, 9)).number == 4
        with pytest.raises(NotFound, match=r"version 7 .*1, 2, 3, 4"):
            await book(log).use("7")
        for wrong in ("", "-1", "1.5", "newest", "٣", "9" * 50):
            with pytest.raises(InvalidArgument):
                await book(log).use(wrong)

    run(scenario())


def test_the_last_versions_are_kept_and_the_rest_is_trimmed() -> None:
    """With their pieces, so that the book does not grow; what was never activated goes, too."""

    async def scenario() -> None:
        log = WatchedLog(LIMITS)
        old = await deploy(log, 0, 3000)
        await book(log).upload(bundle(77, 3000))
        for number in range(1, KEPT_VERSIONS + 5):
            await deploy(log, number, 3000)
        versions = await book(log).versions()
        assert [kept.number for kept in versions.kept] == list(range(6, KEPT_VERSIONS + 6))
        assert record_count(log) == KEPT_VERSIONS * 5
        with pytest.raises(Trimmed):
            await book(log).fetch(old)
        with pytest.raises(NotFound):
            await book(log).use("1")
        for kept in versions.kept:
            assert await book(log).fetch(kept)

    run(scenario())


def test_an_old_version_that_runs_is_kept() -> None:
    """Whoever starts late still finds it."""

    async def scenario() -> None:
        log = WatchedLog(LIMITS)
        for number in range(KEPT_VERSIONS):
            await deploy(log, number)
        await book(log).use("1")
        assert (await book(log).versions()).trim_floor <= (await book(log).versions()).kept[0].first_seqnum
        active = (await book(log).versions()).active
        assert active is not None
        assert await book(log).fetch(active) == bundle(0)

    run(scenario())


def test_pieces_that_do_not_make_the_hash_are_not_run() -> None:
    """Whoever put them there."""

    async def scenario() -> None:
        log = WatchedLog(LIMITS)
        version = await deploy(log, 1)
        chunk = encode_chunk(BOOK, [Group([(CODEC.encode(Piece(b"more")), (version.upload,))])])
        log.answer(Append(BOOK, chunk), now_us())
        with pytest.raises(CorruptData):
            await book(log).fetch(version)

    run(scenario())


@pytest.mark.parametrize("fault", ["refuse", "lose_request", "lose_answer"])
def test_a_lost_message_makes_no_second_version_and_no_second_piece(fault: Fault) -> None:
    """At every operation of a deployment."""

    async def play(faults: dict[int, Fault]) -> int:
        log = WatchedLog(LIMITS)
        await deploy(log, 0)
        before = record_count(log)
        port = FaultyPort(log, faults)
        one = VersionBook(port, LIMITS)
        uploaded = await one.upload(bundle(1, 2500))
        version = await one.activate(uploaded)
        assert version.number == 2
        assert await book(log).fetch(version) == bundle(1, 2500)
        assert record_count(log) == before + 4
        return len(port.operations)

    count = run(play({}))
    assert count > 6
    for at in range(count):
        run(play({at: fault}))


def test_followers_see_every_change_once_and_late_ones_catch_up() -> None:
    """What runs is told at once, and again when it changes."""

    async def scenario() -> None:
        log = WatchedLog(LIMITS)
        await deploy(log, 1)
        seen: list[int] = []

        def note(versions: Versions) -> None:
            assert versions.active is not None
            seen.append(versions.active.number)

        task = asyncio.create_task(book(log, {3: "lose_answer", 5: "refuse"}).follow(note))
        await time_passes(1.0)
        await deploy(log, 2)
        await time_passes(1.0)
        await book(log).use("1")
        await time_passes(30.0)
        log.answer(TrimBook(BOOK, MAX_SEQNUM, tag=VERSIONS_TAG), now_us())
        await deploy(log, 3)
        await time_passes(1.0)
        assert seen == [1, 2, 1, 1] or seen == [1, 2, 1, 3]
        task.cancel()

    run(scenario())


# The fold


def test_a_version_is_kept_while_calls_are_pinned_to_it() -> None:
    """However many are deployed after it, with its files; and no longer."""
    versions = Versions()
    for number in range(1, 3 * KEPT_VERSIONS):
        in_use = (2,) if number < 2 * KEPT_VERSIONS else ()
        versions.apply(number, number, Deployed(number, "h", 1, f"b{number}", number, in_use=in_use))
        assert (2 in {kept.number for kept in versions.kept}) == (number in range(2, 2 * KEPT_VERSIONS))
        assert versions.trim_floor == (2 if 12 <= number < 2 * KEPT_VERSIONS else max(1, number - KEPT_VERSIONS + 1))


def test_the_version_that_ran_until_a_moment_ago_is_kept() -> None:
    """However old: engines change over one after the other, and one that has yet to do so pins calls to it."""
    versions = Versions()
    for number in range(1, KEPT_VERSIONS + 1):
        versions.apply(number, number, Deployed(number, "h", 1, f"b{number}", number))
    versions.apply(100, 100, Used(1))
    versions.apply(101, 101, Deployed(11, "h", 1, "b11", 90))
    assert [kept.number for kept in versions.kept] == list(range(1, 12))
    versions.apply(102, 102, Deployed(12, "h", 1, "b12", 91))
    assert [kept.number for kept in versions.kept] == list(range(3, 13))


def test_the_layout_of_records_is_pinned() -> None:
    """Records of this version stay readable: these are bytes on disks."""
    assert CODEC.encode(Used(3)).hex() == "0192a47573656403"
    assert CODEC.encode(Piece(b"ab")).hex() == "0192a57069656365c4026162"
    deployed = Deployed(1, "h", 5, "bundle:x", 9, ("f",), ("m",))
    assert CODEC.encode(deployed).hex() == "0199a86465706c6f79656401a16805a862756e646c653a780991a16691a16d90"
    assert CODEC.decode(CODEC.encode(deployed)) == deployed
    before = bytes.fromhex("0198a86465706c6f79656401a16805a862756e646c653a780991a16691a16d")
    assert CODEC.decode(before) == deployed  # it did not say which versions are in use
    with pytest.raises(VersionTooNew):
        CODEC.decode(b"\x02")
    with pytest.raises(CorruptData):
        CODEC.decode(b"\x01\x91")


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(0, 60))
def test_whoever_starts_late_comes_to_the_same_versions(numbers: list[int], trimmed: int) -> None:
    """From what a trim has left, at any time: the same numbers, the same one that runs."""
    entries: list[tuple[int, Entry]] = []
    whole = Versions()
    for seqnum, number in enumerate(numbers, start=1):
        in_use = tuple(kept.number for kept in whole.kept[: number % 3])
        entry: Entry = Deployed(whole.next_number, "h", 1, f"b{seqnum}", seqnum, in_use=in_use)
        if number and whole.kept:
            entry = Used(whole.kept[number % len(whole.kept)].number)
        entries.append((seqnum, entry))
        whole.apply(seqnum, seqnum, entry)
    floor = min(whole.trim_floor, trimmed)
    late = Versions()
    for seqnum, entry in entries:
        if seqnum >= floor:
            late.apply(seqnum, seqnum, entry)
            late.apply(seqnum, seqnum, entry)
    assert late.kept == whole.kept
    assert late.active == whole.active
    assert late.next_number == whole.next_number
    assert len(whole.kept) <= 2 * KEPT_VERSIONS
