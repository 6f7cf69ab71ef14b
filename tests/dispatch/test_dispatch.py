"""Dispatch, one decision at a time: who is started, sent, told, cancelled and killed."""

from __future__ import annotations

import pytest

from boki.dispatch.orders import Budget
from boki.dispatch.slots import NEXT, Phase, Pool, PoolKey
from boki.log.limits import Limits
from boki.protocol.calls import MAX_WORKERS, MEMORY_BYTES, ChosenId
from tests.dispatch.fake_workers import DONE, Shell, failure, info, message, only, ready_shell, run


def test_every_phase_of_a_worker_can_be_reached() -> None:
    """The life cycle has no phase that nothing leads to, and an end that every phase leads to."""
    assert {Phase.STARTING, *NEXT.values()} == set(Phase)
    assert {phase for (phase, _), after in NEXT.items() if after is Phase.GONE} == set(Phase) - {Phase.GONE}


def test_a_call_without_worker_starts_one_and_is_sent_when_it_is_ready() -> None:
    """From zero: the call waits for the start, and its result goes to the caller."""
    shell = ready_shell(info("f"))
    assert not shell.workers
    ticket = shell.submit("f")
    worker = only(shell)
    assert not shell.workers[worker].calls
    shell.hello(worker)
    assert list(shell.workers[worker].calls) == [ticket]
    shell.begin(worker)
    shell.end(worker, ticket)
    assert shell.outcomes[ticket] is DONE
    assert shell.dispatch.is_empty


def test_a_call_is_told_its_book_and_what_is_left_of_its_time() -> None:
    """The book is the function's default, else its name; the time is the call's, at most the function's."""
    shell = ready_shell(info("f", timeout_s=5), info("g", book="ledger"))
    first, second = shell.submit("f", timeout_us=60_000_000), shell.submit("g", timeout_us=3_000_000)
    shell.now_us += 1_000_000
    shell.hello(only(shell))
    calls = shell.workers[only(shell)].calls
    assert (calls[first].call.book, calls[first].call.timeout_us) == ("f", 4_000_000)
    assert (calls[second].call.book, calls[second].call.timeout_us) == ("ledger", 2_000_000)


def test_a_logged_call_is_told_the_id_that_was_chosen_and_its_runs() -> None:
    """A workflow is known by its id, and paused when it loses its worker again and again."""
    shell = ready_shell(info("f"))
    chosen = ChosenId("start", name="trip-1")
    ticket = shell.submit("f", chosen=chosen, run=3, attempt=2)
    shell.hello(only(shell))
    call = shell.workers[only(shell)].calls[ticket].call
    assert (call.chosen, call.run, call.attempt) == (chosen, 3, 2)


def test_the_smallest_bound_that_is_set_holds_for_the_whole_pool() -> None:
    """Neither a larger one nor another function's silence lifts it; the default holds only if nobody says anything."""
    key = PoolKey("m", True, 1)
    functions = [
        info("f", max_workers=9, memory_bytes=1 << 25),
        info("g"),
        info("h", max_workers=2, memory_bytes=1 << 31),
    ]
    pool = Pool(key, {function.name: function for function in functions}, 0, 0)
    assert (pool.most, pool.memory_bytes) == (2, 1 << 25)
    unset = Pool(key, {"g": info("g")}, 0, 0)
    assert (unset.most, unset.memory_bytes) == (MAX_WORKERS, MEMORY_BYTES)
    assert Pool(key, {"g": info("g", min_workers=7), "h": info("h", max_workers=2)}, 0, 0).most == 7


def test_calls_go_to_the_least_busy_worker_and_wait_in_order() -> None:
    """Slots bound what runs at once in a process; what is over waits first in, first out."""
    shell = ready_shell(info("f", concurrency=2, max_workers=2))
    tickets = [shell.submit("f") for _ in range(6)]
    assert len(shell.workers) == 2
    first, second = shell.workers
    shell.hello(first)
    shell.hello(second)
    assert list(shell.workers[first].calls) == tickets[:2]
    assert list(shell.workers[second].calls) == tickets[2:4]
    shell.begin(second)
    shell.end(second, tickets[2])
    assert list(shell.workers[second].calls) == [tickets[3], tickets[4]]


def test_one_function_does_not_take_the_slots_of_another() -> None:
    """Concurrency is counted per function, also in the queue."""
    shell = ready_shell(info("slow", concurrency=1, max_workers=1), info("quick", concurrency=1, max_workers=1))
    run(shell, "slow")
    shell.submit("slow")
    quick = shell.submit("quick")
    assert quick in shell.workers[only(shell)].calls


def test_idle_workers_leave_down_to_the_least() -> None:
    """After `idle_us` without a call only `min_workers` remain; a busy one stays."""
    shell = ready_shell(
        info("f", concurrency=1, min_workers=1, max_workers=3), budget=Budget(idle_us=10_000_000, start_us=100_000_000)
    )
    assert len(shell.workers) == 1
    for _ in range(3):
        run(shell, "f")
    for worker in list(shell.workers.values()):
        shell.end(worker.id, next(iter(worker.calls)))
    run(shell, "f")
    shell.tick(9.9)
    assert {worker.state for worker in shell.workers.values()} == {"ready"}
    shell.tick(0.2)
    assert sorted(worker.state for worker in shell.workers.values()) == ["ready", "retired", "retired"]


def test_a_worker_that_does_not_leave_is_killed() -> None:
    """Told to go, a process has two seconds."""
    shell = ready_shell(info("f"), budget=Budget(idle_us=1_000_000))
    worker, ticket = run(shell, "f")
    shell.end(worker, ticket)
    shell.tick(1.5)
    assert shell.workers[worker].state == "retired"
    shell.tick(2.5)
    assert shell.workers[worker].state == "killed"
    shell.exit(worker)
    assert not shell.workers


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    """What waits is bounded by number and by bytes; a refusal has not been applied."""
    shell = ready_shell(info("f", max_workers=1, concurrency=1), budget=Budget(queued_calls=2, held_bytes=10_000))
    shell.submit("f")
    shell.submit("f")
    refused = shell.submit("f")
    assert failure(shell, refused) == ("overloaded", "not_applied")
    assert shell.outcomes[refused].failure.details["retry_after_s"] > 0
    assert "max_workers" in message(shell, refused)
    shell = ready_shell(info("f"), budget=Budget(held_bytes=10_000))
    shell.submit("f", data=b"x" * 8000)
    assert failure(shell, shell.submit("f", data=b"x" * 8000)) == ("overloaded", "not_applied")


def test_a_call_that_waits_past_its_deadline_was_not_applied() -> None:
    """In the queue nothing has happened."""
    shell = ready_shell(info("f"))
    ticket = shell.submit("f", timeout_us=200_000)
    shell.tick(0.1)
    assert not shell.outcomes
    shell.tick(0.1)
    assert failure(shell, ticket) == ("deadline_exceeded", "not_applied")
    shell.hello(only(shell))
    assert not shell.workers[only(shell)].calls


def test_an_overdue_call_is_answered_at_once_and_its_worker_killed_after_a_grace() -> None:
    """The caller does not wait for a function that does not let itself be cancelled."""
    shell = ready_shell(info("f"))
    worker, ticket = run(shell, "f")
    shell.tick(10)
    assert failure(shell, ticket) == ("deadline_exceeded", "unknown")
    assert shell.workers[worker].calls[ticket].cancelled
    shell.tick(0.4)
    assert shell.workers[worker].state == "ready"
    shell.tick(0.2)
    assert shell.workers[worker].state == "killed"
    assert shell.dispatch.stats()[0].kills == {"deadline": 1}


def test_a_caller_that_may_run_a_call_again_is_told_when_the_function_runs_no_more() -> None:
    """Past its deadline it is cancelled as any other; the outcome comes when it has left its worker, or that has."""
    for ends in (True, False):
        shell = ready_shell(info("f"))
        worker = run(shell, "f")[0]
        shell.end(worker, only_ticket(shell, worker))
        ticket = shell.submit("f", until_gone=True)
        shell.begin(worker)
        shell.tick(10)
        assert shell.workers[worker].calls[ticket].cancelled
        assert ticket not in shell.outcomes
        if ends:
            shell.end(worker, ticket)
        else:
            shell.tick(0.6)
            shell.exit(worker, "was killed by signal 9 (SIGKILL)")
        assert failure(shell, ticket) == ("deadline_exceeded", "unknown")


def test_a_cancelled_call_that_may_run_again_is_told_when_its_function_runs_no_more() -> None:
    """At once in a queue; in a worker when it has ended there, or its worker has."""
    for ends in (True, False):
        shell = ready_shell(info("f"))
        queued = shell.submit("f", until_gone=True)
        shell.cancel(queued)
        assert failure(shell, queued) == ("call_cancelled", "unknown")
        worker, ticket = run(shell, "f", until_gone=True)
        shell.cancel(ticket)
        shell.cancel(ticket)
        assert ticket not in shell.outcomes
        if ends:
            shell.end(worker, ticket)
        else:
            shell.exit(worker)
        assert failure(shell, ticket) == ("call_cancelled", "unknown")
        assert shell.dispatch.is_empty


def test_a_cancelled_call_that_does_not_end_costs_its_worker_after_a_grace() -> None:
    """As if its deadline had come."""
    shell = ready_shell(info("f", timeout_s=1_000), info("g", timeout_s=1_000))
    worker, ticket = run(shell, "f")
    shell.cancel(ticket)
    assert shell.workers[worker].calls[ticket].cancelled
    shell.tick(0.4)
    assert shell.workers[worker].state == "ready"
    shell.tick(0.2)
    assert shell.workers[worker].state == "killed"


def test_a_try_that_is_given_up_costs_no_worker_before_its_own_deadline() -> None:
    """A body that computes for a second is given up after milliseconds, and its worker has other calls."""
    shell = ready_shell(info("f", timeout_s=10))
    worker, ticket = run(shell, "f", is_tried=True)
    shell.cancel(ticket)
    assert shell.workers[worker].calls[ticket].cancelled
    shell.tick(9)
    assert shell.workers[worker].state == "ready"
    shell.tick(1.6)
    assert shell.workers[worker].state == "killed"


def only_ticket(shell: Shell, worker: int) -> int:
    (ticket,) = shell.workers[worker].calls
    return ticket


def test_a_call_that_ends_within_the_grace_spares_its_worker() -> None:
    """A cancelled call that ends gives its slot back, and nobody is told twice."""
    shell = ready_shell(info("f"))
    worker, ticket = run(shell, "f")
    shell.tick(10)
    shell.end(worker, ticket)
    shell.tick(5)
    assert shell.workers[worker].state == "ready"
    assert shell.dispatch.is_empty


def test_calls_beside_a_killed_one_are_told_or_run_again() -> None:
    """Of the neighbours, who had begun is lost, and who had not runs elsewhere as if nothing had happened."""
    shell = ready_shell(info("f"))
    worker, blocker = run(shell, "f")
    shell.tick(1)
    beside = shell.submit("f")
    shell.begin(worker)
    shell.tick(8.5)
    unbegun = shell.submit("f")
    assert unbegun in shell.workers[worker].calls
    shell.tick(0.5)
    shell.tick(0.6)
    shell.exit(worker, "was killed by signal 9 (SIGKILL)")
    assert failure(shell, blocker) == ("deadline_exceeded", "unknown")
    assert failure(shell, beside) == ("call_lost", "unknown")
    assert "past its deadline" in message(shell, beside)
    again = only(shell)
    shell.hello(again)
    assert list(shell.workers[again].calls) == [unbegun]


def test_an_overdue_call_that_never_began_does_not_cost_others_their_worker() -> None:
    """What stands behind a blocking call is not what blocks."""
    shell = ready_shell(info("f"))
    worker, _ = run(shell, "f")
    behind = shell.submit("f", timeout_us=300_000)
    shell.tick(0.3)
    assert failure(shell, behind) == ("deadline_exceeded", "unknown")
    shell.tick(1)
    shell.tick(1)
    assert shell.workers[worker].state == "ready"


def test_a_worker_that_begins_nothing_is_killed_when_a_call_is_overdue() -> None:
    """If no call is to blame, the process itself hangs."""
    shell = ready_shell(info("f"))
    shell.submit("f", timeout_us=300_000)
    shell.hello(only(shell))
    shell.tick(0.3)
    shell.tick(0.6)
    assert shell.workers[only(shell)].state == "killed"


def test_a_worker_that_does_not_begin_gets_no_more_until_it_does() -> None:
    """A blocked process does not collect calls; another one is started for them."""
    shell = ready_shell(info("f"))
    blocked, _ = run(shell, "f")
    shell.submit("f")
    shell.tick(0.6)
    ticket = shell.submit("f")
    assert ticket not in shell.workers[blocked].calls
    assert len(shell.workers) == 2
    shell.begin(blocked)
    shell.tick(0.1)
    assert ticket in shell.workers[blocked].calls


def test_a_crash_says_how_many_calls_had_begun() -> None:
    """Of several only one may be to blame: whoever counts failures must know."""
    shell = ready_shell(info("f"))
    worker, begun = run(shell, "f")
    beside = shell.submit("f")
    shell.begin(worker)
    shell.submit("f")
    shell.exit(worker, "exited with status 3")
    for ticket in (begun, beside):
        lost = shell.outcomes[ticket].failure
        assert lost is not None
        assert lost.details["calls"] == 2


def test_a_crash_loses_what_had_begun_and_says_what_is_known() -> None:
    """The caller learns that the call may have run in part, and how the process ended."""
    shell = ready_shell(info("f"))
    worker, begun = run(shell, "f")
    unbegun = shell.submit("f")
    shell.exit(worker, "exited with status 3")
    assert failure(shell, begun) == ("call_lost", "unknown")
    assert "exited with status 3" in message(shell, begun)
    (told,) = shell.traces  # found.md, A12
    assert told == (
        "a worker process of module 'm' exited with status 3: 1 call was cut off (call_lost), 1 call that it had not "
        "begun goes to another worker"
    )
    assert unbegun in shell.waiting
    shell.hello(only(shell))
    assert unbegun in shell.workers[only(shell)].calls


def test_a_worker_that_grows_too_large_is_killed_and_replaced() -> None:
    """The figure reaches the callers; the queue continues in a new process."""
    shell = ready_shell(info("f", concurrency=1, max_workers=1))
    worker, ticket = run(shell, "f")
    waiting = shell.submit("f")
    shell.perform(shell.dispatch.worker_broken(worker, "memory", "used 2,000 bytes, over its limit, and was killed"))
    assert shell.workers[worker].state == "killed"
    shell.exit(worker)
    assert "2,000 bytes" in message(shell, ticket)
    shell.hello(only(shell))
    assert waiting in shell.workers[only(shell)].calls
    assert shell.dispatch.stats()[0].kills == {"memory": 1}


def test_a_module_that_fails_to_start_answers_with_its_error_and_backs_off() -> None:
    """No call hangs on a broken module, no start is tried before its time, and a good start ends the matter."""
    shell = ready_shell(info("f"))
    ticket = shell.submit("f")
    worker = only(shell)
    shell.perform(shell.dispatch.worker_broken(worker, "start", "met ImportError: no such thing (m.py, line 1)"))
    shell.exit(worker)
    assert failure(shell, ticket) == ("unavailable", "not_applied")
    assert "m.py, line 1" in message(shell, ticket)
    assert not shell.workers
    assert failure(shell, shell.submit("f")) == ("unavailable", "not_applied")
    assert not shell.workers
    shell.tick(0.2)
    ticket = shell.submit("f")
    shell.hello(only(shell))
    assert ticket in shell.workers[only(shell)].calls


def test_failed_starts_in_a_row_wait_longer_each_time() -> None:
    """The back-off doubles up to ten seconds, also if a least number of workers is wanted."""
    shell = ready_shell(info("f", min_workers=1))
    waits = []
    for _ in range(10):
        shell.exit(only(shell))
        waited = 0.0
        while not shell.workers:
            shell.tick(0.1)
            waited += 0.1
        waits.append(waited)
    assert waits[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert waits[-1] == pytest.approx(10)


def test_workers_that_end_before_their_first_call_back_off_too() -> None:
    """A module that ends its processes by itself is not forked over and over; a call that ends is the sign that it
    works.
    """
    shell = ready_shell(info("f", min_workers=1))
    for wait_s in (0.1, 0.2, 0.4):
        shell.hello(only(shell))
        shell.exit(only(shell))
        shell.tick(wait_s - 0.01)
        assert not shell.workers
        shell.tick(0.01)
        assert len(shell.workers) == 1
    worker, ticket = run(shell, "f")
    shell.end(worker, ticket)
    shell.exit(worker)
    assert len(shell.workers) == 1


def test_calls_that_may_not_be_made_are_refused_by_name() -> None:
    """Too deep, too large, or too late: nothing is begun, and the message names the limit."""
    shell = ready_shell(info("f"), limits=Limits(call_depth=3, request_bytes=1000, record_bytes=10, page_bytes=10))
    assert failure(shell, shell.submit("f", depth=4)) == ("call_too_deep", "not_applied")
    assert failure(shell, shell.submit("f", data=b"x" * 1001)) == ("too_large", "not_applied")
    assert failure(shell, shell.submit("f", timeout_us=0)) == ("deadline_exceeded", "not_applied")
    assert not shell.workers


def test_a_start_that_hangs_is_killed() -> None:
    """Importing may take `start_us` and no longer."""
    shell = ready_shell(info("f"), budget=Budget(start_us=2_000_000))
    ticket = shell.submit("f")
    shell.tick(2)
    worker = only(shell)
    assert shell.workers[worker].state == "killed"
    shell.exit(worker)
    assert "importing within 2 s" in message(shell, ticket)


def test_a_new_version_takes_new_calls_while_the_old_one_finishes() -> None:
    """Nothing that runs is disturbed, nothing that waits runs old code, and old workers leave."""
    shell = ready_shell(info("f", concurrency=1, max_workers=1))
    old, running = run(shell, "f")
    waiting = shell.submit("f")
    shell.install("m", 2, info("f", concurrency=1, max_workers=1))
    assert len(shell.workers) == 2
    new = max(shell.workers)
    assert shell.workers[new].pool.version == 2
    shell.hello(new)
    assert list(shell.workers[new].calls) == [waiting]
    shell.end(old, running)
    assert shell.outcomes[running] is DONE
    assert shell.workers[old].state == "retired"
    shell.exit(old)
    assert [pool.version for pool in shell.dispatch.stats()] == [2]


def test_workers_of_an_old_version_that_are_idle_or_starting_go_at_once() -> None:
    """A reload leaves no process behind that nobody will use."""
    shell = ready_shell(info("f", concurrency=1, max_workers=2))
    idle, ticket = run(shell, "f")
    shell.end(idle, ticket)
    run(shell, "f")
    shell.submit("f")
    starting = max(shell.workers)
    shell.install("m", 2, info("f"))
    assert shell.workers[starting].state == "killed"
    shell.exit(starting)
    assert not any("cannot be loaded" in text for text in shell.traces)


def test_unknown_functions_name_the_modules_that_cannot_be_loaded() -> None:
    """Whoever calls a function of a broken module learns why it is not there."""
    shell = ready_shell(info("f"))
    assert failure(shell, shell.submit("g")) == ("no_such_function", "not_applied")
    waiting = shell.submit("f")
    shell.withdraw("m", "m.py, line 3: SyntaxError")
    assert "m.py, line 3: SyntaxError" in message(shell, waiting)
    assert failure(shell, shell.submit("f")) == ("no_such_function", "not_applied")


def test_a_cancelled_call_leaves_the_queue_or_is_told_so() -> None:
    """The caller went away: what waits does not run, what runs is asked to end."""
    shell = ready_shell(info("f", concurrency=1, max_workers=1))
    worker, running = run(shell, "f")
    queued = shell.submit("f")
    shell.cancel(queued)
    shell.cancel(running)
    assert shell.workers[worker].calls[running].cancelled
    shell.end(worker, running)
    assert not shell.workers[worker].calls
    assert not shell.outcomes


def test_draining_refuses_new_calls_but_lets_running_ones_call() -> None:
    """What was accepted ends as it would have."""
    shell = ready_shell(info("f"))
    worker, parent = run(shell, "f")
    shell.dispatch.drain()
    assert failure(shell, shell.submit("f")) == ("unavailable", "not_applied")
    request = shell.invoke(worker, parent, "f")
    shell.end(worker, shell.begin(worker).ticket)
    assert shell.told[request] is DONE


def test_a_pool_in_trouble_is_no_other_pools_trouble() -> None:
    """A module whose workers all hang or fail does not take workers, slots or queue room from another."""
    shell = ready_shell(info("f", concurrency=1, max_workers=1), budget=Budget(queued_calls=1))
    shell.install("n", 1, info("g", "n"))
    run(shell, "f")
    shell.submit("f")
    assert failure(shell, shell.submit("f"))[0] == "overloaded"
    worker, ticket = run(shell, "g")
    shell.end(worker, ticket)
    assert shell.outcomes[ticket] is DONE
