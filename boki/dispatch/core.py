"""Dispatch: every call gets a worker, in bounds, and ends exactly once, whatever happens to processes.

A call enters by `submit` (or `child_called`), waits in its pool's queue or is sent to a worker, and is answered by
exactly one `AnswerCall(ticket, outcome)`, or by `SendChild` if another call waits for it. It is in one of these places:

- in a queue: nothing has happened yet, so it can be refused, expire or move to another pool with outcome `not_applied`;
- in a worker that has not begun it: also nothing has happened. If that worker dies, the call runs elsewhere;
- in a worker that has begun it: it may have done anything. If that worker dies, the caller is told `unknown`.

Who has begun what is known although workers die without a word: they count begun calls in memory that outlives them
(`boki.worker.tally`). An overdue call is answered at its deadline and cancelled; if it is still there `GRACE_US`
later, its worker is killed, because a function that does not let itself be cancelled blocks the others in its process.

No worker is started for a pool whose last start failed until its back-off is over; its calls get the module's error.
Rule: this file knows workers as numbers. It never knows pids, sockets or files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from boki.dispatch import refusals
from boki.dispatch.catalog import Change, Withdraw
from boki.dispatch.fleet import NEVER, Fleet
from boki.dispatch.orders import (
    GRACE_US,
    AnswerCall,
    Budget,
    DispatchEffect,
    PoolStats,
    SendCall,
    SendCancel,
    SendChild,
)
from boki.dispatch.refusals import failed
from boki.dispatch.slots import BEGUN, LiveCall, Phase, Pool, PoolKey, State, Worker, blocks
from boki.errors import BokiError
from boki.log.limits import Limits
from boki.protocol.calls import Call, FunctionInfo, Outcome

_CALL_OVERHEAD_BYTES: Final = 1024


class Dispatch:
    """All calls of one engine. Tickets are the shell's numbers for calls, each used once."""

    def __init__(self, limits: Limits, budget: Budget | None = None) -> None:
        self._limits = limits
        self._budget = budget or Budget()
        self._fleet = Fleet(self._budget)
        self._routes: dict[str, tuple[FunctionInfo, Pool]] = {}
        self._live: dict[int, LiveCall] = {}
        self._broken: dict[str, str] = {}
        self._draining = False
        self._stopped = False

    @property
    def due_us(self) -> int:
        """When `tick` has something to do."""
        return self._fleet.due_us

    @property
    def is_empty(self) -> bool:
        """Whether no call is queued or in a worker."""
        return not self._live

    @property
    def call_count(self) -> int:
        """Calls that are queued or in a worker."""
        return len(self._live)

    def stats(self) -> list[PoolStats]:
        """Every pool, for status and metrics."""
        return self._fleet.stats()

    # what can be called

    def update(self, changes: Iterable[Change], now_us: int) -> list[DispatchEffect]:
        """From now on these modules' functions run in new versions; workers of older ones finish their calls and leave.

        Calls that no worker has yet go to the new version, also if that is of another module: what changes together
        is told together.
        """
        old = [pool for change in changes for pool in self._replace(change, now_us)]
        for pool in old:
            for live in reversed(pool.waiting()):
                self._drop(live)
                self._reroute(live, now_us)
            self._fleet.retire(pool, now_us)
        return self._take()

    def _replace(self, change: Change, now_us: int) -> list[Pool]:
        """Route calls to the module's new version, if it has one; the pools of the old ones."""
        module = change.module
        self._broken.pop(module, None)
        self._routes = {name: route for name, route in self._routes.items() if route[1].key.module != module}
        old = [pool for pool in self._fleet.pools.values() if pool.key.module == module and not pool.retired]
        if isinstance(change, Withdraw):
            if change.error:
                self._broken[module] = change.error
            return old
        kinds: dict[bool, dict[str, FunctionInfo]] = {}
        for info in change.functions:
            kinds.setdefault(info.is_async, {})[info.name] = info
        for is_async, named in kinds.items():
            key = PoolKey(module, is_async, change.version)
            pool = Pool(key, named, self._budget.waiting_per_worker, self._budget.extra_workers)
            self._fleet.pools[key] = pool
            self._routes |= {name: (info, pool) for name, info in named.items()}
            self._fill(pool, now_us)
        return old

    # calls

    def submit(
        self, ticket: int, call: Call, now_us: int, *, until_gone: bool = False, begun_by: int = 0
    ) -> list[DispatchEffect]:
        """Run the call. → `AnswerCall(ticket, outcome)`; with `until_gone` not before nothing of it is left.

        `begun_by`: the worker that has begun it by itself. If the call could not have been sent there, it is refused.
        """
        route = self._routes.get(call.function)
        if self._draining or (begun_by and (route is None or not route[1].may_begin(begun_by, call.function))):
            self._fleet.effects.append(AnswerCall(ticket, failed(refusals.stopping())))
        else:
            self._admit(ticket, call, None, 0, now_us, begun_by)
            live = self._live.get(ticket)
            if live is not None:
                live.until_gone = until_gone
        return self._take()

    def child_called(
        self, worker_id: int, parent: int, request: int, ticket: int, call: Call, now_us: int
    ) -> list[DispatchEffect]:
        """The call `parent` in this worker calls another one, and waits under its request id. → `SendChild`"""
        above = self._live.get(parent)
        if above is None or above.worker is None or above.worker.id != worker_id or above.answered:
            self._fleet.effects.append(SendChild(worker_id, request, failed(refusals.orphaned())))
            return self._take()
        if above.state is State.RUNNING:
            above.pool.free_slot(above, State.WAITING)
        elif above.state is State.RESUMING:
            self._go_on(above, State.WAITING)
        self._admit(ticket, call, above, request, now_us)
        self._fill(above.pool, now_us)
        return self._take()

    def child_abandoned(self, worker_id: int, parent: int, request: int, now_us: int) -> list[DispatchEffect]:
        """The call `parent` no longer waits for what it asked for under this request id."""
        above = self._live.get(parent)
        if above is None or above.worker is None or above.worker.id != worker_id:
            return []
        above.held = [told for told in above.held if told[0] != request]
        child = above.children.get(request)
        if child is not None:
            self._give_up(child)
            self._deliver(above, request, None)
            self._fill(child.pool, now_us)
            self._fill(above.pool, now_us)
        return self._take()

    def cancel(self, ticket: int, now_us: int) -> list[DispatchEffect]:
        """The caller has left; only a call `until_gone` is answered. Its time, and its children's, ends now. A try
        keeps its time: it was given up after milliseconds, and a body that computes for longer costs no worker.
        """
        live = self._live.get(ticket)
        if live is not None:
            if not live.call.is_tried:
                self._hurry(live, now_us)
            self._give_up(live)
            self._fill(live.pool, now_us)
        return self._take()

    def call_ended(self, worker_id: int, ticket: int, outcome: Outcome, now_us: int) -> list[DispatchEffect]:
        """The worker says how the call has ended."""
        live = self._live.get(ticket)
        if live is None or live.worker is None or live.worker.id != worker_id:
            return []
        worker, pool = live.worker, live.pool
        pool.failures = 0
        self._leave(live, now_us)
        self._answer(live, outcome)
        if not worker.calls:
            self._fleet.rest(worker, now_us)
        if pool.queued or pool.resuming:
            self._fill(pool, now_us)
        return self._take()

    # workers

    def worker_ready(self, worker_id: int, now_us: int) -> list[DispatchEffect]:
        """The worker has imported its module and takes calls."""
        worker = self._fleet.workers.get(worker_id)
        if worker is not None and worker.phase is Phase.STARTING:
            self._fleet.ready(worker, now_us)
            self._fill(worker.pool, now_us)
        return self._take()

    def worker_broken(self, worker_id: int, kind: str, reason: str) -> list[DispatchEffect]:
        """The worker cannot continue: it grew too large ("memory"), cannot load its module ("start"), or does not keep
        to the protocol ("protocol"). It is killed, and its callers are told: the worker process `reason`.
        """
        worker = self._fleet.workers.get(worker_id)
        if worker is not None:
            self._fleet.kill(worker, kind, reason)
        return self._take()

    def worker_progress(self, worker_id: int, begun: int, now_us: int) -> list[DispatchEffect]:
        """The worker has begun this many of the calls that it was sent."""
        worker = self._fleet.workers.get(worker_id)
        if worker is not None and self._fleet.progress(worker, begun, now_us):
            self._fill(worker.pool, now_us)
        return self._take()

    def worker_exited(
        self, worker_id: int, how: str, begun: int, now_us: int, *, is_innocent: bool = False
    ) -> list[DispatchEffect]:
        """The worker is gone, having begun this many of its calls, and all that it asked of the log is answered.

        `is_innocent`: whatever it ran, it would have ended, so that another is started at once.
        """
        worker = self._fleet.workers.get(worker_id)
        if worker is None:
            return []
        pool = worker.pool
        why = self._fleet.exited(worker, how, now_us, is_innocent=is_innocent)
        calls = list(worker.calls.values())
        for live in calls:
            self._leave(live, now_us)
        again = [live for live in calls if live.order >= begun and not live.answered]
        lost = [live for live in calls if live.order < begun]
        for live in lost:
            self._answer(live, failed(refusals.lost(live, why, len(lost))))
        for live in reversed(again):
            self._reroute(live, now_us)
        if calls:
            self._fleet.trace(refusals.worker_ended(pool.name, why, lost=len(lost), again=len(again)))
        for starved in self._fleet.take_starved():
            self._fill(starved, now_us)
        self._fill(pool, now_us)
        self._fleet.forget_empty(pool)
        return self._take()

    # time and the end

    def tick(self, now_us: int) -> list[DispatchEffect]:
        """Time has passed: what is overdue is given up, who is idle leaves, who failed to start is tried again."""
        if now_us < self._fleet.due_us:
            return []
        self._fleet.due_us = NEVER
        for live in list(self._live.values()):
            self._check(live, now_us)
        for worker in list(self._fleet.workers.values()):
            self._fleet.check(worker, now_us)
        for pool in self._fleet.pools.values():
            if now_us < pool.retry_us:
                self._fleet.due(pool.retry_us)
            self._fill(pool, now_us)
        return self._take()

    def drain(self) -> None:
        """Refuse new calls from now on; those that are present, and the calls that they make, continue."""
        self._draining = True

    def stop(self) -> list[DispatchEffect]:
        """Give up what is left: calls in queues are refused, all workers are killed."""
        self._draining = self._stopped = True
        for pool in self._fleet.pools.values():
            pool.retired = True
            for live in pool.waiting():
                self._drop(live)
                self._answer(live, failed(refusals.stopping()))
        for worker in self._fleet.workers.values():
            self._fleet.kill(worker, "stop", "was killed because the engine stopped")
        for pool in list(self._fleet.pools.values()):
            self._fleet.forget_empty(pool)
        return self._take()

    # a call's way in

    def _admit(
        self, ticket: int, call: Call, above: LiveCall | None, request: int, now_us: int, begun_by: int = 0
    ) -> None:
        route = self._routes.get(call.function)
        depth = call.depth if above is None else max(call.depth, above.depth + 1)
        size_bytes = len(call.payload.data) + _CALL_OVERHEAD_BYTES
        refusal: BokiError | None
        if route is None:
            refusal = refusals.unknown(call.function, self._broken)
        else:
            refusal = refusals.not_allowed(call, depth, self._limits) or refusals.over_budget(
                route[1], size_bytes, self._budget
            )
        if route is None or refusal is not None:
            assert refusal is not None
            if above is None:
                self._fleet.effects.append(AnswerCall(ticket, failed(refusal)))
            else:
                self._deliver(above, request, failed(refusal))
            return
        info, pool = route
        timeout_us = min(call.timeout_us, int(info.timeout_s * 1_000_000))
        if above is not None:
            timeout_us = min(timeout_us, above.deadline_us - now_us)
        live = LiveCall(ticket, call, info, pool, depth, size_bytes, timeout_us, now_us + timeout_us, above, request)
        if above is not None:
            above.children[request] = live
            live.top = above if above.until_gone else above.top
        self._keep(live)
        self._fleet.due(live.deadline_us)
        worker = pool.workers[begun_by] if begun_by else pool.pick(info.name)
        if worker is not None:
            self._send(live, worker, now_us, has_begun=bool(begun_by))
        else:
            pool.enqueue(live)
            self._scale(pool, now_us)

    def _send(self, live: LiveCall, worker: Worker, now_us: int, *, has_begun: bool = False) -> None:
        live.worker = worker
        live.order = BEGUN if has_begun else worker.sent
        live.sent_us = now_us
        worker.calls[live.ticket] = live
        live.pool.take_slot(live)
        if not has_begun:
            worker.sent += 1
            self._fleet.effects.append(SendCall(worker.id, live.ticket, live.as_sent(now_us)))

    def _reroute(self, live: LiveCall, now_us: int) -> None:
        """The call has left a worker that never began it, or the queue of an old version: it starts over."""
        route = self._routes.get(live.call.function)
        if route is None or self._stopped or (live.version and route[1] is not live.pool):
            self._answer(live, failed(refusals.left_over(live, self._broken, is_stopped=self._stopped)))
            return
        live.info, live.pool = route
        live.worker = None
        self._keep(live)
        live.pool.enqueue(live, first=True)
        self._fill(live.pool, now_us)

    # a call's way out

    def _answer(self, live: LiveCall, outcome: Outcome) -> None:
        """Answer the caller, unless that has been done."""
        if live.answered:
            return
        live.answered = True
        if live.until_gone:
            live.untold = outcome
            self._tell_gone(live)
        elif live.parent is None:
            self._fleet.effects.append(AnswerCall(live.ticket, outcome))
        else:
            self._deliver(live.parent, live.request, outcome)

    def _tell_gone(self, live: LiveCall) -> None:
        """Answer a call `until_gone` whose outcome is decided, if nothing of it is left."""
        if live.untold is not None and live.state is State.OVER and not live.below:
            self._fleet.effects.append(AnswerCall(live.ticket, live.untold))
            live.untold = None

    def _deliver(self, above: LiveCall, request: int, outcome: Outcome | None) -> None:
        """A child of the call is over; None if the call itself has given it up. The last one to end wakes it."""
        if above.state is State.OVER:
            return
        above.children.pop(request, None)
        if outcome is not None:
            above.held.append((request, outcome))
        if above.children or above.state is not State.WAITING:
            self._tell(above)
        elif above.worker is not None and above.pool.has_slot(above.worker, above.info.name):
            self._go_on(above, State.RUNNING)
        else:
            above.pool.await_slot(above)

    def _go_on(self, live: LiveCall, state: State) -> None:
        """The call has a slot again, or waits for another child; it is told what it has waited for."""
        live.pool.resuming.pop(live.ticket, None)
        if state is State.RUNNING:
            live.pool.take_slot(live)
        else:
            live.state = state
        self._tell(live)

    def _tell(self, live: LiveCall) -> None:
        assert live.worker is not None
        for request, outcome in live.held:
            self._fleet.effects.append(SendChild(live.worker.id, request, outcome))
        live.held.clear()

    def _give_up(self, live: LiveCall) -> None:
        """Abandon the call and those that it waits for. If a worker has it, it ends when that says so."""
        for child in list(live.children.values()):
            self._give_up(child)
        if live.answered:
            return
        live.answered = True
        if live.until_gone:
            live.untold = failed(refusals.given_up(live))
        if live.state is State.QUEUED:
            self._drop(live)
        elif live.worker is not None and live.state is not State.OVER:
            self._fleet.effects.append(SendCancel(live.worker.id, live.ticket))

    def _hurry(self, live: LiveCall, now_us: int) -> None:
        """The call is cancelled: its worker may take no longer to end it than after a deadline."""
        live.deadline_us = min(live.deadline_us, now_us)
        self._fleet.due(now_us + GRACE_US)
        for child in live.children.values():
            self._hurry(child, now_us)

    def _drop(self, live: LiveCall) -> None:
        """Out of the queue."""
        live.pool.dequeue(live)
        self._forget(live)

    def _leave(self, live: LiveCall, now_us: int) -> None:
        """Out of its worker. What it still waits for is given up, and its time ends now."""
        assert live.worker is not None
        del live.worker.calls[live.ticket]
        if live.state is State.RUNNING:
            live.pool.free_slot(live, State.OVER)
        elif live.state is State.RESUMING:
            del live.pool.resuming[live.ticket]
        for child in (*live.children.values(), *live.below.values()):
            self._hurry(child, now_us)
            self._give_up(child)
        live.children.clear()
        self._forget(live)

    def _keep(self, live: LiveCall) -> None:
        self._live[live.ticket] = live
        live.pool.held_bytes += live.size_bytes
        if live.top is not None:
            live.top.below[live.ticket] = live

    def _forget(self, live: LiveCall) -> None:
        live.state = State.OVER
        live.pool.held_bytes -= live.size_bytes
        del self._live[live.ticket]
        self._tell_gone(live)
        if live.top is not None:
            del live.top.below[live.ticket]
            self._tell_gone(live.top)

    # slots and time

    def _fill(self, pool: Pool, now_us: int) -> None:
        """Use the slots that are free: first for calls that continue, then for calls that wait for a worker."""
        while pool.resuming and (resumed := pool.next_resumable()) is not None:
            self._go_on(resumed, State.RUNNING)
        while pool.queued and (found := pool.next_placeable()) is not None:
            pool.dequeue(found[0])
            self._send(*found, now_us)
        if pool.queued or pool.least:
            self._scale(pool, now_us)

    def _scale(self, pool: Pool, now_us: int) -> None:
        """Start the workers that are missing; calls that no worker will ever take are refused."""
        self._fleet.start_missing(pool, now_us)
        if not pool.queued:
            return
        if pool.is_hopeless(now_us):
            for live in pool.waiting():
                self._drop(live)
                self._answer(live, failed(refusals.cannot_start(pool)))
        elif pool.is_choked(may_grow=self._fleet.has_room):
            for live in [live for live in pool.waiting() if live.parent is not None]:
                self._drop(live)
                self._answer(live, failed(refusals.choked(pool)))

    def _check(self, live: LiveCall, now_us: int) -> None:
        """Give up a call whose time is over: at once in a queue; in a worker it is told, and after a grace killed."""
        if live.state is State.OVER:
            return  # given up with its parent in this very tick
        worker = live.worker
        if now_us < live.deadline_us:
            self._fleet.due(live.deadline_us)
        elif worker is None:
            self._drop(live)
            self._answer(live, failed(refusals.expired(live)))
        elif not live.answered:
            for child in list(live.children.values()):
                self._give_up(child)
            self._fleet.effects.append(SendCancel(worker.id, live.ticket))
            self._answer(live, failed(refusals.overdue(live)))
            self._fleet.due(live.deadline_us + GRACE_US)
        elif now_us < live.deadline_us + GRACE_US:
            self._fleet.due(live.deadline_us + GRACE_US)
        else:
            self._fleet.due(now_us + GRACE_US)
            if blocks(live, worker, now_us):
                self._fleet.kill(worker, "deadline", refusals.did_not_end(live))

    def _take(self) -> list[DispatchEffect]:
        effects, self._fleet.effects = self._fleet.effects, []
        return effects
