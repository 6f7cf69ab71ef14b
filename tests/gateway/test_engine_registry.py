"""Which engines are up, as a gateway knows it: the pure part."""

from __future__ import annotations

import msgspec

from boki.gateway.engine_registry import (
    IDLE_POLL_US,
    LOST_US,
    POLL_US,
    QUIET_US,
    Changed,
    EngineRegistry,
    Happening,
    Lost,
    Quiet,
)
from boki.log.ids import NodeId
from boki.log.membership import Member, Membership, Role
from boki.protocol.beats import EARLY_US
from boki.protocol.call_messages import FetchFunctions, Load, TellFunctions
from boki.protocol.calls import FunctionInfo, ModuleInfo
from boki.protocol.effects import Send

A, B = NodeId("engine-1"), NodeId("engine-2")


def membership(number: int, **incarnations: int) -> Membership:
    members = tuple(
        Member(node=NodeId(name.replace("_", "-")), role=Role.ENGINE, incarnation=incarnation)
        for name, incarnation in incarnations.items()
    )
    return Membership(number=number, members=members)


def load(incarnation: int, functions_number: int = 1, **more: object) -> Load:
    settings = {"running": 0, "capacity": 10, "has_index": True, "is_ready": True} | more
    return Load(incarnation=incarnation, functions_number=functions_number, **settings)  # type: ignore[arg-type]


def told(incarnation: int, *names: str, number: int = 1, bundle: int = 0) -> TellFunctions:
    functions = tuple(FunctionInfo(name=name, module=f"m{bundle}", is_async=True) for name in names)
    modules = (ModuleInfo(module=f"m{bundle}", path="m.py", functions=functions),)
    return TellFunctions(incarnation, number, functions, modules, bundle)


def bring_up(registry: EngineRegistry, node: NodeId, incarnation: int, now_us: int = 0) -> list[Happening]:
    return registry.on_load(node, load(incarnation), now_us) + registry.on_functions(
        node, told(incarnation, "f"), now_us
    )


def both_up() -> EngineRegistry:
    registry = EngineRegistry()
    registry.on_membership(membership(1, engine_1=5, engine_2=6), 0)
    bring_up(registry, A, 5)
    bring_up(registry, B, 6)
    return registry


def kinds(happenings: list[Happening]) -> list[type]:
    return [type(happening) for happening in happenings]


def test_an_engine_is_up_once_it_is_ready_and_has_said_what_it_can() -> None:
    """Registered alone is not enough, nor is a word from one that is not registered."""
    registry = EngineRegistry()
    assert registry.on_load(A, load(5), 0) == []
    assert registry.on_membership(membership(1, engine_1=5), 0) == []
    assert registry.on_load(A, load(5, is_ready=False), 1_000_000) == [Send(A, FetchFunctions())]
    assert registry.on_functions(A, told(5, "f"), 1_000_001) == []
    assert not registry.is_ready
    (changed,) = registry.on_load(A, load(5, running=3), 1_000_002)
    assert isinstance(changed, Changed)
    assert (changed.standing.running, changed.standing.capacity, changed.standing.takes_calls) == (3, 10, True)
    assert changed.standing.functions == {"f"}
    assert registry.is_ready
    assert registry.up == [A]


def test_an_engine_is_not_up_with_what_it_could_before_its_functions_were_loaded() -> None:
    """Asked while it starts, it names no functions: calls of them would be refused, as if there were none."""
    registry = EngineRegistry()
    registry.on_membership(membership(1, engine_1=5), 0)
    registry.on_load(A, load(5, functions_number=1, is_ready=False), 0)
    registry.on_functions(A, told(5, number=1), 1)
    asked = registry.on_load(A, load(5, functions_number=2), 1_000_000)
    assert asked == [Send(A, FetchFunctions())]
    assert not registry.is_ready
    registry.on_functions(A, told(5, "f", number=2), 1_000_001)
    assert registry.is_ready


def test_what_an_engine_can_is_asked_for_when_it_changes() -> None:
    """And again, not at once, if the answer does not come."""
    registry = both_up()
    assert Send(A, FetchFunctions()) in registry.on_load(A, load(5, functions_number=2), 1_000_000)
    assert Send(A, FetchFunctions()) not in registry.on_load(A, load(5, functions_number=2), 1_000_001)
    assert Send(A, FetchFunctions()) in registry.on_load(A, load(5, functions_number=2), 2_000_000)
    registry.on_functions(A, told(5, "f", "g", number=2), 2_000_001)
    assert set(registry.functions) == {"f", "g"}
    registry.on_functions(A, told(5, "old", number=1), 2_000_002)
    assert set(registry.functions) == {"f", "g"}


def test_of_two_deployed_versions_the_newer_one_describes_a_function() -> None:
    """While engines switch, one after the other."""
    registry = both_up()
    registry.on_functions(B, told(6, "f", number=2, bundle=7), 1)
    registry.on_functions(A, told(5, "f", number=2, bundle=6), 2)
    assert registry.functions["f"].module == "m7"
    assert [module.module for module in registry.modules] == ["m7"]


def test_silence_makes_an_engine_quiet_and_then_lost() -> None:
    """A quiet one gets nothing new; each is told once; a word brings it back."""
    registry = both_up()
    registry.due_polls(POLL_US, is_idle=False)
    registry.on_load(B, load(6), LOST_US)
    changed, quiet = registry.tick(QUIET_US + 1)
    assert isinstance(changed, Changed)
    assert not changed.standing.takes_calls
    assert quiet == Quiet(A)
    assert registry.tick(QUIET_US + 2) == []
    (lost,) = registry.tick(LOST_US + 1)
    assert isinstance(lost, Lost)
    assert (lost.engine, registry.up) == (A, [B])
    assert registry.tick(LOST_US + 2) == []
    (changed,) = registry.on_load(A, load(5), LOST_US + 3)
    assert isinstance(changed, Changed)
    assert changed.standing.takes_calls


def test_an_engine_that_is_gone_or_started_anew_is_lost() -> None:
    """By membership, or by its own word if that comes first; words of its former life count for nothing."""
    registry = both_up()
    assert kinds(registry.on_membership(membership(2, engine_1=5), 1)) == [Lost]
    assert registry.up == [A]
    assert kinds(registry.on_load(A, load(9), 2)) == [Lost, Send]
    assert registry.on_load(A, load(5), 3) == []
    assert registry.on_functions(A, told(5, "f"), 3) == []
    assert kinds(registry.on_functions(A, told(9, "f"), 4)) == [Changed]
    assert registry.on_membership(membership(3, engine_1=9), 5) == []
    assert registry.on_membership(membership(1), 6) == []
    assert registry.up == [A]


def test_functions_are_remembered_when_the_last_engine_goes() -> None:
    """So that callers hear that no engine is up, and not that there is no such function."""
    registry = both_up()
    registry.on_membership(membership(2), 1)
    assert set(registry.functions) == {"f"}
    assert not registry.is_ready


def test_the_functions_are_known_once_no_engine_owes_them() -> None:
    """Not before an engine is up, while one has newer ones to tell, or after all are lost; a silent one is not
    waited for.
    """
    registry = EngineRegistry()
    assert not registry.knows_functions(0)
    registry.on_membership(membership(1, engine_1=5, engine_2=6), 0)
    registry.due_polls(POLL_US, is_idle=True)
    bring_up(registry, A, 5)
    assert not registry.knows_functions(1)
    assert not registry.knows_functions(LOST_US)
    registry.on_load(A, load(5), LOST_US)
    assert registry.knows_functions(LOST_US + 1)  # the other one has never said a word
    registry.on_load(A, load(5, functions_number=2), LOST_US + 2)
    assert not registry.knows_functions(LOST_US + 3)
    registry.on_functions(A, told(5, "f", "g", number=2), LOST_US + 4)
    assert registry.knows_functions(LOST_US + 5)
    registry.on_membership(membership(2), LOST_US + 6)
    assert not registry.knows_functions(LOST_US + 7)
    assert set(registry.functions) == {"f", "g"}


def test_each_engine_is_polled_at_its_interval() -> None:
    """Also one that is lost, which may come back."""
    registry = both_up()
    assert registry.due_polls(POLL_US, is_idle=False) == [A, B]
    assert registry.due_polls(2 * POLL_US - EARLY_US - 1, is_idle=False) == []
    assert registry.due_polls(2 * POLL_US - EARLY_US, is_idle=False) == [A, B], "a timer may come early"
    registry.tick(LOST_US + 1)
    assert registry.due_polls(LOST_US + 2, is_idle=True) == [A, B]


def test_engines_are_polled_less_often_while_nothing_is_asked_of_them() -> None:
    """But for one that takes no work or has not answered; and what is asked ends it at once."""
    registry = both_up()
    registry.on_load(B, load(6, is_draining=True), 0)
    assert registry.due_polls(IDLE_POLL_US, is_idle=True) == [A, B]
    for node, incarnation in ((A, 5), (B, 6)):
        registry.on_load(node, load(incarnation, is_draining=node == B), IDLE_POLL_US + 1)
    assert registry.due_polls(IDLE_POLL_US + POLL_US, is_idle=True) == [B]
    assert registry.due_polls(IDLE_POLL_US + 2 * POLL_US, is_idle=False) == [A, B]
    assert registry.due_polls(IDLE_POLL_US + 3 * POLL_US, is_idle=True) == [A, B], "neither has answered"


def test_an_engine_that_nobody_has_asked_is_not_silent() -> None:
    """Its silence begins one interval before the first poll that it does not answer, however often it is polled."""
    registry = both_up()
    registry.due_polls(POLL_US, is_idle=True)
    for node, incarnation in ((A, 5), (B, 6)):
        registry.on_load(node, load(incarnation), POLL_US + 1)
    asked_us = POLL_US + IDLE_POLL_US
    assert registry.tick(asked_us) == []
    for late_us in (0, POLL_US):
        assert registry.due_polls(asked_us + late_us, is_idle=True) == [A, B]
    registry.on_load(B, load(6), asked_us + POLL_US)
    assert registry.tick(asked_us + QUIET_US - POLL_US) == []
    assert kinds(registry.tick(asked_us + QUIET_US - POLL_US + 1)) == [Changed, Quiet]
    assert kinds(registry.tick(asked_us + LOST_US - POLL_US + 1)) == [Lost]


def test_a_books_operations_go_to_one_engine_while_it_is_up() -> None:
    """One with the index, which takes work; books are spread; others are used when there is no better one."""
    registry = both_up()
    chosen = {book: registry.for_book(book, ()) for book in map(str, range(50))}
    assert set(chosen.values()) == {A, B}
    assert {book: registry.for_book(book, ()) for book in chosen} == chosen
    registry.on_load(A, load(5, has_index=False), 1)
    assert {registry.for_book(book, ()) for book in chosen} == {B}
    assert registry.for_book("x", {B}) == A
    registry.on_load(B, load(6, is_draining=True), 2)
    assert registry.for_book("x", ()) == A
    assert registry.for_book("x", {A, B}) is None


def test_an_engine_leaves_when_its_node_stops() -> None:
    """Told by the registration, and taken back by that of its next incarnation."""
    registry = both_up()
    now = membership(2, engine_1=5, engine_2=6).members
    leaving = (msgspec.structs.replace(now[0], is_leaving=True), now[1])
    (changed,) = registry.on_membership(Membership(number=2, members=leaving), 1)
    assert isinstance(changed, Changed)
    assert (changed.engine, changed.standing.is_leaving, changed.standing.takes_calls) == (A, True, True)
    assert registry.on_membership(Membership(number=3, members=leaving), 2) == []
    registry.on_membership(membership(4, engine_1=7, engine_2=6), 3)
    bring_up(registry, A, 7, 3)
    assert not any(standing.is_leaving for _, standing in registry.standings())


def test_an_engine_is_near_while_its_node_has_a_primary() -> None:
    """It follows terms and registrations; an engine that is a process of its own never is."""
    registry = EngineRegistry()
    assert registry.on_primaries((NodeId("sequencer-2"),)) == []
    hosted = tuple(
        Member(node=NodeId(f"{role}-{number}"), role=role, incarnation=number, host=NodeId(f"node-{number}"))
        for role in (Role.ENGINE, Role.SEQUENCER)
        for number in (1, 2)
    )
    alone = Member(node=NodeId("engine-3"), role=Role.ENGINE, incarnation=3)
    registry.on_membership(Membership(number=1, members=(*hosted, alone)), 0)
    for node, incarnation in ((A, 1), (B, 2), (NodeId("engine-3"), 3)):
        bring_up(registry, node, incarnation)
    assert {node: standing.is_near for node, standing in registry.standings()} == {A: False, B: True, "engine-3": False}
    moved = registry.on_primaries((NodeId("sequencer-1"),))
    assert [(one.engine, one.standing.is_near) for one in moved if isinstance(one, Changed)] == [(A, True), (B, False)]
    assert registry.on_primaries((NodeId("sequencer-1"),)) == []
    members = tuple(m for m in hosted if m.node != NodeId("sequencer-1"))
    (left,) = registry.on_membership(Membership(number=2, members=(*members, alone)), 1)
    assert isinstance(left, Changed)
    assert (left.engine, left.standing.is_near) == (A, False)
