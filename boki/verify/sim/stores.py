"""BokiStore in the simulator: the library as users have it, in processes that die, over simulated engines.

Promised are: transactions are serializable, strictly where they write; what a transaction reads was true together, also
if it aborts; an acknowledged increment counts once; records of the application stand where their transaction does; and
every view, in any process and as of any seqnum, is the fold of the log, whatever caches there were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from boki.errors import Trimmed
from boki.libs.bokistore import Store
from boki.libs.bokistore.json_values import encode
from boki.libs.bokistore.memory import Memory
from boki.libs.bokistore.records import Checkpoint, checkpoints_tag, codec, row_tag
from boki.libs.bokistore.views import View, step, view_of
from boki.libs.fold import steps
from boki.libs.fold.steps import ReadPage, Steps
from boki.log.record import Record
from boki.verify.histories.facts import Violation
from boki.verify.histories.lists import find_anomalies
from boki.verify.histories.objects import find_torn_commits, find_wrong_counts
from boki.verify.histories.txns import Read, Txn, Wrote
from boki.verify.sim.processes import Process
from boki.verify.sim.store_work import BOOK, EFFECT, FIELDS, OPENING, Ledger, Plan, Worker, counter_of, own_list_of
from boki.verify.sim.users import Users

if TYPE_CHECKING:
    from boki.verify.sim.nodes import World

_SHOWN: Final = 5
_SAVED_OFTEN: Final = 6
_SAVED_AT_ONCE: Final = 2
"""Records of an object after which it is saved."""


class StoreClients:
    """The processes that use the objects of a run, if it has any."""

    def __init__(self, world: World) -> None:
        options = world.options
        rng = Random(f"{options.seed}:stores")
        self._clock = world.clock
        names = [f"shop-{number + 1}" for number in range(options.stores)]
        self._plan = _draw_plan(rng, names, options.store_work)
        self._ledger = Ledger()
        self._rows: dict[str, dict[int, View]] = {}
        """Of each object its views by the seqnum of the record that made them, folded again from the log alone."""
        self._found: dict[str, Any] = {}
        """Each object as a process sees it that has just begun."""
        self._effects: list[int] = []
        self._wrong_past: list[str] = []
        self._until = 0
        """All is judged as of this seqnum."""
        self.workers: list[Worker] = []
        self.users = Users(world, rng, crashes=options.store_crashes, trouble=options.store_trouble)
        for name in names:
            worker = Worker(name, self._plan, self._ledger, self._clock, Random(f"{options.seed}:stores:{name}"))
            self.workers.append(worker)
            self.users.add(name, worker.run)

    def calm(self) -> None:
        """Everything is healed: what is under way is brought to its end, and then everything is read."""
        self._ledger.is_calm = True
        if not self.workers:
            self.users.has_read_ends = True
            return
        self.users.calm()
        self.users.read_ends("bookkeeper", self._audit)

    @property
    def is_over(self) -> bool:
        """Whether all is decided and has been read."""
        return self.users.has_read_ends

    async def _audit(self, process: Process) -> bool:
        """Read everything, once nothing is under way; whether that was done."""
        if any(worker.is_busy for worker in self.workers):
            return False
        await self._read_all(process)
        return True

    async def _read_all(self, process: Process) -> None:
        book = process.logbook(BOOK)
        tail = await book.check_tail(fresh=True)
        self._until = 0 if tail is None else tail.seqnum
        names = [f"list-{number}" for number in range(self._plan.lists)] + self._plan.own_lists
        names += self._plan.account_names
        names += self._plan.counters
        store, memory = Store(book), book.session.shared(Memory)
        memory.draw = Random("bookkeeper").randbytes
        for name in names:
            self._found[name] = await store.at(self._until).object(name).get()
            self._rows[name] = await steps.run(fold(name, self._until), book)
        effects = await steps.run(steps.read_all(EFFECT, stop=self._until + 1), book)
        self._effects = [int(record.data) for record in effects]
        memory.forget()
        before_all = [(name, 1, None) for name in names]
        for name, seqnum, value in [*self._ledger.seen, *before_all]:
            try:
                found = await store.at(seqnum).object(name).get()
            except Trimmed:
                self._clock.sometimes("what an object was is too long ago")
                continue
            if encode(found) != encode(value):
                self._wrong_past.append(f"{name} was read as {value} as of {seqnum}, where it is {found} later")

    @property
    def transactions(self) -> int:
        """How many transactions were committed and are judged: those over lists, and transfers of money."""
        return sum(txn.told == "ok" for txn in self._ledger.txns) + self._ledger.transfers

    def end(self) -> None:
        """All processes end here, and none begins."""
        self.users.end()

    # Judging

    def check(self) -> list[Violation]:
        """What was told, and what is found in the end."""
        if not self.workers:
            return []
        torn = [Violation("transactions see one moment", text) for text in self._ledger.torn[:_SHOWN]]
        if not self.is_over:
            late = [worker.name for worker in self.workers if worker.is_busy]
            return [Violation("liveness", f"a minute after everything was healed {late} still use objects"), *torn]
        judges = {
            "transactions are serializable": self._find_anomalies(),
            "increments count once": find_wrong_counts(self._ledger.counted, self._counters()),
            "records commit with their transaction": self._find_torn_commits(),
            "money is neither made nor lost": self._find_wrong_sums(),
            "views are folds of the log": self._find_wrong_views(),
        }
        return torn + [Violation(promise, text) for promise, found in judges.items() for text in list(found)[:_SHOWN]]

    def _lists(self) -> dict[str, list[int]]:
        """All lists in the end."""
        return {
            f"{name}.{part}": list((self._found[name] or {}).get(part, ()))
            for name in self._found
            if name.startswith("list-")
            for part in FIELDS
        }

    def _counters(self) -> dict[str, int]:
        return {name: (self._found[name] or {}).get("n", 0) for name in self._plan.counters}

    def _find_anomalies(self) -> Iterator[str]:
        now = self._ledger.moment()
        last = Txn(now, tuple(Read(key, tuple(values)) for key, values in self._lists().items()), "ok", None, now, now)
        for anomaly in find_anomalies([*self._ledger.txns, last]):
            yield f"{anomaly.name}: {anomaly.text}"

    def _find_torn_commits(self) -> Iterator[str]:
        seen = {element for values in self._lists().values() for element in values}
        told = self._ledger.effects
        writes = {txn.number: {op.value for op in txn.ops if isinstance(op, Wrote)} for txn in self._ledger.txns}
        visible = {number: bool(writes[number] & seen) for number in told if writes.get(number)}
        committed = {number for number, what in told.items() if what == "ok"}
        aborted = {number for number, what in told.items() if what == "fail"}
        return find_torn_commits(self._effects, committed, aborted, visible)

    def _find_wrong_sums(self) -> Iterator[str]:
        balances = {name: (self._found[name] or {}).get("balance") for name in self._plan.account_names}
        if sum(balance or 0 for balance in balances.values()) != OPENING * len(balances):
            yield f"the accounts hold {balances} in the end"

    def _find_wrong_views(self) -> Iterator[str]:
        """Objects, as any process knows them, that differ from what their records make of them."""
        yield from self._wrong_past
        for name, views in self._rows.items():
            value = views[max(views)].value
            if encode(_shown(value)) != encode(self._found[name]):
                yield f"{name} is {self._found[name]}, and its records make it {_shown(value)}"
        for worker in self.workers:
            if worker.memory is not None:
                yield from self._find_wrong_memories(worker.name, worker.memory)

    def _find_wrong_memories(self, worker: str, memory: Memory) -> Iterator[str]:
        rows = memory.reader(BOOK).rows
        for name, views in self._rows.items():
            row = rows.find(name)
            for view in row.views if row is not None else ():
                if view.last > self._until:
                    continue  # of one that died, whose last transaction was still on its way
                if view.last < min(views):
                    continue  # trimmed
                true = views.get(view.last)
                if true is None or (true.version, encode(_shown(true.value))) != (
                    view.version,
                    encode(_shown(view.value)),
                ):
                    yield f"{worker} knows {name} at {view.last} as {view}, which is {true}"


def fold(name: str, until: int) -> Steps[dict[int, View]]:
    """Views of an object by the seqnum of the record that made them: of all its records, or, where trims have taken
    some away, of those after the first checkpoint that is left. Processes save and trim objects beside this: then it
    begins again.
    """
    while True:
        views = yield from _fold_what_is_left(name, until)
        if views is not None:
            return views


def _fold_what_is_left(name: str, until: int) -> Steps[dict[int, View] | None]:
    """As `fold`; None if a trim has taken away records that this was about to read."""
    page = yield from steps.page(ReadPage(row_tag(name), limit=1))
    view = View()
    if page.first_seqnum:
        saved = yield from steps.read_all(checkpoints_tag(name))
        views_left = [found for record in saved if (found := _saved_view(record)) is not None]
        # a process may have died between the trim of the row and that of the checkpoints
        view = next(found for found in views_left if found.last >= page.first_seqnum)
    views = {view.last: view}
    start = view.last + 1
    while True:
        page = yield from steps.page(ReadPage(row_tag(name), start, until + 1))
        if page.first_seqnum > start:
            return None
        for record in page.records:
            view, _, _ = step(view, name, record)
            views[record.seqnum] = view
        if page.is_end:
            return views
        start = page.next_start


def _saved_view(record: Record) -> View | None:
    found = codec.own(record.data)
    return view_of(found) if isinstance(found, Checkpoint) else None


def _shown(value: Any) -> Any:
    return value if isinstance(value, (dict, list)) else None


def _draw_plan(rng: Random, names: list[str], work: int) -> Plan:
    plan = Plan(
        lists=rng.choice((2, 2, 3)),
        accounts=rng.choice((2, 3, 4)),
        own_lists=[own_list_of(name) for name in names],
        counters=[counter_of(name) for name in names],
        quota=work * rng.choice((12, 18, 24)),
        pause_s=rng.choice((0.02, 0.06, 0.15)) / work,
        forgetting=rng.choice((0.0, 0.1)),
        save_records=rng.choice((_SAVED_OFTEN, 15, 256)),
        history_s=rng.choice((None, None, 0.0, 1.0)),
        guess_after=rng.choice((1, 1, 4)),
    )
    if plan.history_s == 0.0 and plan.save_records == _SAVED_OFTEN:  # few objects see more updates: nothing is trimmed
        return replace(plan, save_records=_SAVED_AT_ONCE)
    return plan
