"""`boki bench flow`: workflows of 10 steps, from the start to the first step, after a crash, and asleep.

What is compared is measured in turns, a round of each: with `--peers` the same workflow on Restate and DBOS, and always
the single append beside the workflow whose steps have no effects.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from boki.bench.flow_apps import apps
from boki.bench.flow_peers import FLOW_PEERS, FLOW_PEERS_IF_INSTALLED
from boki.bench.flow_sleepers import engine_bytes, fall_asleep, lateness
from boki.bench.http_load import Post, generator_name, post_load
from boki.bench.load_functions.flow_load import STEPS, FlowLoad, Many
from boki.bench.load_functions.load import Load
from boki.bench.rows import Round, Row, measured, median, rate
from boki.bench.system import Options, Target, target
from boki.bench.turns import Run, Step, in_turns, left_out, ratio, row_of, wanted_peers
from boki.client import BlockingClient
from boki.launch.child import Child
from boki.protocol.calls import MAX_CALLS_PAGE

CALLERS: Final = (1, 64)
_APPENDED_BYTES: Final = 100
_STARTS: Final = 100
INTERRUPTED: Final = 1_000
_SETTLE_S: Final = 1.0


def flow(options: Options, step: Step) -> Iterator[Row]:
    """Workflows with effects (with the peers in turns) and without, starts, a crash, and sleep."""
    if options.with_apps:
        yield from apps(options, step)
        return
    peers = wanted_peers(options, FLOW_PEERS, FLOW_PEERS_IF_INSTALLED)
    yield from left_out(options, "flow-steps", FLOW_PEERS_IF_INSTALLED)
    with contextlib.ExitStack() as stack:
        system = stack.enter_context(target(options))
        others = {peer.name: stack.enter_context(peer.running(options.folder)) for peer in peers}
        for callers in options.inflight or CALLERS:
            runs = {
                "flow-steps": partial(_run, system, "effects", options, callers),
                "flow-steps-http": partial(_over_http, system, options, callers),
                **{name: partial(run, callers, options.duration_s, STEPS) for name, run in others.items()},
            }
            yield from _effects(options, step, callers, runs)
        yield _pure(options, step, system)
        yield _starts(options, step, system)
        if system.child is not None:
            yield _recovery(options, step, system.child)
    if not options.url:
        with target(options) as system:
            yield _sleep(options, step, system.client)


def _effects(options: Options, step: Step, callers: int, runs: Mapping[str, Run]) -> Iterator[Row]:
    rounds = in_turns(options, step, f"workflows of {STEPS} steps, {callers} callers", runs)
    for name, found in rounds.items():
        if name.startswith("flow-"):
            yield row_of(options, name, callers, found, {"generator": generator_name()} if "http" in name else {})
        else:
            yield row_of(options, "flow-steps", callers, found, _against(name, rounds), system=name)


def _against(name: str, rounds: Mapping[str, list[Round]]) -> dict[str, Any]:
    """Boki's rate and p50 as multiples of a peer's. Restate is called over HTTP, DBOS runs in its caller's process."""
    ours = rounds["flow-steps-http" if name == "Restate" else "flow-steps"]
    return {
        "rate_of_boki": ratio(ours, rounds[name], rate),
        "p50_of_boki": ratio(ours, rounds[name], lambda one: one.p50_ms or 0.0),
        "generator": generator_name() if name == "Restate" else "asyncio",
    }


def _pure(options: Options, step: Step, system: Target) -> Row:
    runs: dict[str, Run] = {
        "flow-pure-steps": partial(_run, system, "pure_steps", options, 1),
        "append": partial(system.run, "append_load", Load(1, _APPENDED_BYTES, options.duration_s), Round),
        "group": partial(system.run, "group_load", FlowLoad(duration_s=options.duration_s), Round),
        "no steps": partial(system.run, "flow_load", FlowLoad(True, 1, options.duration_s, steps=0), Round),
    }
    rounds = in_turns(options, step, f"workflows of {STEPS} steps without effects", runs)
    details = {
        "append_p50_ms": median([one.p50_ms for one in rounds["append"]]),
        "group_p50_ms": median([one.p50_ms for one in rounds["group"]]),
        "no_steps_p50_ms": median([one.p50_ms for one in rounds["no steps"]]),
        "p50_of_an_append": ratio(rounds["flow-pure-steps"], rounds["append"], lambda one: one.p50_ms or 0.0),
    }
    return row_of(options, "flow-pure-steps", 1, rounds["flow-pure-steps"], details)


def _starts(options: Options, step: Step, system: Target) -> Row:
    rounds = []
    for number in range(options.rounds + 1):
        step(f"from the start of a workflow to its first step, {f'round {number}' if number else 'warming up'}")
        found: list[float] = system.run("first_steps", _STARTS, list[float])
        rounds.append(measured(found, 0, sum(found)))
    return row_of(options, "flow-first-step", 1, rounds[1:], {})


def _recovery(options: Options, step: Step, child: Child) -> Row:
    """Kill the system while workflows are in the middle of a step, and start it again."""
    rounds = []
    details: dict[str, Any] = {}
    for number in range(options.rounds):
        step(f"{INTERRUPTED:,} workflows that are interrupted, round {number + 1}")
        with tempfile.NamedTemporaryFile(prefix="boki-bench-") as marker:
            many = Many(f"round {number}:", INTERRUPTED, marker.name)
            with BlockingClient(child.url) as client:
                client.invoke("start_held", many, timeout_s=600)
                running = _until_running(client)
            child.kill()
        before = time.perf_counter()
        child.start(timeout_s=120)
        with BlockingClient(child.url) as client:
            ready_s = time.perf_counter() - before
            ended: int = client.invoke("end_held", many, result_type=int, timeout_s=600)
        elapsed_s = time.perf_counter() - before
        rounds.append(Round(ended, many.count - ended, elapsed_s, None, None))
        details = {"in_a_step": running, "restart_s": round(ready_s, 3)}
    details["recovered_s"] = median([one.elapsed_s for one in rounds])
    return row_of(options, "flow-recovery", INTERRUPTED, rounds, details)


def _until_running(client: BlockingClient) -> int:
    """Wait until no more of them begin to run: how many do. Their engine runs a bounded number at a time."""
    count = -1
    while True:
        found = len(client.calls(function="held", states=("running",), limit=MAX_CALLS_PAGE).calls)
        if found == count:
            return found
        count = found
        time.sleep(_SETTLE_S)


def _sleep(options: Options, step: Step, client: BlockingClient) -> Row:
    """Workflows that sleep until tomorrow: the memory of their engine, and how late a timer among them is."""
    count = options.sleeper_count
    client.invoke("alarms", 1, result_type=list[float])  # its worker has started, and is not measured
    before_bytes = engine_bytes(client)
    one = fall_asleep(client, step, "sleeper:", count)
    grown_bytes = engine_bytes(client) - before_bytes
    step("timers among them")
    late_s = lateness(client)
    details = {
        "workflows": count,
        "asleep_per_s": round(count / one.elapsed_s, 1),
        "engine_bytes_per_workflow": round(grown_bytes / count, 1),
        "engine_mib": round(grown_bytes / 2**20, 1),
        "latest_ms": round(max(late_s) * 1e3, 3),
    }
    fields = measured(late_s, 0, sum(late_s))
    return row_of(options, "flow-asleep", count, [fields], details)


def _run(system: Target, name: str, options: Options, callers: int) -> Round:
    one: Round = system.run("flow_load", FlowLoad(name == "pure_steps", callers, options.duration_s), Round)
    return one


def _over_http(system: Target, options: Options, callers: int) -> Round:
    post = Post(f"{system.url}/function/effects", str(STEPS), f"{os.urandom(8).hex()}:")
    return asyncio.run(post_load(post, callers=callers, duration_s=options.duration_s, token=system.token))
