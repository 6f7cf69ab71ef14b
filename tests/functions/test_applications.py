"""The applications of objects in `functions/`: a small Twitter, and a bank whose total never changes."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

import boki.testing
from boki import FunctionFailed, Response, TerminalError
from boki.libs.bokistore import Store
from functions import bank, retwis
from tests.libs.bokiqueue.running import asynchronous


def said(answer: Response) -> Any:
    return answer.body


@asynchronous
async def test_users_follow_each_other_and_read_what_was_said() -> None:
    """A post is in the author's list, in those of followers, and in the timeline of all; passwords are checked."""
    async with boki.testing.context(book="retwis") as ctx:
        for name in ("ada", "bob"):
            assert (await retwis.register(ctx, retwis.Login(name, "pw"))).status == 201
        assert (await retwis.register(ctx, retwis.Login("ada", "other"))).status == 409
        assert (await retwis.log_in(ctx, retwis.Login("ada", "pw"))).status == 200
        assert (await retwis.log_in(ctx, retwis.Login("ada", "wrong"))).status == 403
        assert (await retwis.follow_user(ctx, retwis.Follow("bob", "pw", "ada"))).status == 200
        assert (await retwis.follow_user(ctx, retwis.Follow("bob", "pw", "ada"))).status == 200
        assert (await retwis.follow_user(ctx, retwis.Follow("bob", "pw", "nobody"))).status == 404
        assert (await retwis.publish(ctx, retwis.Post("ada", "no", "x"))).status == 403
        posted = await retwis.publish(ctx, retwis.Post("ada", "pw", "hello"))
        assert posted.status == 201
        again = await retwis.publish(ctx, retwis.Post("ada", "pw", "hello"))
        assert said(again) == said(posted)
        expected = {"posts": [{"author": "ada", "text": "hello"}]}
        assert said(await retwis.posts(ctx, retwis.Shown())) == expected
        assert said(await retwis.posts(ctx, retwis.Shown("ada"))) == expected
        assert said(await retwis.posts(ctx, retwis.Shown("bob", "inbox"))) == expected
        assert said(await retwis.posts(ctx, retwis.Shown("bob"))) == {"posts": []}
        assert said(await retwis.profile(ctx, "ada")) == {"name": "ada", "followers": 1, "following": 0}
        assert (await retwis.profile(ctx, "nobody")).status == 404


@asynchronous
async def test_the_total_of_the_bank_never_changes() -> None:
    """While many transfers run at once, at every moment of the past, and each call moves its money once."""
    async with boki.testing.context(book="bank", functions=[bank.transfer]) as ctx:
        await bank.open_bank(ctx, bank.Opening(6, 100))
        await bank.open_bank(ctx, bank.Opening(60, 100))
        rng = Random(1)

        async def some() -> int:
            moved = 0
            for _ in range(10):
                source, target = rng.sample(range(6), 2)
                try:
                    await ctx.invoke("transfer", {"source": source, "target": target, "amount": rng.randint(1, 80)})
                    moved += 1
                except FunctionFailed as error:
                    assert "has" in error.message
                assert (await bank.audit(ctx, bank.Moment())) == {"total": 600, "expected": 600}
            return moved

        assert sum(await asyncio.gather(*(some() for _ in range(3)))) > 5
        for record in (await ctx.logbook.read()).records:
            assert (await bank.audit(ctx, bank.Moment(record.seqnum)))["total"] == 600
        before = await Store(ctx).object("account:0").get("balance")
        left = await bank.transfer(ctx, bank.Transfer(0, 1, 1))
        assert await bank.transfer(ctx, bank.Transfer(0, 1, 1)) == left == before - 1
        for wrong in (bank.Transfer(0, 0, 1), bank.Transfer(0, 1, -1), bank.Transfer(0, 99, 1)):
            with pytest.raises(TerminalError):
                await bank.transfer(ctx, wrong)
