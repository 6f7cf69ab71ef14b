"""A bank whose total never changes: accounts, transfers that happen once, and an audit at any moment of the past.

curl -d '{"accounts": 100, "each": 1000}' http://127.0.0.1:8080/bank
curl -H 'Idempotency-Key: t1' -d '{"source": 1, "target": 2, "amount": 30}' http://127.0.0.1:8080/bank/transfers
curl http://127.0.0.1:8080/bank
"""

from __future__ import annotations

from dataclasses import dataclass

from boki import Context, Response, TerminalError, function
from boki.libs.bokistore import Store, Transaction


@dataclass
class Opening:
    """How many accounts there are, and what is in each."""

    accounts: int = 100
    each: int = 1000


@dataclass
class Transfer:
    """Money to be moved."""

    source: int
    target: int
    amount: int


@dataclass
class Moment:
    """When to look; a seqnum of 0 is now."""

    at: int = 0


def account(number: int) -> str:
    """The object of an account."""
    return f"account:{number}"


@function(book="bank", http=["POST /bank"])
async def open_bank(ctx: Context, opening: Opening) -> Response:
    """Open the accounts, all or none, and once."""

    async def open_all(txn: Transaction) -> bool:
        if await txn.object("bank").exists():
            return False
        await txn.object("bank").set("", {"accounts": opening.accounts, "total": opening.accounts * opening.each})
        await txn.prefetch(*map(account, range(opening.accounts)))
        for number in range(opening.accounts):
            await txn.object(account(number)).set("balance", opening.each)
        return True

    made = await Store(ctx).run(open_all)
    return Response({"accounts": opening.accounts}, status=201 if made else 200)


@function(book="bank", http=["POST /bank/transfers"])
async def transfer(ctx: Context, order: Transfer) -> int:
    """Move money, once for each call, also if the call runs again; what is left at the source."""
    if order.amount <= 0 or order.source == order.target:
        raise TerminalError("a transfer moves a positive amount between two accounts")

    async def move(txn: Transaction) -> int:
        source, target = txn.object(account(order.source)), txn.object(account(order.target))
        await txn.prefetch(source.name, target.name)
        balance = await source.get("balance")
        if balance is None or not await target.exists():
            raise TerminalError("there is no such account")
        if balance < order.amount:
            raise TerminalError(f"account {order.source} has {balance}, not {order.amount}")
        await target.increment("balance", order.amount)
        left: int = await source.increment("balance", -order.amount)
        return left

    return await Store(ctx).run(move, key=ctx.invocation_id)


@function(book="bank", http=["GET /bank"])
async def audit(ctx: Context, moment: Moment | None = None) -> dict[str, int]:
    """The sum of all balances as of one moment: always what the bank was opened with."""
    store = Store(ctx)
    if moment is not None and moment.at:
        then = store.at(moment.at)
        count = await then.object("bank").get("accounts", 0)
        balances = [await then.object(account(number)).get("balance") for number in range(count)]
        return {"total": sum(balances), "expected": await then.object("bank").get("total", 0)}
    async with store.transaction() as txn:
        count = await txn.object("bank").get("accounts", 0)
        await txn.prefetch(*map(account, range(count)))
        balances = [await txn.object(account(number)).get("balance") for number in range(count)]
        return {"total": sum(balances), "expected": await txn.object("bank").get("total", 0)}
