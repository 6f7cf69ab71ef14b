"""Retwis, the small Twitter that stores are measured with: users who follow each other, posts, profiles and timelines.

curl -d '{"name": "ada", "password": "analytical"}' http://127.0.0.1:8080/retwis/users
curl -d '{"name": "ada", "password": "analytical", "text": "hello"}' http://127.0.0.1:8080/retwis/posts
curl http://127.0.0.1:8080/retwis/users/ada
curl http://127.0.0.1:8080/retwis/timeline
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from dataclasses import dataclass
from typing import Any

from boki import Context, Response, function
from boki.libs.bokistore import Store, Transaction

SHOWN_OF_A_USER = 24
SHOWN_TO_ALL = 96
SHOWN_POSTS = 8
TOLD = 4
"""A post goes into the lists of that many followers at once; others find it in the author's profile."""


@dataclass
class Login:
    """Who it is."""

    name: str
    password: str


@dataclass
class Follow(Login):
    """Whom to follow."""

    whom: str


@dataclass
class Post(Login):
    """What to say."""

    text: str


@dataclass
class Shown:
    """Which posts to show."""

    name: str = ""
    of: str = "posts"


def user_key(name: str) -> str:
    """The object of a user."""
    return f"user:{name}"


async def hashed(password: str, salt: bytes) -> str:
    """A password as it is kept. A thread works it out, for some milliseconds in which other calls continue."""
    found = await asyncio.to_thread(hashlib.scrypt, password.encode(), salt=salt, n=1 << 12, r=8, p=1)
    return found.hex()


async def is_known(store: Store, login: Login) -> bool:
    """Whether the password is the user's."""
    kept: dict[str, str] | None = await store.object(user_key(login.name)).get("password")
    if kept is None:
        return False
    return hmac.compare_digest(await hashed(login.password, bytes.fromhex(kept["salt"])), kept["hash"])


@function(book="retwis", http=["POST /retwis/users"])
async def register(ctx: Context, login: Login) -> Response:
    """Make a user, once for each name."""
    salt = os.urandom(16)
    password = {"salt": salt.hex(), "hash": await hashed(login.password, salt)}

    async def make(txn: Transaction) -> bool:
        user = txn.object(user_key(login.name))
        if await user.exists():
            return False
        await user.set("", {"password": password, "followers": [], "following": [], "posts": [], "inbox": []})
        return True

    made = await Store(ctx).run(make)
    return Response({"name": login.name}, status=201) if made else Response("this name is taken\n", status=409)


@function(book="retwis", http=["POST /retwis/login"])
async def log_in(ctx: Context, login: Login) -> Response:
    """Check a password."""
    known = await is_known(Store(ctx), login)
    return Response({"name": login.name}) if known else Response("unknown name or password\n", status=403)


@function(book="retwis", http=["POST /retwis/follows"])
async def follow_user(ctx: Context, wish: Follow) -> Response:
    """Follow a user: both ends change together."""

    async def connect(txn: Transaction) -> int:
        follower, followed = txn.object(user_key(wish.name)), txn.object(user_key(wish.whom))
        if not await followed.exists():
            return 404
        if wish.whom not in await follower.get("following"):
            await follower.append("following", wish.whom)
            await followed.append("followers", wish.name)
        return 200

    store = Store(ctx)
    return Response({}, status=await store.run(connect) if await is_known(store, wish) else 403)


@function(book="retwis", http=["POST /retwis/posts"])
async def publish(ctx: Context, post: Post) -> Response:
    """Say something: the post and the lists that show it are one transaction, the timeline of all follows."""
    store = Store(ctx)
    name = f"post:{ctx.invocation_id}"

    async def publish_it(txn: Transaction) -> None:
        author = txn.object(user_key(post.name))
        followers: list[str] = (await author.get("followers"))[:TOLD]
        await txn.prefetch(name, *map(user_key, followers))
        await txn.object(name).set("", {"author": post.name, "text": post.text})
        await author.append("posts", name, limit=SHOWN_OF_A_USER)
        for follower in followers:
            await txn.object(user_key(follower)).append("inbox", name, limit=SHOWN_OF_A_USER)

    if not await is_known(store, post):
        return Response("unknown name or password\n", status=403)
    await store.run(publish_it, key=ctx.invocation_id)
    await store.object("timeline").append("posts", name, limit=SHOWN_TO_ALL, key=f"{ctx.invocation_id}-shown")
    return Response({"post": name}, status=201)


@function(book="retwis", http=["GET /retwis/users/{name}"])
async def profile(ctx: Context, name: str) -> Response:
    """A user as others see it."""
    user: dict[str, Any] | None = await Store(ctx).object(user_key(name)).get()
    if user is None:
        return Response("no such user\n", status=404)
    return Response({"name": name, "followers": len(user["followers"]), "following": len(user["following"])})


@function(book="retwis", http=["GET /retwis/timeline", "GET /retwis/users/{name}/{of}"])
async def posts(ctx: Context, shown: Shown | None = None) -> Response:
    """The newest posts: of all, of a user (`posts`), or of those whom a user follows (`inbox`). As of one moment."""
    shown = shown or Shown()
    if shown.of not in {"posts", "inbox"}:
        return Response("posts or inbox\n", status=404)
    async with Store(ctx).transaction() as txn:
        whose = user_key(shown.name) if shown.name else "timeline"
        names: list[str] = await txn.object(whose).get(shown.of, [])
        newest = names[: -SHOWN_POSTS - 1 : -1]
        await txn.prefetch(*newest)
        return Response({"posts": [await txn.object(one).get() for one in newest]})
