"""Books that become forks after a look at them."""

from __future__ import annotations

from itertools import count

import pytest

import boki.testing
from boki.libs.bokistore import Store, saving
from boki.libs.bokistore.json_values import MISSING
from boki.libs.bokistore.queries import WHOLE, ValueAt
from boki.libs.bokistore.requests import Requests
from boki.libs.fold.steps import Step, Steps, drive
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokistore.interleaving import Process, logbook


def alone(read: Step) -> Steps[object]:
    return (yield read)


@asynchronous
async def test_a_book_that_was_looked_at_can_become_a_fork() -> None:
    """What was not there is there from then on, for all kinds of reads and updates of the process that has looked."""
    async with boki.testing.context() as ctx:
        store, trial = Store(ctx), Store(ctx.logbook_named("trial"))
        for name in "abcd":
            await store.object(name).set("n", 40)
            assert await trial.object(name).get() is None
        async with trial.transaction() as txn:
            await txn.prefetch("a", "b", "c")
        await store.fork("trial")
        assert await trial.object("a").increment("n") == 41
        async with trial.transaction() as txn:
            await txn.prefetch("a", "b", "c")
            assert [await txn.object(name).get("n") for name in "abc"] == [41, 40, 40]
            assert await txn.object("c").increment("n") == 41
        async with trial.transaction() as txn:
            assert await txn.object("d").increment("n") == 41
        assert await trial.object("none").get() is None


@pytest.mark.parametrize("moment", range(4))
def test_a_fork_that_is_made_between_two_reads_is_seen_whole(moment: int) -> None:
    """By a transaction of a process that has looked at the book before: both objects are there, or neither."""
    book, names = logbook(), ("a", "b")
    process = Process(book.session.logbook("trial"))
    for name in names:
        Process(book).run(Requests(Process(book).direct, name, None).set("n", 40, None))
        process.run(process.direct.look(name, WHOLE))
    reads = count()

    def carry_out(read: Step) -> object:
        if isinstance(read, tuple):
            return [carry_out(each) for each in read]
        if next(reads) == moment:
            Process(book).run(saving.fork("book", "trial", 0))
        return process.run(alone(read))

    for _ in range(2):
        txn = process.begin()
        drive(txn.prefetch(names), carry_out)
        seen = drive(txn.look_all([(name, ValueAt(("n",))) for name in names]), carry_out)
        assert seen in ([MISSING, MISSING], [40, 40])
    assert process.run(txn.look_all([(name, ValueAt(("n",))) for name in names])) == seen
    assert process.run(process.begin().look("b", ValueAt(("n",)))) == 40
