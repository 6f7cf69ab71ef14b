"""The movie example: reviews that are kept and counted once, whatever dies in between, and the pages that show them."""

from __future__ import annotations

from typing import Any

import pytest

import boki.testing
from boki import FunctionFailed, InvalidArgument
from boki.libs.bokiflow.hooks import installed
from boki.libs.bokistore import Store
from boki.testing import flows
from functions import movies
from functions.movies import Draft, Movie, NoSuchMovie, Page
from tests.libs.bokiflow.crashes import NO_DEATH, AroundSteps, Death, World, all_deaths

ALIEN = Movie("Alien (1979)", 117, ["Drama"], 1, 8.0)
DRAFT = Draft("Ada", "Alien (1979)", "in  space\n", 4)


async def page_of(ctx: boki.testing.Context) -> tuple[Page, dict[str, Any]]:
    """The movie's page, and what is kept of the user."""
    page: Page = await (await movies.show.start(ctx, ALIEN.title)).result()
    user = await Store(ctx.logbook_named(movies.BOOK)).object(movies.user_name("Ada")).get("", {})
    return page, user


async def test_a_review_is_on_the_page_of_its_movie() -> None:
    """With all votes counted, the newest review first, and no more of them than are shown."""
    async with boki.testing.context() as ctx:
        await ctx.invoke(movies.add_movies, [ALIEN])
        for number in range(movies.SHOWN + 2):
            handle = await movies.compose.start(ctx, Draft("Ada", ALIEN.title, f"number  {number}", 4))
            assert (await handle.result()).text == f"number {number}"
        await ctx.invoke(movies.add_movies, [ALIEN])
        page, user = await page_of(ctx)
        assert page.review_count == user["count"] == movies.SHOWN + 2
        assert [review.text for review in page.reviews] == [f"number {n}" for n in range(movies.SHOWN + 1, 1, -1)]
        assert page.rating == round((8 + 4 * 12) / 13, 2)


async def test_a_movie_that_is_not_there() -> None:
    """Both to review and to show; nothing is left of the review."""
    async with boki.testing.context() as ctx:
        handles = [await movies.compose.start(ctx, DRAFT), await movies.show.start(ctx, ALIEN.title)]
        for handle in handles:
            with pytest.raises(FunctionFailed, match="the year belongs to the title") as caught:
                await handle.result()
            assert caught.value.error_type == NoSuchMovie.__name__
        assert await Store(ctx.logbook_named(movies.BOOK)).object(movies.movie_name(ALIEN.title)).get() is None


async def test_stars_beyond_the_scale_are_refused() -> None:
    """One review could decide the rating of a movie."""
    async with boki.testing.context() as ctx:
        await ctx.invoke(movies.add_movies, [ALIEN])
        with pytest.raises(InvalidArgument, match="<= 10"):
            await (await movies.compose.start(ctx, Draft("Ada", ALIEN.title, "good", 1_000_000))).result()
        page, _ = await page_of(ctx)
        assert page.review_count == 0


async def compose_with(death: Death) -> tuple[World, Page, dict[str, Any]]:
    """Compose a review with a process that dies then; what the pages say afterwards."""
    world = World()
    async with boki.testing.context(log=world.log) as ctx:
        await ctx.invoke(movies.add_movies, [ALIEN])
    with installed(AroundSteps(world)):
        review = await world.run(movies.compose, DRAFT, death=death)
    world.log.begin(NO_DEATH)
    async with boki.testing.context(log=world.log) as ctx:
        page, user = await page_of(ctx)
    assert page.reviews == [review], death
    assert user["reviews"] == [review.id], death
    return world, page, user


async def test_a_review_is_listed_once_whenever_its_process_dies() -> None:
    """At its one append, without and with its effect, and before and after the commit: enumerated."""
    world, page, user = await compose_with(NO_DEATH)
    assert (page.review_count, page.rating, user["count"], user["stars"]) == (1, 6.0, 1, 4)
    assert (world.appends, world.boundaries) == ([1], 2)
    deaths = all_deaths(world.appends, world.boundaries)
    for death in deaths:
        _, after, again = await compose_with(death)
        assert (after.review_count, after.rating, again["count"], again["stars"]) == (1, 6.0, 1, 4), death


async def test_a_review_survives_every_crash_under_forced_replay() -> None:
    """The same in a system that replays after each step."""
    async for ctx in flows.every_crash():
        await ctx.invoke(movies.add_movies, [ALIEN])
        with flows.forced_replay():
            await (await movies.compose.start(ctx, DRAFT)).result()
        page, user = await page_of(ctx)
        assert (page.review_count, user["count"]) == (1, 1)


async def test_reviews_of_one_movie_at_once_are_all_counted() -> None:
    """Transactions that conflict are made again, and none is listed twice."""
    async with boki.testing.context() as ctx:
        await ctx.invoke(movies.add_movies, [ALIEN])
        handles = [
            await movies.compose.start(ctx, Draft(f"user {number % 3}", ALIEN.title, "good", 4)) for number in range(6)
        ]
        ids = {(await handle.result()).id for handle in handles}
        page, _ = await page_of(ctx)
        assert page.review_count == 6
        assert {review.id for review in page.reviews} == ids
