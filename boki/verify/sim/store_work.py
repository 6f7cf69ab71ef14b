"""What processes do with objects: transactions over lists, transfers between accounts, increments, reads, old versions.

A `Worker` is what a process does, through all its incarnations: what it was told it remembers as if it had written it
down, so a transaction under a key that was not decided is made again. Each list is a field of an object, with a
neighbour, so that conflicts have a finer grain than objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

import msgspec

from boki.errors import BokiError
from boki.libs.bokistore import ConflictError, KeyExpired, Store, Transaction
from boki.libs.bokistore.memory import Memory
from boki.verify.histories.objects import Counted
from boki.verify.histories.txns import Op, Read, Told, Txn, Wrote
from boki.verify.sim.clockwork import Clockwork
from boki.verify.sim.processes import Process

BOOK: Final = "objects"
EFFECT: Final = "effect"
"""The tag of records of the application that commit with transactions."""
FIELDS: Final = ("a", "b")
OPENING: Final = 100
"""What each account has in the beginning."""
_RETRY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """What the objects of a run are, and how many transactions, transfers and increments each process makes."""

    lists: int
    accounts: int
    own_lists: list[str]
    """A list for each process, which it changes more often than others."""
    counters: list[str]
    quota: int
    pause_s: float
    forgetting: float
    """How often a process forgets what it knows of objects, before it does something: a probability."""
    guess_after: int
    """After this many changes in a row a process takes an object for its own."""
    save_records: int
    """After this many records of an object a process saves it."""
    history_s: float | None
    """How long the past stays readable."""

    @property
    def account_names(self) -> list[str]:
        """The objects that hold the money."""
        return [f"account-{number}" for number in range(self.accounts)]


class _Planned(msgspec.Struct, frozen=True):
    """What a transaction is to do: the lists to read, and elements to append to lists. `number`: when it was drawn."""

    number: int
    steps: list[tuple[str, str, int]]
    """Object, field, and the element to append; 0: read."""
    undone: int = 0
    """An element that is appended in a part that is undone; 0: none."""
    has_effect: bool = False
    is_fresh: bool = False
    is_given_up: bool = False
    """It ends without a commit for what it has seen, which must be so."""
    key: str | None = None

    @property
    def commits(self) -> bool:
        """Whether there is something to commit."""
        return self.has_effect or bool(self.writes)

    @property
    def writes(self) -> list[Op]:
        """What it is to append to lists."""
        return [Wrote(f"{name}.{part}", element) for name, part, element in self.steps if element]


@dataclass(slots=True)
class Ledger:
    """What all workers together were told: for the checkers."""

    txns: list[Txn] = field(default_factory=list)
    effects: dict[int, Told] = field(default_factory=dict)
    """Of transactions that commit a record with them, what was told."""
    counted: list[Counted] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    """What transactions have read that was never true together."""
    seen: list[tuple[str, int, Any]] = field(default_factory=list)
    """Objects as transactions have seen them: name, seqnum of the snapshot, value."""
    moments: int = 0
    transfers: int = 0
    """How many transactions over accounts were committed."""
    is_calm: bool = False
    """Nothing strikes any more, and nobody begins anything."""

    def moment(self) -> int:
        """The next moment on a clock that all processes share."""
        self.moments += 1
        return self.moments


class Worker:
    """Tasks for transactions over lists, for transfers, for increments and for reads."""

    def __init__(self, name: str, plan: Plan, ledger: Ledger, clock: Clockwork, rng: Random) -> None:
        self.name = name
        self._plan = plan
        self._ledger = ledger
        self._clock = clock
        self._rng = rng
        self._left = {"lists": plan.quota, "money": plan.quota, "counts": 2 * plan.quota, "reads": plan.quota}
        self._planned: _Planned | None = None
        """A transaction under a key that is not decided yet."""
        self._counting: tuple[str, Counted] | None = None
        """An increment under a key that is not decided yet."""
        self._has_opened = False
        self._active = 0
        """Number of things that the present incarnation is doing."""
        self.memory: Memory | None = None
        """What the present incarnation knows of objects."""
        self._process: Process | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it has something to do, or to bring to its end."""
        if self._planned is not None or self._counting is not None or self._active or not self._has_opened:
            return True
        return not self._ledger.is_calm and any(self._left.values())

    # Living

    async def run(self, process: Process) -> None:
        """One incarnation."""
        self._process = process
        self._active = 0
        book = process.logbook(BOOK)
        self.memory = book.session.shared(Memory)
        self.memory.draw = self._rng.randbytes
        store = Store(book)
        reader = self.memory.reader(BOOK)
        reader.save_after, reader.guess_after = self._plan.save_records, self._plan.guess_after
        await self._until_done(partial(self._open_accounts, store))
        works = {"lists": self._transact, "money": self._transfer, "counts": self._count, "reads": self._read}
        for what, work in works.items():
            task = self._ledger.moment()  # a name for the order of what it does
            process.loop.create_task(self._go_on(process, what, partial(work, store, task)))

    async def _go_on(self, process: Process, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """One thing after the other; what is refused has been noted by then."""
        is_pending = {"lists": lambda: self._planned is not None, "counts": lambda: self._counting is not None}
        try:
            while True:
                await asyncio.sleep(self._plan.pause_s * self._rng.random() * 2)
                if not is_pending.get(what, bool)():
                    if self._ledger.is_calm or not self._left[what]:
                        return
                    self._left[what] -= 1
                if self._rng.random() < self._plan.forgetting and self.memory is not None:
                    self.memory.forget()
                self._active += 1
                try:
                    await work()
                except BokiError as error:
                    self._clock.note(f"{self.name} is refused: {error.code}")
                self._active -= 1
        except Exception as error:  # noqa: BLE001 - a bug ends this task, and must not hide in it
            process.loop.raised.append(f"{self.name}: {error!r}")

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except BokiError as error:
                self._clock.note(f"{self.name} is refused: {error.code}")
                await asyncio.sleep(_RETRY_S * (1 + self._rng.random()))
            else:
                return

    async def _open_accounts(self, store: Store) -> None:
        """Whoever comes first gives each account its money, once."""
        with suppress(KeyExpired):  # it was done so long ago that nobody can tell what it was done to
            async with store.transaction(key="opening") as txn:
                for name in self._plan.account_names:
                    await txn.object(name).set("balance", OPENING)
        if self._plan.history_s is not None:
            await store.configure(history_s=self._plan.history_s)
        self._has_opened = True

    async def _linger(self) -> None:
        if not self._ledger.is_calm and self._rng.random() < 0.5:
            await asyncio.sleep(2 * self._plan.pause_s * self._rng.random())

    # Lists

    async def _transact(self, store: Store, task: int) -> None:
        if self._planned is None and self._rng.random() < 0.2:
            await self._append_alone(store, task)
            return
        planned = self._planned or self._draw_transaction()
        self._planned = planned if planned.key else None
        ops: list[Op] = []
        txn: Transaction | None = None
        process = self._process
        assert process is not None
        may_lose = planned.key is None and not self._ledger.is_calm and self._rng.random() < 0.2
        try:
            async with store.transaction(key=planned.key, fresh=planned.is_fresh) as txn:
                await self._carry_out(planned, store, txn, ops)
                if planned.is_given_up:
                    raise _GivenUpError
                process.loses_next_append = may_lose and planned.commits
        except _GivenUpError:
            self._note_given_up(planned, task, ops)
        except ConflictError as error:
            self._clock.sometimes("a transaction was in conflict with another one")
            self._clock.note(f"{self.name} is in conflict: {error}")
            if planned.key is None:
                self._note(planned, task, ops, "fail")
        except (BokiError, asyncio.CancelledError) as error:
            has_begun = txn is not None and txn.core.is_over
            is_certain = not has_begun or (isinstance(error, BokiError) and error.outcome == "not_applied")
            if planned.key is None:
                self._note(planned, task, ops, "fail" if is_certain else "info")
            elif isinstance(error, KeyExpired):  # it was committed so long ago that nobody can tell what it has read
                self._clock.sometimes("what an object was is too long ago")
                self._planned = None
                self._note(planned, task, planned.writes, "info")
            raise
        else:
            if may_lose and planned.commits and not process.loses_next_append:
                self._clock.sometimes("a commit whose answer was lost was found in the log")
            self._planned = None
            self._note(planned, task, ops, "ok", txn.seqnum)

    async def _carry_out(self, planned: _Planned, store: Store, txn: Transaction, ops: list[Op]) -> None:
        for name, part, element in planned.steps:
            await self._linger()
            if element:
                await txn.object(name).append(part, element)
                ops.append(Wrote(f"{name}.{part}", element))
            else:
                values = await txn.object(name).get(part, [])
                ops.append(Read(f"{name}.{part}", tuple(values)))
        if planned.undone:
            try:
                async with store.transaction() as part_of:
                    await part_of.object("list-0").append("a", planned.undone)
                    raise _UndoneError
            except _UndoneError:
                pass
        if planned.has_effect:
            txn.append(b"%d" % planned.number, tags=[EFFECT])

    def _draw_transaction(self) -> _Planned:
        rng = self._rng
        number = self._ledger.moment()
        if rng.random() < 0.3:
            return self._draw_owned(number)
        steps: list[tuple[str, str, int]] = []
        shape = rng.random()
        if shape < 0.4:  # what makes a skew of two: to look at one list, and write to another
            read, written = rng.sample(range(self._plan.lists), 2)
            steps = [(f"list-{read}", "a", 0), (f"list-{written}", "a", self._ledger.moment())]
        else:
            for _ in range(rng.choice((1, 2, 2, 3, 4))):
                writes = shape < 0.85 and rng.random() < 0.5
                name, part = self._draw_list()
                steps.append((name, part, self._ledger.moment() if writes else 0))
        planned = _Planned(number, steps, undone=self._ledger.moment() if rng.random() < 0.1 else 0)
        if not planned.writes and rng.random() < 0.7:
            return msgspec.structs.replace(planned, is_fresh=rng.random() < 0.5)
        key = f"{self.name}-{number}" if rng.random() < 0.3 else None
        has_effect = not planned.writes or rng.random() < 0.3
        return msgspec.structs.replace(planned, has_effect=has_effect, key=key)

    def _draw_owned(self, number: int) -> _Planned:
        """Over the list that this process takes for its own, or over that of another one, which is then wrong."""
        shape = self._rng.random()
        mine = own_list_of(self.name)
        if shape < 0.4:
            return _Planned(number, [(mine, "a", self._ledger.moment())])
        if shape < 0.8:  # what it sees after a change shows what was there before that
            return _Planned(number, [(mine, "a", self._ledger.moment()), (mine, "a", 0)], is_given_up=True)
        name, part = self._draw_list()
        other = self._rng.choice(self._plan.own_lists)
        return _Planned(number, [(other, "a", self._ledger.moment()), (name, part, self._ledger.moment())])

    async def _append_alone(self, store: Store, task: int) -> None:
        """An update outside of transactions is one, too."""
        name, part = self._draw_list()
        planned = _Planned(self._ledger.moment(), [(name, part, self._ledger.moment())])
        ops: list[Op] = [Wrote(f"{name}.{part}", planned.steps[0][2])]
        try:
            await store.object(name).append(part, planned.steps[0][2])
        except (BokiError, asyncio.CancelledError) as error:
            is_certain = isinstance(error, BokiError) and error.outcome == "not_applied"
            self._note(planned, task, ops, "fail" if is_certain else "info")
            raise
        self._note(planned, task, ops, "ok")

    def _draw_list(self) -> tuple[str, str]:
        return f"list-{self._rng.randrange(self._plan.lists)}", self._rng.choice(FIELDS)

    def _note(self, planned: _Planned, task: int, ops: list[Op], told: Told, seqnum: int = 0) -> None:
        """Transactions that only read, and are not fresh, may lag behind: nothing orders them after others but their
        own task.
        """
        asked = planned.number if planned.is_fresh or planned.commits else None
        self._ledger.txns.append(Txn(planned.number, tuple(ops), told, task, asked, self._ledger.moment()))
        if planned.undone:
            self._ledger.txns.append(Txn(self._ledger.moment(), (Wrote("list-0.a", planned.undone),), "fail"))
        if planned.has_effect:
            self._ledger.effects[planned.number] = told
        self._clock.note(f"{self.name} is told {told} of {planned.number} at {seqnum}: {ops}")

    def _note_given_up(self, planned: _Planned, task: int, ops: list[Op]) -> None:
        """What it has seen, without what it wrote, is a transaction that only reads."""
        [(_, _, own), _] = planned.steps
        [(key, values)] = [(op.key, op.values) for op in ops if isinstance(op, Read)]
        seen = Read(key, tuple(value for value in values if value != own))
        self._ledger.txns.append(Txn(planned.number, (seen,), "ok", task, None, self._ledger.moment()))
        self._ledger.txns.append(Txn(self._ledger.moment(), (Wrote(key, own),), "fail"))
        self._clock.sometimes("a transaction was given up for what it had seen")
        self._clock.note(f"{self.name} has given up {planned.number}: {ops}")

    # Money

    async def _transfer(self, store: Store, _task: int) -> None:
        names = self._plan.account_names
        self._rng.shuffle(names)
        async with store.transaction() as txn:
            balances: dict[str, int] = {}
            is_auditing = self._rng.random() < 0.5
            for name in names if is_auditing else names[:2]:
                await self._linger()
                balances[name] = await txn.object(name).get("balance", 0)
            if is_auditing and sum(balances.values()) != OPENING * len(names):
                self._ledger.torn.append(f"{self.name} has read {balances} as of {txn.snapshot}")
            if is_auditing and txn.snapshot is not None:
                self._ledger.seen += [(name, txn.snapshot, {"balance": balances[name]}) for name in names]
            amount = self._rng.randint(1, 40)
            payer, payee = names[:2]
            if balances[payer] >= amount and self._rng.random() < 0.8:
                await txn.object(payer).increment("balance", -amount)
                await txn.object(payee).increment("balance", amount)
        self._ledger.transfers += txn.seqnum > 0

    # Counts

    async def _count(self, store: Store, _task: int) -> None:
        """Mostly the counter of this process, which it may take itself for the only one to change; or any other."""
        if self._counting is None:
            is_own = self._rng.random() < 0.7
            name = counter_of(self.name) if is_own else self._rng.choice(self._plan.counters)
            row = Counted(name, self._ledger.moment())
            self._ledger.counted.append(row)
            if self._rng.random() < 0.3:
                self._counting = (f"{self.name}-count-{row.asked}", row)
        key, row = self._counting or (None, row)
        try:
            row.number = await store.object(row.counter).increment("n", key=key)
        except KeyExpired:  # it was counted, so long ago that nobody can tell what it came to
            self._counting = None
            return
        except BokiError as error:
            if key is None and error.outcome == "not_applied":
                row.told = "fail"
            raise
        self._counting = None
        row.told, row.told_at = "ok", self._ledger.moment()

    # Reads

    async def _read(self, store: Store, task: int) -> None:
        name, part = self._draw_list()
        planned = _Planned(self._ledger.moment(), [(name, part, 0)])
        values = await store.object(name).get(part, [])
        self._note(planned, task, [Read(f"{name}.{part}", tuple(values))], "ok")


def counter_of(name: str) -> str:
    """The counter that this process changes more often than others."""
    return f"counter-{name}"


def own_list_of(name: str) -> str:
    """The list that this process changes more often than others."""
    return f"list-of-{name}"


class _GivenUpError(Exception):
    """A transaction ends without a commit."""


class _UndoneError(Exception):
    """A part of a transaction is to be undone."""
