"""The supervisor's decisions: restarts with growing delays, and stops in order."""

from boki.launch.up.core import (
    FIRST_DELAY_US,
    LAST_DELAY_US,
    NEXT,
    SETTLED_US,
    End,
    Event,
    Process,
    Start,
    State,
    SupervisorCore,
)

GATEWAY = Process("gateway-1", "gateway", ("g",), stop_rank=0)
ENGINE = Process("engine-1", "engine", ("e",), stop_rank=1)
STORAGE = Process("storage-1", "storage", ("s",), stop_rank=2)


def running(*processes: Process, now_us: int = 0) -> SupervisorCore:
    core = SupervisorCore(processes)
    assert core.tick(now_us) == [Start(process) for process in processes]
    for pid, process in enumerate(processes, 100):
        assert core.started(process.node, pid, now_us) == []
    return core


def test_every_state_can_be_reached_and_only_a_stop_is_final() -> None:
    """The life cycle is the table: nothing leaves `stopped`, and everything else can be left."""
    assert {State.WAITING, *NEXT.values()} == set(State)
    assert {state for state, _ in NEXT} == set(State) - {State.STOPPED}
    assert {event for _, event in NEXT} == set(Event)


def test_a_process_that_ends_is_started_again_after_a_growing_delay() -> None:
    """Each quick end doubles the delay up to a limit, and nothing is started before it is due."""
    core = running(STORAGE)
    now_us, delays_us = 0, []
    for pid in range(10):
        assert core.exited("storage-1", 1, now_us) == []
        started_us = core.rows["storage-1"].start_at_us
        assert core.next_due_us() == started_us
        assert core.tick(started_us - 1) == []
        assert core.tick(started_us) == [Start(STORAGE)]
        delays_us.append(started_us - now_us)
        now_us = started_us
        core.started("storage-1", 200 + pid, now_us)
    assert delays_us[:4] == [FIRST_DELAY_US << number for number in range(4)]
    assert delays_us[-1] == LAST_DELAY_US
    assert core.rows["storage-1"].restarts == 10


def test_a_process_that_ran_for_a_while_is_started_again_at_once() -> None:
    """Only quick ends in a row are punished."""
    core = running(STORAGE)
    now_us = 0
    for _ in range(2):
        core.exited("storage-1", 1, now_us)
        now_us += LAST_DELAY_US
        core.tick(now_us)
        core.started("storage-1", 7, now_us)
    now_us += SETTLED_US
    core.exited("storage-1", -9, now_us)
    row = core.rows["storage-1"]
    assert (row.start_at_us, row.exit_code, row.pid) == (now_us + FIRST_DELAY_US, -9, 0)


def test_one_that_cannot_be_started_is_tried_again() -> None:
    """A start that fails counts as an end."""
    core = SupervisorCore([STORAGE])
    assert core.tick(0) == [Start(STORAGE)]
    assert core.exited("storage-1", 127, 0) == []
    assert core.tick(FIRST_DELAY_US) == [Start(STORAGE)]


def test_the_others_do_not_notice_an_end() -> None:
    """Only the process that has ended is started."""
    core = running(GATEWAY, ENGINE)
    core.exited("engine-1", 1, 0)
    assert core.tick(FIRST_DELAY_US) == [Start(ENGINE)]
    assert core.rows["gateway-1"].restarts == 0


def test_a_stop_goes_rank_by_rank() -> None:
    """Storage is told to stop only when gateway and engine are gone, in this order."""
    core = running(STORAGE, GATEWAY, ENGINE)
    assert core.stop(0) == [End(GATEWAY, is_kill=False)]
    assert core.tick(1) == []
    assert core.next_due_us() == GATEWAY.stop_us
    assert core.exited("gateway-1", 0, 2) == [End(ENGINE, is_kill=False)]
    assert core.exited("engine-1", 0, 3) == [End(STORAGE, is_kill=False)]
    assert not core.is_done
    assert core.exited("storage-1", 0, 4) == []
    assert core.is_done
    assert core.next_due_us() is None


def test_one_that_does_not_stop_is_killed() -> None:
    """After its time is over, and again if that was not seen to work."""
    core = running(GATEWAY)
    core.stop(0)
    assert core.tick(GATEWAY.stop_us - 1) == []
    assert core.tick(GATEWAY.stop_us) == [End(GATEWAY, is_kill=True)]
    assert core.tick(GATEWAY.stop_us + 1) == []
    assert core.tick(2 * GATEWAY.stop_us) == [End(GATEWAY, is_kill=True)]


def test_one_that_waits_for_its_restart_is_not_started_by_a_stop() -> None:
    """It is stopped as it is."""
    core = running(GATEWAY)
    core.exited("gateway-1", 1, 0)
    assert core.stop(1) == []
    assert core.is_done
    assert core.tick(LAST_DELAY_US) == []


def test_one_whose_start_is_under_way_is_stopped_once_it_runs() -> None:
    """Or counts as stopped when the start fails; a start is asked for once."""
    core = SupervisorCore([GATEWAY, ENGINE])
    assert core.tick(0) == [Start(GATEWAY), Start(ENGINE)]
    assert core.tick(0) == []
    assert core.stop(0) == []
    assert not core.is_done
    assert core.started("gateway-1", 7, 1) == [End(GATEWAY, is_kill=False)]
    assert core.exited("engine-1", 127, 2) == []
    assert core.exited("gateway-1", 0, 3) == []
    assert core.is_done


def test_a_process_that_ends_while_others_stop_stays_stopped() -> None:
    """A later rank that dies early is not started again."""
    core = running(GATEWAY, STORAGE)
    core.stop(0)
    core.exited("storage-1", -9, 1)
    assert core.tick(LAST_DELAY_US)[0] == End(GATEWAY, is_kill=True)
    core.exited("gateway-1", -9, 2)
    assert core.is_done
