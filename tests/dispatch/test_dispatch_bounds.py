"""How many workers an engine runs, and starts at a time, whatever functions ask for."""

from __future__ import annotations

from boki.dispatch.orders import Budget
from tests.dispatch.fake_workers import DONE, Shell, info


def shell_with(functions: dict[str, dict[str, object]], **budget: int) -> Shell:
    """Modules of one function each, by name, with the function's options."""
    shell = Shell(Budget(**budget))
    for module, options in functions.items():
        shell.install(module, 1, info(f"{module}_fn", module, **options))
    return shell


def starting(shell: Shell) -> list[int]:
    return [worker.id for worker in shell.workers.values() if worker.state == "starting"]


def test_the_least_number_is_started_a_few_at_a_time() -> None:
    """Each worker that is ready lets the next one start, until all are there."""
    shell = shell_with({"m": {"min_workers": 20, "max_workers": 20}}, starting_workers=3)
    seen = 0
    while begun := starting(shell):
        assert len(begun) <= 3
        shell.hello(begun[0])
        seen += 1
    assert seen == len(shell.workers) == 20


def test_an_engine_runs_no_more_workers_than_its_cap() -> None:
    """However many modules ask for however many; it is said once, and calls wait instead."""
    many = {"min_workers": 200, "max_workers": 200}
    shell = shell_with(dict.fromkeys("abc", many), engine_workers=300, starting_workers=200)
    while begun := starting(shell):
        for worker in begun:
            shell.hello(worker)
    assert len(shell.workers) == 300
    for _ in range(3):
        shell.submit("c_fn")
    assert len(shell.workers) == 300


def test_a_pool_without_workers_gets_the_place_of_one_that_has_nothing_to_do() -> None:
    """At once if one is idle, else when a call ends; a least number of workers is left alone."""
    one_each = {"concurrency": 1, "max_workers": 1}
    shell = shell_with({"a": one_each, "b": one_each, "c": {**one_each, "min_workers": 1}}, engine_workers=2)
    (least,) = starting(shell)
    shell.hello(least)
    first = shell.submit("a_fn")
    (worker,) = starting(shell)
    shell.hello(worker)
    shell.begin(worker)
    waiting = shell.submit("b_fn")
    assert not starting(shell)
    assert [trace for trace in shell.traces if "2 worker processes run, the most of an engine" in trace]
    shell.end(worker, first)
    assert shell.workers[worker].state == "retired"
    shell.exit(worker)
    (successor,) = starting(shell)
    shell.hello(successor)
    shell.begin(successor)
    shell.end(successor, waiting)
    assert shell.outcomes[waiting] is DONE
    last = shell.submit("a_fn")
    assert shell.workers[successor].state == "retired", "it was idle, so it went at once"
    assert shell.workers[least].state == "ready"
    shell.exit(successor)
    (again,) = starting(shell)
    shell.hello(again)
    shell.begin(again)
    shell.end(again, last)
    assert shell.outcomes[last] is DONE


def test_a_full_engine_refuses_children_that_could_never_begin() -> None:
    """All workers wait for a child of their own pool, and the engine may not start another one."""
    shell = shell_with({"m": {"is_async": False, "max_workers": 4}}, engine_workers=1)
    parent = shell.submit("m_fn")
    (worker,) = starting(shell)
    shell.hello(worker)
    shell.begin(worker)
    request = shell.invoke(worker, parent, "m_fn")
    told = shell.told[request]
    assert told.failure is not None
    assert told.failure.code == "overloaded"
