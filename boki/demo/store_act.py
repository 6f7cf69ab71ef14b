"""`boki demo store`: a bank and a small Twitter, with everything killed in the middle.

Transfers and posts are logged calls, so all of them are carried out, some more than once. Afterwards each account must
have what the transfers that are said to be done leave it, the total must be that of the beginning at every moment of
the past, and each post must stand in the timeline once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import msgspec

from boki.client import Client
from boki.launch.child import Child
from boki.libs.bokistore import Store

BANK: Final = "bank"
RETWIS: Final = "retwis"
ACCOUNTS: Final = 40
EACH: Final = 100
TRANSFERS: Final = 600
USERS: Final = 12
POSTS: Final = 90
MOMENTS: Final = 25
AT_ONCE: Final = 16
WAIT_S: Final = 300.0

Step = Callable[[str, int, int], None]


class Move(msgspec.Struct, frozen=True):
    """A transfer, as the function takes it."""

    source: int
    target: int
    amount: int


@dataclass(frozen=True, slots=True)
class Judged:
    """Its outcome."""

    done_count: int
    """Transfers that were carried out."""
    refused_count: int
    """Transfers that found too little in the account."""
    runs_again: int
    """Calls that were run more than once."""
    wrong_accounts: list[int]
    """Accounts that have something else than what the transfers leave them."""
    totals: list[int]
    """The sum of all accounts at moments of the past."""
    expected_total: int
    posts: Counter[str]
    """How often each text stands in the timeline."""
    expected_posts: int

    @property
    def matches(self) -> bool:
        """Whether nothing was lost, and nothing happened twice."""
        is_balanced = not self.wrong_accounts and set(self.totals) == {self.expected_total}
        return is_balanced and len(self.posts) == self.expected_posts and set(self.posts.values()) <= {1}


def moves_of(random: Random, count: int = TRANSFERS, accounts: int = ACCOUNTS) -> list[Move]:
    """Random transfers."""
    pairs = (random.sample(range(accounts), 2) for _ in range(count))
    return [Move(source, target, random.randint(1, EACH)) for source, target in pairs]


def balances_after(moves: Sequence[Move], done: Sequence[bool], accounts: int = ACCOUNTS) -> list[int]:
    """What the transfers that are done leave the accounts, in whatever order they came."""
    balances = [EACH] * accounts
    for move, is_done in zip(moves, done, strict=True):
        if is_done:
            balances[move.source] -= move.amount
            balances[move.target] += move.amount
    return balances


async def kill_in_the_middle(child: Child, random: Random, step: Step) -> Judged:
    """Begin transfers and posts, kill the system, start it again, wait for all of them, and judge."""
    moves = moves_of(random)
    await asyncio.to_thread(child.start)
    async with Client(child.url) as client:
        await client.invoke("open_bank", {"accounts": ACCOUNTS, "each": EACH})
        for number in range(USERS):
            await client.invoke("register", {"name": f"user{number}", "password": "demo"})
        calls = await _begin(client, moves, step)
    child.kill()
    await asyncio.to_thread(child.start)
    async with Client(child.url) as client:
        return await _judge(client, moves, calls, random, step)


async def _begin(client: Client, moves: Sequence[Move], step: Step) -> list[str]:
    """Log all transfers and posts, by several at once; the ids of the transfers, then of the posts."""
    wanted: list[tuple[str, Any]] = [("transfer", msgspec.to_builtins(move)) for move in moves]
    for number in range(POSTS):
        post = {"name": f"user{number % USERS}", "password": "demo", "text": f"post {number}"}
        wanted.append(("publish", post))
    ids: list[str] = [""] * len(wanted)
    numbers = iter(range(len(wanted)))

    async def some() -> None:
        for number in numbers:
            name, payload = wanted[number]
            ids[number] = await client.invoke_later(name, payload, key=f"demo-{number}")
            step("transfers and posts accepted", number + 1, len(wanted))

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return ids


async def _judge(client: Client, moves: Sequence[Move], calls: Sequence[str], random: Random, step: Step) -> Judged:
    states = []
    for number, call in enumerate(calls):
        states.append(await client.invocation(call, wait_s=WAIT_S))
        step("transfers and posts done after the kill", number + 1, len(calls))
    done = [state.state == "done" for state in states[: len(moves)]]
    bank = Store(client.logbook(BANK))
    expected = balances_after(moves, done)
    found = [await bank.object(f"account:{number}").get("balance") for number in range(ACCOUNTS)]
    seqnums = [version.seqnum for number in range(ACCOUNTS) async for version in bank.history(f"account:{number}")]
    first = await _opened_at(bank)
    totals = []
    for seqnum in random.sample(sorted({one for one in seqnums if one >= first}), MOMENTS):
        totals.append((await client.invoke("audit", {"at": seqnum}))["total"])
        step("moments of the past", len(totals), MOMENTS)
    timeline = Store(client.logbook(RETWIS))
    names = await timeline.object("timeline").get("posts", [])
    texts = Counter([await timeline.object(name).get("text") for name in names])
    return Judged(
        done_count=sum(done),
        refused_count=len(done) - sum(done),
        runs_again=sum(state.attempts > 1 for state in states),
        wrong_accounts=[number for number in range(ACCOUNTS) if found[number] != expected[number]],
        totals=totals,
        expected_total=ACCOUNTS * EACH,
        posts=texts,
        expected_posts=POSTS,
    )


async def _opened_at(bank: Store) -> int:
    """Where the accounts were opened."""
    async for version in bank.history("bank"):
        return version.seqnum
    return 0
