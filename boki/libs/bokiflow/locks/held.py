"""The locks of one workflow, as its body takes them: what it holds and what it waits for. Pure."""

from __future__ import annotations

from typing import Any

from boki.libs.bokiflow.locks.state import Freed, Wanted
from boki.libs.bokiflow.loop import FlowFuture, FlowLoop
from boki.libs.bokiflow.refusals import would_deadlock


class Locks:
    """See the module. Requests go by their ids."""

    def __init__(self, loop: FlowLoop) -> None:
        self._loop = loop
        self.keys: dict[str, str] = {}
        """The request for each key that the workflow holds or waits for."""
        self._waiting: dict[str, tuple[str, FlowFuture[Any]]] = {}
        self._certain: set[str] = set()
        """Requests that were granted at once; the token is on its way."""
        self._tokens: dict[str, int] = {}
        self._wounded: set[str] = set()

    def deliver(self, seqnum: int, note: Wanted | Freed) -> None:
        """A record of a lock that concerns this workflow."""
        if note.granted:
            self._tokens[note.granted] = seqnum
            _, future = self._waiting.pop(note.granted, ("", None))
            if future is not None and not future.done():
                future.set_result(seqnum)
        if note.wounded:
            self._wounded.add(note.wounded)
            self._refuse()

    def wait(self, key: str, request_id: str, *, is_certain: bool) -> FlowFuture[Any]:
        """The token of the grant, once it is granted; `WouldDeadlock`. `is_certain`: it was granted at once."""
        future = self._loop.create_future()
        token = self._tokens.get(request_id)
        if token is not None:
            future.set_result(token)
        else:
            self._waiting[request_id] = key, future
            if is_certain:
                self._certain.add(request_id)
            self._refuse()
        return future

    def _refuse(self) -> None:
        """A workflow that is in an older one's way waits for nothing."""
        held = next((key for key, request in self.keys.items() if self._is_in_the_way(request)), None)
        if held is None:
            return
        for request, (key, future) in list(self._waiting.items()):
            if request not in self._certain:
                del self._waiting[request]
                if not future.done():
                    future.set_exception(would_deadlock(key, held))

    def _is_in_the_way(self, request_id: str) -> bool:
        return request_id in self._wounded and request_id in self._tokens

    def leave(self, key: str, request: str) -> None:
        """The request has left the queue. The key may have another one since."""
        if self.keys.get(key) == request:
            del self.keys[key]
        self._waiting.pop(request, None)
        self._wounded.discard(request)

    @property
    def is_waiting(self) -> bool:
        """Whether any is waited for."""
        return bool(self._waiting) and any(not future.done() for _, future in self._waiting.values())

    @property
    def waiting(self) -> list[tuple[str, str]]:
        """Keys that are waited for, each with its request."""
        return [(key, request) for request, (key, future) in self._waiting.items() if not future.done()]

    @property
    def tokens(self) -> list[tuple[str, int]]:
        """Keys that are held, each with the token of its grant."""
        return [(key, self._tokens[request]) for key, request in self.keys.items() if request in self._tokens]
