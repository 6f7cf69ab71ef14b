"""Dispatch under random events: no order of calls, crashes, reloads and time loses a call or ends one twice."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from boki.dispatch.orders import Budget
from boki.protocol.calls import PINNED, ChosenId
from tests.dispatch.fake_workers import FakeWorker, Inside, Shell, info

FUNCTIONS = {
    "m": (
        info("wide", "m", concurrency=3, max_workers=2, timeout_s=8),
        info("narrow", "m", concurrency=1, max_workers=1),
        info("block", "m", is_async=False, max_workers=2),
    ),
    "n": (info("other", "n", concurrency=1, max_workers=1, min_workers=1),),
}
NAMES = ["wide", "narrow", "block", "other"]
BUDGET = Budget(
    queued_calls=6, waiting_per_worker=2, extra_workers=2, idle_us=2_000_000, start_us=4_000_000, engine_workers=5
)

# How often each event happens: calls must get deep into workers before something is broken.
EVENTS = {
    "submit": 12,
    "try": 3,
    "hello": 12,
    "begin": 14,
    "invoke": 8,
    "end": 8,
    "time": 4,
    "crash": 2,
    "abandon": 2,
    "cancel": 1,
    "break": 0.5,
    "reload": 1,
    "withdraw": 0.2,
    "minute": 0.3,
}
STEPS = 250


class Story:
    """Does one event after the other, each to something that it is possible for."""

    def __init__(self) -> None:
        self.shell = Shell(BUDGET)
        self.version = 0
        self.versions = dict.fromkeys(FUNCTIONS, 0)
        self.pinned: dict[int, tuple[str, int]] = {}
        """Calls that are pinned, and the module and its version that they are for."""
        for module, functions in FUNCTIONS.items():
            self.shell.install(module, 0, *functions)

    def tell(self, random: Random) -> None:
        events = random.choices(list(EVENTS), list(EVENTS.values()), k=STEPS)
        for event in events:
            self.step(event, random.randrange(1 << 16), random.choice(NAMES))

    def step(self, event: str, pick: int, name: str) -> None:
        shell = self.shell
        match event:
            case "submit":
                times_us = (400_000, 3_000_000, 60_000_000)
                chosen = ChosenId("start", attributes={PINNED: 1}) if pick % 5 == 0 else None
                ticket = shell.submit(name, timeout_us=times_us[pick % 3], until_gone=pick % 2 == 0, chosen=chosen)
                if chosen is not None:
                    module = "n" if name == "other" else "m"
                    self.pinned[ticket] = module, self.versions[module]
            case "try":
                if workers := self.workers("ready"):
                    shell.begin_try(workers[pick % len(workers)].id, name, timeout_us=3_000_000)
            case "hello":
                for worker in self.workers("starting", "killed"):
                    shell.hello(worker.id)
            case "begin":
                for worker in self.workers("ready")[pick % 3 :]:
                    shell.begin(worker.id)
            case "invoke":
                self.invoke(pick, name)
            case "abandon" if shell.requests:
                (worker_id, request), parent = list(shell.requests.items())[pick % len(shell.requests)]
                shell.abandon(worker_id, parent, request)
            case "end":
                if begun := self.begun():
                    worker, inside = begun[pick % len(begun)]
                    shell.end(worker.id, inside.ticket)
            case "crash":
                if workers := self.workers("starting", "ready", "killed", "retired"):
                    shell.exit(workers[pick % len(workers)].id)
            case "break":
                if workers := self.workers("starting", "ready", "retired"):
                    broken = workers[pick % len(workers)].id
                    shell.perform(shell.dispatch.worker_broken(broken, "memory", "was too large"))
            case "cancel" if shell.waiting:
                shell.cancel(sorted(shell.waiting)[pick % len(shell.waiting)])
            case "reload" | "withdraw":
                module = "mn"[pick % 2]
                self.version += 1
                self.versions[module] = self.version
                functions = FUNCTIONS[module] if event == "reload" else ()
                shell.install(module, self.version, *functions)
            case "time":
                shell.tick((0.05, 0.3, 0.6)[pick % 3])
            case "minute":
                shell.tick(60)
        self.check_counts()

    def invoke(self, pick: int, name: str) -> None:
        begun = [(w, inside) for w, inside in self.begun() if not inside.cancelled or pick % 16 == 0]
        if begun:
            worker, inside = begun[pick % len(begun)]
            if worker.pool.is_async or not inside.children:  # a blocking call waits for one child at a time
                self.shell.invoke(worker.id, inside.ticket, name)

    def workers(self, *states: str) -> list[FakeWorker]:
        return [worker for worker in self.shell.workers.values() if worker.state in states]

    def begun(self) -> list[tuple[FakeWorker, Inside]]:
        return [(w, inside) for w in self.workers("ready") for inside in w.calls.values() if inside.begun]

    def check_counts(self) -> None:
        for worker in self.shell.workers.values():
            for ticket in self.pinned.keys() & worker.calls.keys():
                assert self.pinned[ticket] == (worker.pool.module, worker.pool.version)
        stats = self.shell.dispatch.stats()
        assert sum(pool.running + pool.waiting for pool in stats) == sum(
            len(worker.calls) for worker in self.shell.workers.values()
        )

    def heal(self) -> None:
        """From now on processes do what they should: then everything ends, and every caller has been told."""
        shell = self.shell
        for module, functions in FUNCTIONS.items():
            shell.install(module, self.version + 1, *functions)
        for _ in range(100):
            if shell.dispatch.is_empty:
                break
            for worker in self.workers("killed", "retired"):
                shell.exit(worker.id)
            for worker in self.workers("starting"):
                shell.hello(worker.id)
            for worker in self.workers("ready"):
                while shell.begin(worker.id):
                    pass
                for inside in list(worker.calls.values()):
                    if (
                        worker.state == "ready"
                        and inside.ticket in worker.calls
                        and (inside.cancelled or not inside.children)
                    ):
                        shell.end(worker.id, inside.ticket)
            shell.tick(0.05)
        assert shell.dispatch.is_empty
        assert not shell.waiting
        assert not any(worker.calls for worker in shell.workers.values())

    def stop(self) -> None:
        """Nothing is left behind: no process, no slot, no byte, no version but the last."""
        shell = self.shell
        shell.perform(shell.dispatch.stop())
        for worker in list(shell.workers):
            shell.exit(worker)
        assert not shell.dispatch.stats()


@settings(max_examples=80, deadline=None)
@given(st.randoms(use_true_random=True))
def test_no_call_is_lost_or_ended_twice_in_any_order(random: Random) -> None:
    """Whatever happens in whatever order: each caller is told once, no slot is given twice, and in the end all is
    empty. `Shell` watches the rules at every step.
    """
    story = Story()
    story.tell(random)
    story.heal()
    story.stop()


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=True))
def test_stopping_in_any_state_answers_everybody(random: Random) -> None:
    """A stop in the middle of anything still tells every caller how its call ended."""
    story = Story()
    story.tell(random)
    story.stop()
    assert not story.shell.waiting
