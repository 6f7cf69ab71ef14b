"""The time that all roles of a node that stops have together."""

from __future__ import annotations

from boki.node.stopping import NodeStop


def test_roles_of_a_node_that_stops_share_a_deadline() -> None:
    """Whichever is asked first, and however long it took; one that begins again alone has a deadline of its own."""
    now_s = 100.0
    stop = NodeStop(lambda: now_s)
    assert stop.deadline_s(10.0) == 110.0
    now_s = 200.0
    assert stop.deadline_s(10.0) == 210.0
    stop.begin()
    now_s = 207.0
    stop.begin()
    assert stop.deadline_s(10.0) == 210.0
    assert stop.left_s(210.0) == 3.0
    assert stop.left_s(stop.deadline_s(5.0)) == 0.0
