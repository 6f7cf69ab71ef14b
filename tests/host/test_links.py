"""Links within a process, and a node that a core and a shell share."""

from __future__ import annotations

from typing import Any

from boki.host.links import Diversion, Links
from boki.log.ids import NodeId
from boki.protocol.messages import Ping, Pong

A, B = NodeId("a"), NodeId("b")


def test_what_is_sent_to_nobody_is_lost() -> None:
    """Also to a node that was there before."""
    links, received = Links(), []
    links.attach(B, lambda sender, message: received.append((sender, message)))
    links.send(A, B, Ping(1))
    links.detach(B)
    links.send(A, B, Ping(2))
    assert received == [(A, Ping(1))]


def test_a_shell_that_shares_its_cores_node_gets_its_messages() -> None:
    """Those of its classes, once it has said where to; the core gets all others."""
    links = Links()
    diversion = Diversion(links, (Pong,))
    core: list[Any] = []
    shell: list[Any] = []
    diversion.attach(B, lambda _sender, message: core.append(message))
    links.send(A, B, Pong(1, 1, 1))
    diversion.divert(lambda _sender, message: shell.append(message))
    links.send(A, B, Pong(2, 1, 1))
    links.send(A, B, Ping(3))
    diversion.detach(B)
    links.send(A, B, Ping(4))
    assert (core, shell) == ([Ping(3)], [Pong(2, 1, 1)])


def test_a_diversion_sends_as_its_node() -> None:
    """To the links beneath it."""
    links, received = Links(), []
    links.attach(A, lambda sender, message: received.append((sender, message)))
    Diversion(links, ()).send(B, A, Ping(1))
    assert received == [(B, Ping(1))]
