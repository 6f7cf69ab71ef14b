"""Dispatch of tries that workers have begun on their own: calls like those that they were sent."""

from __future__ import annotations

from tests.dispatch.fake_workers import DONE, failure, info, ready_shell, run


def test_a_try_that_its_worker_has_begun_is_a_call_in_it() -> None:
    """It is not sent, it holds a slot, and its end is told once nothing of it is left."""
    shell = ready_shell(info("f", concurrency=2, max_workers=1))
    worker, caller = run(shell, "f")
    tried = shell.begin_try(worker, "f")
    queued = shell.submit("f")
    assert list(shell.workers[worker].calls) == [caller, tried], "there is no slot left"
    shell.end(worker, tried)
    assert shell.outcomes[tried] is DONE
    assert list(shell.workers[worker].calls) == [caller, queued]


def test_a_try_that_could_not_have_been_sent_to_its_worker_is_refused() -> None:
    """Without a slot; in a worker of the version before; of another module; or while the engine stops."""
    shell = ready_shell(info("f", concurrency=1, max_workers=1))
    shell.install("n", 1, info("g", "n"))
    worker, caller = run(shell, "f")
    assert failure(shell, shell.begin_try(worker, "f"))[1] == "not_applied"
    assert failure(shell, shell.begin_try(worker, "g"))[1] == "not_applied"
    assert failure(shell, shell.begin_try(worker, "nothing"))[1] == "not_applied"
    other, _ = run(shell, "g")
    shell.install("n", 2, info("g", "n"))
    assert failure(shell, shell.begin_try(other, "g"))[1] == "not_applied"
    shell.end(worker, caller)
    assert shell.begin_try(worker, "f") not in shell.outcomes
    shell.dispatch.drain()
    assert failure(shell, shell.begin_try(worker, "f"))[1] == "not_applied"


def test_a_try_that_computes_without_an_end_costs_its_worker_when_its_time_is_over() -> None:
    """Also if it was given up long before, and its caller may run for longer: others in the worker are blocked."""
    shell = ready_shell(info("f", timeout_s=5), info("caller", timeout_s=600))
    worker, caller = run(shell, "caller", timeout_us=600_000_000)
    tried = shell.begin_try(worker, "f", timeout_us=600_000_000)
    shell.cancel(tried)
    shell.tick(4.9)
    shell.tick(0.4)
    assert shell.workers[worker].state == "ready"
    shell.tick(0.3)
    assert shell.workers[worker].state == "killed"
    shell.exit(worker)
    assert failure(shell, caller) == ("call_lost", "unknown")
    assert shell.dispatch.is_empty


def test_a_try_is_lost_with_its_worker() -> None:
    """It had begun, so it is not sent to another one."""
    shell = ready_shell(info("f"))
    worker, caller = run(shell, "f")
    tried = shell.begin_try(worker, "f")
    shell.exit(worker)
    assert failure(shell, tried) == failure(shell, caller) == ("call_lost", "unknown")
    assert shell.dispatch.is_empty
