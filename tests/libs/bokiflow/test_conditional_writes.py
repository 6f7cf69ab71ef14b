"""`flow.store.cond_write`: it is decided where its record stands, by values and not by how they are spelled."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

import boki.testing
from boki import FunctionFailed
from boki.libs.bokiflow import flow, workflow
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokistore import Store


@workflow
async def books(who: str) -> bool:
    return await flow.store.cond_write("seat", who, expected=None)


async def test_it_is_refused_only_if_another_value_stands_there_then(boki_context: boki.testing.Context) -> None:
    """The seat is given back between the read and the append of the record, which said that it was taken."""
    ctx, commit, given_back = boki_context, JournalWriter.commit, []
    await Store(ctx).object("seat").set("", "eve")

    async def later(self: JournalWriter, *arguments: Any) -> Any:
        if not given_back:
            given_back.append(await Store(ctx).object("seat").delete())
        return await commit(self, *arguments)

    with patch.object(JournalWriter, "commit", later):
        assert await (await books.start(ctx, "ada")).result() is True
    assert await Store(ctx).object("seat").get() == "ada"
    assert await (await books.start(ctx, "bob")).result() is False
    assert len((await ctx.logbook.read("!o:seat")).records) == 3


@workflow
async def visits(_: int) -> Any:
    return await flow.store.object("page").increment("visits")


async def test_an_update_is_refused_only_if_it_does_not_fit_there_then(boki_context: boki.testing.Context) -> None:
    """The object gets its shape between the read and the append of the record, which said that it had none."""
    ctx, commit, shaped = boki_context, JournalWriter.commit, []
    await Store(ctx).object("page").set("", "text")

    async def later(self: JournalWriter, *arguments: Any) -> Any:
        if not shaped:
            shaped.append(await Store(ctx).object("page").set("", {"visits": 6}))
        return await commit(self, *arguments)

    with patch.object(JournalWriter, "commit", later):
        assert await (await visits.start(ctx, 0)).result() == 7
    await Store(ctx).object("page").set("", "text")
    with pytest.raises(FunctionFailed, match="object 'page': path visits leads through the whole object"):
        await (await visits.start(ctx, 0)).result()


@workflow
async def moves(how: str) -> list[Any]:
    expected: dict[str, Any] = {"y": 2, "x": 1}
    if how == "alone":
        done = await flow.store.cond_write("place", 5, expected=expected)
    else:
        async with flow.store.transaction():
            done = await flow.store.cond_write("place", 5, expected=expected)
    if how == "waits":
        await flow.sleep(100)
    return [done, await flow.store.read("place")]


@pytest.mark.parametrize("how", ["alone", "together"])
async def test_the_order_of_keys_does_not_count(boki_context: boki.testing.Context, each_mode: None, how: str) -> None:
    """JSON says nothing of it, and `test_and_set_many` asks nothing of it either."""
    await Store(boki_context).object("place").set("", {"x": 1, "y": 2})
    assert await (await moves.start(boki_context, how)).result() == [True, 5]


async def test_a_journal_from_when_it_counted_replays_as_it_was(
    boki_context: boki.testing.Context, each_mode: None
) -> None:
    """The workflow had gone on without the write."""
    ctx = boki_context
    place = Store(ctx).object("place")
    await place.set("", {"x": 1, "y": 2})
    with patch("boki.libs.bokiflow.state.is_equal", lambda _one, _other: False):  # as an earlier Boki did
        handle = await moves.start(ctx, "waits")
        await ctx.clock.advance(10)
    assert (await handle.status()).status == "suspended"
    assert await handle.result() == [False, {"x": 1, "y": 2}]
