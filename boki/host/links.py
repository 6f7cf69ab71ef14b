"""Links between nodes: the surface that a host sees, and the links of nodes that share a process.

In one process a message is handed over by reference. What is sent to nobody is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from boki.log.ids import NodeId

Deliver = Callable[[NodeId, Any], None]


class NodeLinks(Protocol):
    """A way for nodes of this process to send to any node, and to be sent to."""

    def attach(self, node: NodeId, deliver: Deliver) -> None:
        """Let `node` receive messages through `deliver(sender, message)`."""

    def detach(self, node: NodeId) -> None:
        """Messages to `node` are lost from now on."""

    def send(self, sender: NodeId, to: NodeId, message: Any, *, can_wait: bool = False) -> None:
        """Send a message. It may be lost, repeated or late; between two nodes it mostly keeps its order.

        `can_wait`: see `boki.protocol.effects.Send`.
        """


class Links:
    """The nodes of this process by name."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, Deliver] = {}

    def attach(self, node: NodeId, deliver: Deliver) -> None:
        """Let `node` receive messages through `deliver(sender, message)`."""
        assert node not in self._nodes, f"{node} is attached twice"
        self._nodes[node] = deliver

    def detach(self, node: NodeId) -> None:
        """Messages to `node` are lost from now on."""
        self._nodes.pop(node, None)

    def send(self, sender: NodeId, to: NodeId, message: Any, *, can_wait: bool = False) -> None:  # noqa: ARG002
        """Hand over a message, or lose it if nobody is there."""
        deliver = self._nodes.get(to)
        if deliver is not None:
            deliver(sender, message)


class Diversion:
    """Links for a host whose core shares its node with a shell: messages of some classes go to the shell.

    The host attaches to this; the shell tells where its messages go with `divert`, and sends as the node itself.
    `own`: names that this node alone may send to, whatever other nodes of the process call by them.
    """

    def __init__(self, links: NodeLinks, kinds: tuple[type, ...], own: Mapping[NodeId, Deliver] | None = None) -> None:
        self._links = links
        self._kinds = kinds
        self._own = own or {}
        self._divert: Deliver | None = None

    def divert(self, deliver: Deliver | None) -> None:
        """Where messages of those classes go from now on; None: they are lost."""
        self._divert = deliver

    def attach(self, node: NodeId, deliver: Deliver) -> None:
        """See `NodeLinks.attach`."""

        def sort(sender: NodeId, message: Any) -> None:
            if not isinstance(message, self._kinds):
                deliver(sender, message)
            elif self._divert is not None:
                self._divert(sender, message)

        self._links.attach(node, sort)

    def detach(self, node: NodeId) -> None:
        """See `NodeLinks.detach`."""
        self._links.detach(node)

    def send(self, sender: NodeId, to: NodeId, message: Any, *, can_wait: bool = False) -> None:
        """See `NodeLinks.send`."""
        deliver = self._own.get(to)
        if deliver is not None:
            deliver(sender, message)
        else:
            self._links.send(sender, to, message, can_wait=can_wait)
