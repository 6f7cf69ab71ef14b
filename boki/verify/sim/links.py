"""The simulated network as production's shells see it: the links of one incarnation of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boki.host.links import Deliver
from boki.log.ids import NodeId


class LifeLinks:
    """`boki.host.links.NodeLinks` over `send(to, message)` of a node, until `close`: whoever is dead sends nothing."""

    def __init__(self, send: Callable[[NodeId, Any], None]) -> None:
        self._send: Callable[[NodeId, Any], None] | None = send
        self._deliver: Deliver | None = None

    def attach(self, node: NodeId, deliver: Deliver) -> None:  # noqa: ARG002 - there is one node
        """See `NodeLinks`."""
        self._deliver = deliver

    def detach(self, node: NodeId) -> None:  # noqa: ARG002
        """See `NodeLinks`."""
        self._deliver = None

    def send(self, sender: NodeId, to: NodeId, message: Any, *, can_wait: bool = False) -> None:  # noqa: ARG002
        """See `NodeLinks`."""
        if self._send is not None:
            self._send(to, message)

    def deliver(self, sender: NodeId, message: Any) -> None:
        """A message has come."""
        if self._deliver is not None:
            self._deliver(sender, message)

    def close(self) -> None:
        """This incarnation is over."""
        self._send = self._deliver = None
