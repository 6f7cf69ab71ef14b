"""C12 of a promise machine, in simulated runs: a gateway tells nothing without the token, whatever it is asked for.

When a run is over, a stranger asks one of its gateways for everything that a gateway answers, of the workflows that the
run really had: their states and histories, and their end. The requests are bytes on a connection in memory, and what
answers them is all of production's HTTP in front of the simulated gateway's backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Final

from boki.gateway.config import GatewayConfig
from boki.gateway.server.http.connections import Connections
from boki.gateway.server.listener import Gateway
from boki.verify.sim.gateways import GatewayNode
from boki.verify.workloads.errands import BOOK, errand

NOT_TOLD: Final = "nothing is told without the token"
_TOKEN: Final = "of-the-run"  # noqa: S105 - it opens nothing
_STRANGERS: Final = ("", "Authorization: Bearer wrong\r\n", "Authorization: Basic of-the-run\r\n")
_FRIEND: Final = f"Authorization: Bearer {_TOKEN}\r\n"
_TOLD: Final = 200
_REFUSED: Final = 401
_LONGEST_S: Final = 1.0
"""An answer may have no end, if it is given at all."""
_PATIENT_S: Final = 20.0
"""That of a call's engine which has just been lost comes from another one, once its session has run out."""


def strangers_of(seed: int) -> Iterator[str]:
    """Authorization headers, one for each request; over the seeds, each request has each of them."""
    first = seed % len(_STRANGERS)
    return cycle(_STRANGERS[first:] + _STRANGERS[:first])


class StrangersAtTheDoor:
    """A stranger at a gateway. `flows`: the id of each workflow, and of the logged call that it is."""

    def __init__(self, node: GatewayNode, flows: Sequence[tuple[str, str]], seed: int) -> None:
        self.problems: list[str] = []
        """What it was told, once `is_done`."""
        self._flows = flows
        self._task = node.loop.create_task(self._ask_all(node, seed))

    @property
    def is_done(self) -> bool:
        """Whether everything was asked."""
        return self._task.done()

    async def _ask_all(self, node: GatewayNode, seed: int) -> None:
        gateway = Gateway(node.backend, GatewayConfig(token=_TOKEN), clock=node.now_us)
        connections = Connections(gateway._handle, timeouts=gateway.config.timeouts, max_count=2)  # noqa: SLF001
        for (method, path), header in zip(self._requests(gateway), strangers_of(seed), strict=False):
            told = await _answer(connections, f"{method} {path}", header)
            if told != _REFUSED:
                self.problems.append(f"{method} {path} at {node.name}, asked with {header!r}, was answered {told}")
        # who has the token is told: else these questions would prove nothing
        for _, call_id in self._flows[:1]:
            told = await _answer(connections, f"GET /invocation/{call_id}", _FRIEND, _PATIENT_S)
            if told != _TOLD:
                self.problems.append(f"GET /invocation/{call_id} at {node.name} was answered {told} with the token")

    def _requests(self, gateway: Gateway) -> Iterator[tuple[str, str]]:
        """Each route once, about one workflow after the other, and a path that is not there."""
        for route, (flow_id, call_id) in zip(gateway._routes.all, cycle(self._flows)):  # noqa: SLF001
            if not route.is_open:
                id_ = call_id if route.template.startswith("/invocation") else flow_id
                values = {"id": id_, "book": BOOK, "workflow": errand.name, "name": errand.name}
                parts = [values.get(part[1:-1], "1") if part[:1] == "{" else part for part in route.template.split("/")]
                yield route.method, "/".join(parts)
        yield "GET", "/debug"


class _Wire(asyncio.Transport):
    """The client's end of a connection in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `asyncio`."""
        self.data += data

    def is_closing(self) -> bool:
        """See `asyncio`."""
        return self.closed.done()

    def close(self) -> None:
        """See `asyncio`."""
        if not self.closed.done():
            self.closed.set_result(None)

    abort = close


async def _answer(connections: Connections, request: str, header: str, longest_s: float = _LONGEST_S) -> int:
    """The status of the answer to a request without a body; 0 if there is none in time."""
    wire = _Wire()
    protocol = connections()
    protocol.connection_made(wire)
    head = f"{request} HTTP/1.1\r\nHost: boki\r\n{header}Content-Length: 0\r\nConnection: close\r\n\r\n"
    protocol.data_received(head.encode())
    await asyncio.wait([wire.closed], timeout=longest_s)
    protocol.connection_lost(None)
    status = bytes(wire.data).partition(b" ")[2][:3]
    return int(status) if status else 0
