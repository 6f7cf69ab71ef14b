"""The outbox: what several libraries add commits as one group, once, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import boki.testing
from boki import ConditionFailed, Expect, InvalidArgument, NewRecord, TooLarge, WrongState
from boki.libs.fold.outbox import MAX_EFFECTS, Outbox
from tests.libs.bokiqueue.running import asynchronous


@asynchronous
async def test_all_commit_as_neighbours_and_each_library_is_told_its_own() -> None:
    """Records stand in the order in which they were added; what is told are the seqnums of one's own records."""
    async with boki.testing.context() as ctx:
        out = Outbox(ctx.logbook)
        told: dict[str, Sequence[int]] = {}
        out.add(
            [NewRecord(b"1", ["a"]), NewRecord(b"2", ["a"])], [Expect("a", 0)], on_commit=lambda s: told.update(a=s)
        )
        out.append(b"3", ["audit"])
        out.add([NewRecord(b"4", ["b"])], [Expect("b", 0), Expect("a", 0)], on_commit=lambda s: told.update(b=s))
        seqnums = await out.commit()
        assert [(await ctx.logbook.get(seqnum)).data for seqnum in seqnums] == [b"1", b"2", b"3", b"4"]
        assert seqnums == list(range(seqnums[0], seqnums[0] + 4))
        assert (list(told["a"]), list(told["b"])) == (seqnums[:2], seqnums[3:])
        with pytest.raises(WrongState):
            out.append(b"late")


@asynchronous
async def test_nothing_commits_if_one_condition_fails() -> None:
    """And nobody is told."""
    async with boki.testing.context() as ctx:
        await ctx.logbook.append(b"", ["b"])
        out = Outbox(ctx.logbook)
        told: list[Sequence[int]] = []
        out.add([NewRecord(b"1", ["a"])], [Expect("a", 0)], on_commit=told.append)
        out.add([NewRecord(b"2", ["b"])], [Expect("b", 0)], on_commit=told.append)
        with pytest.raises(ConditionFailed):
            await out.commit(key="k")
        assert await ctx.logbook.check_tail("a") is None
        assert not told
        assert not out.is_committed


@asynchronous
async def test_a_group_with_a_key_commits_once() -> None:
    """A repetition, as after a crash, appends nothing and tells the same seqnums."""
    async with boki.testing.context() as ctx:
        found = []
        for _ in range(2):
            out = Outbox(ctx.logbook)
            out.add([NewRecord(b"1", ["a"]), NewRecord(b"2", ["a"])])
            found.append(await out.commit(key="once"))
        assert found[0] == found[1]
        assert len((await ctx.logbook.read("a")).records) == 2


@asynchronous
async def test_what_can_never_commit_is_refused_when_it_is_added() -> None:
    """Two views of one tag, a record that no log takes, too many: and what was added before is as it was."""
    async with boki.testing.context() as ctx:
        out = Outbox(ctx.logbook)
        out.add([NewRecord(b"1", ["a"])], [Expect("a", 0)])
        with pytest.raises(ConditionFailed, match="two different things of tag 'a'"):
            out.add([NewRecord(b"2")], [Expect("b", 0), Expect("a", 5)])
        with pytest.raises(InvalidArgument):
            out.add([NewRecord(b"3"), NewRecord(b"4", [""])])
        with pytest.raises(TooLarge):
            out.add([NewRecord(b"")] * MAX_EFFECTS)
        with pytest.raises(TooLarge):
            out.add([NewRecord(bytes(1 << 20))] * 4)
        assert [record.data for record in out.records] == [b"1"]
        assert out.conditions == [Expect("a", 0)]
        assert len(await out.commit()) == 1


@asynchronous
async def test_an_empty_outbox_appends_nothing() -> None:
    """So a block without effects costs nothing."""
    async with boki.testing.context() as ctx:
        assert await Outbox(ctx.logbook).commit(key="k") == []
        assert await ctx.logbook.check_tail() is None


@asynchronous
async def test_a_library_is_not_told_of_the_records_of_an_earlier_group() -> None:
    """A repetition that came to other records, or to more of them: what stands under the key is not its own."""
    async with boki.testing.context() as ctx:
        told: list[Sequence[int]] = []
        for data in ([b"1"], [b"1"], [b"2"], [b"1", b"2"]):
            out = Outbox(ctx.logbook)
            out.add([NewRecord(each, ["a"]) for each in data], on_commit=told.append)
            first = await out.commit(key="once")
            assert out.is_committed
        assert told == [first, first]
