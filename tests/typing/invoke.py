"""What mypy makes of the public API: checked by `test_typing.py`, never run.

Each line that ends in an `error:` comment must be refused by mypy, and no other line may be.
"""

from __future__ import annotations

from typing import Any, assert_type

from boki import Context, Expect, LogBook, NewRecord, Page, Record, blocking, function


@function
async def score(ctx: Context, who: str) -> int:
    return len(who)


@function(name="greet", timeout_s=5)
def greet(ctx: blocking.Context, who: str = "you") -> str:
    return who


@function
async def tick(ctx: Context) -> None: ...


@function
def tock(ctx: blocking.Context) -> list[int]:
    return []


async def callers(ctx: Context, plain: blocking.Context) -> None:
    assert_type(await ctx.invoke(score, "a"), int)
    assert_type(await ctx.invoke(greet, "a"), str)
    assert_type(await ctx.invoke(greet), str)
    await ctx.invoke(tick)
    assert_type(await ctx.invoke(tock, timeout_s=1, book="b"), list[int])
    assert_type(await ctx.invoke("score", {"anything": 1}), Any)
    assert_type(plain.invoke(score, "a"), int)
    assert_type(plain.invoke(greet, "a"), str)
    assert_type(plain.invoke(greet), str)
    assert_type(plain.invoke(tock), list[int])
    assert_type(plain.invoke("tock"), Any)
    assert_type(await ctx.invoke_later(score, "a", delay_s=60, key="k"), str)
    assert_type(await ctx.invoke_later(tick), str)
    assert_type(plain.invoke_later(greet, "a"), str)
    assert_type(plain.invoke_later("greet", "a", delay_s=1), str)

    await ctx.invoke(score, 7)  # error: a payload of another type
    await ctx.invoke(score)  # error: no payload
    await ctx.invoke(tick, "a")  # error: takes no payload
    await ctx.invoke_later(score, 7)  # error: a payload of another type
    plain.invoke(greet, 7)  # error: a payload of another type
    plain.invoke(tock, "a")  # error: takes no payload


async def plain_python(ctx: Context, plain: blocking.Context) -> None:
    assert_type(await score(ctx, "a"), int)
    assert_type(greet(plain), str)

    greet(ctx)  # error: the other context
    await score(ctx, 7)  # error: a payload of another type


async def logbooks(book: LogBook, plain: blocking.LogBook) -> None:
    assert_type(await book.append(b"x", tags=["a"], when=Expect("a", 0), key="k"), int)
    assert_type(await book.append(b"x", ("a",), when=[Expect("a", 0)]), int)
    assert_type(await book.append_many([b"x", (b"y", ["a"]), NewRecord(b"z", {"a"})]), list[int])
    assert_type(await book.get(1), Record)
    assert_type(await book.read_next("a", wait_s=1), Record | None)
    assert_type(await book.read(limit=5), Page)
    assert_type(plain.append(b"x"), int)
    assert_type(plain.read(), Page)
    async for record in book.subscribe("a", start="now", on_trimmed="skip"):
        assert_type(record, Record)
    async for page in book.subscribe(start=5).batches():
        assert_type(page, Page)
    for record in plain.subscribe():
        assert_type(record, Record)
    for page in plain.subscribe().batches():
        assert_type(page.records, list[Record])

    await book.append("text")  # error: data is bytes
    await book.append(b"x", tags="abc")  # error: tags are a list
    plain.append(b"x", tags="abc")  # error: tags are a list
    book.subscribe(start="then")  # error: a seqnum or "now"
    book.subscribe(on_trimmed="stop")  # error: raise or skip
