"""Links between nodes of one process: a message is handed over by reference. What is sent to nobody is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boki.log.ids import NodeId

Deliver = Callable[[NodeId, Any], None]


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

    def send(self, sender: NodeId, to: NodeId, message: Any) -> None:
        """Hand over a message, or lose it if nobody is there."""
        deliver = self._nodes.get(to)
        if deliver is not None:
            deliver(sender, message)
