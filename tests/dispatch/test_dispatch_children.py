"""Dispatch of calls that call: slots that are lent, extra workers, deadlines and ends that are handed down."""

from __future__ import annotations

from boki.dispatch.orders import Budget
from boki.log.limits import Limits
from tests.dispatch.fake_workers import DONE, info, ready_shell, run


def test_a_function_may_call_itself_as_deep_as_the_limit_in_one_slot() -> None:
    """An async call that waits gives its slot to its child; one level too deep is refused, and all return."""
    shell = ready_shell(info("f", concurrency=1, max_workers=1), limits=Limits(call_depth=3))
    worker, top = run(shell, "f")
    chain, requests = [top], []
    for _ in range(3):
        requests.append(shell.invoke(worker, chain[-1], "f"))
        chain.append(shell.begin(worker).ticket)
    too_deep = shell.invoke(worker, chain[-1], "f")
    assert shell.told[too_deep].failure.code == "call_too_deep"
    for ticket, request in zip(reversed(chain[1:]), reversed(requests), strict=True):
        shell.end(worker, ticket)
        assert shell.told[request] is DONE
    shell.end(worker, top)
    assert shell.outcomes[top] is DONE


def test_blocking_calls_that_wait_get_extra_workers_up_to_a_cap() -> None:
    """A blocking recursion runs in as many processes as it is deep; beyond the cap it is refused plainly."""
    shell = ready_shell(info("b", is_async=False, max_workers=1), budget=Budget(extra_workers=2))
    worker, ticket = run(shell, "b")
    chain = [(worker, ticket)]
    for _ in range(2):
        shell.invoke(*chain[-1], "b")
        worker = max(shell.workers)
        shell.hello(worker)
        chain.append((worker, shell.begin(worker).ticket))
    assert len(shell.workers) == 3
    request = shell.invoke(*chain[-1], "b")
    assert shell.told[request].failure.code == "overloaded"
    assert len(shell.workers) == 3
    for worker, ticket in reversed(chain):
        shell.end(worker, ticket)
    assert shell.outcomes[chain[0][1]] is DONE


def test_a_call_that_goes_on_waits_for_a_slot_before_new_calls() -> None:
    """A child's end does not make two calls run in one slot; the parent comes first when it is free."""
    shell = ready_shell(info("f", concurrency=1, max_workers=1), info("g"))
    worker, parent = run(shell, "f")
    request = shell.invoke(worker, parent, "g")
    child = shell.begin(worker).ticket
    guest = shell.submit("f")
    queued = shell.submit("f")
    assert guest in shell.workers[worker].calls
    shell.begin(worker)
    shell.end(worker, child)
    assert request not in shell.told
    shell.end(worker, guest)
    assert shell.told[request] is DONE
    assert queued not in shell.workers[worker].calls
    shell.end(worker, parent)
    assert queued in shell.workers[worker].calls


def test_a_child_has_its_parents_time_at_most() -> None:
    """Deadlines only shrink on the way down."""
    shell = ready_shell(info("f"), info("g"))
    worker, parent = run(shell, "f")
    shell.now_us += 4_000_000
    shell.invoke(worker, parent, "g", timeout_us=60_000_000)
    child = shell.begin(worker)
    assert child.call.timeout_us == 6_000_000


def test_children_of_a_call_that_is_over_are_cancelled() -> None:
    """Nobody waits for them: not after the parent's end, nor its cancellation, nor its worker's death."""
    for way in ("end", "cancel", "exit"):
        shell = ready_shell(info("f"))
        shell.install("n", 1, info("g", "n"))
        worker, parent = run(shell, "f")
        shell.invoke(worker, parent, "g")
        other = max(shell.workers)
        shell.hello(other)
        child = shell.begin(other)
        if way == "cancel":
            shell.cancel(parent)
        elif way == "end":
            shell.end(worker, parent)
        else:
            shell.exit(worker)
        assert child.cancelled, way


def test_a_child_call_of_a_call_that_is_over_is_refused() -> None:
    """A task that a function left behind does not wait forever."""
    shell = ready_shell(info("f"))
    worker, ticket = run(shell, "f")
    inside = shell.workers[worker].calls[ticket]
    shell.end(worker, ticket)
    shell.workers[worker].calls[ticket] = inside
    request = shell.invoke(worker, ticket, "f")
    assert shell.told[request].failure.code == "invalid_argument"


def test_calls_that_others_wait_for_come_first() -> None:
    """A queue full of calls that each need a child does not fill all workers with those who wait."""
    shell = ready_shell(info("b", is_async=False, max_workers=1), budget=Budget(extra_workers=1))
    worker, parent = run(shell, "b")
    others = [shell.submit("b") for _ in range(3)]
    request = shell.invoke(worker, parent, "b")
    extra = max(shell.workers)
    shell.hello(extra)
    child = shell.begin(extra)
    assert child.ticket not in others
    shell.end(extra, child.ticket)
    assert shell.told[request] is DONE
    shell.end(worker, parent)
    assert sum(other in process.calls for process in shell.workers.values() for other in others) == 1


def test_a_caller_that_may_run_a_call_again_is_told_when_its_children_are_gone() -> None:
    """A child that computes has a grace, however its parent ended and whether that still waited for it."""
    for way in ("end", "cancel", "exit"):
        for is_awaited in (True, False):
            shell = ready_shell(info("f"))
            shell.install("n", 1, info("g", "n", is_async=False))
            worker, parent = run(shell, "f", until_gone=True)
            request = shell.invoke(worker, parent, "g")
            other = max(shell.workers)
            shell.hello(other)
            shell.begin(other)
            if not is_awaited:
                shell.abandon(worker, parent, request)
            if way == "cancel":
                shell.cancel(parent)
            if way == "exit":
                shell.exit(worker)
            else:
                shell.end(worker, parent)
            shell.tick(0.4)
            assert parent not in shell.outcomes
            assert shell.workers[other].state == "ready"
            shell.tick(0.2)
            assert shell.workers[other].state == "killed"
            assert parent not in shell.outcomes
            shell.exit(other)
            assert parent in shell.outcomes, (way, is_awaited)
            assert shell.dispatch.is_empty


def test_children_that_compute_for_a_lost_parent_are_killed_after_a_grace() -> None:
    """Also where no caller may run it again: nobody waits for what they do."""
    shell = ready_shell(info("f"))
    shell.install("n", 1, info("g", "n", is_async=False))
    worker, parent = run(shell, "f")
    shell.invoke(worker, parent, "g")
    other = max(shell.workers)
    shell.hello(other)
    shell.begin(other)
    shell.exit(worker)
    assert parent in shell.outcomes
    shell.tick(0.6)
    assert shell.workers[other].state == "killed"
