"""Bugs of BokiFlow that random programs must find: each is planted by a patch, and no seed may be needed in advance."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final
from unittest.mock import patch

from boki.libs.bokiflow.body import Body
from boki.libs.bokiflow.calling import Calling
from boki.libs.bokiflow.handles import Handle
from boki.libs.bokiflow.mailbox import Mailbox
from boki.libs.bokiflow.records import Note, Updated
from boki.libs.bokiflow.work import CallWork
from boki.log.record import Expect


def _updates_are_repeated() -> AbstractContextManager[Any]:
    """An update that is sent again is in the log again, and is answered by its handler again."""
    send, offer = Handle._send, Mailbox._offer_update

    async def sent(self: Handle[Any], note: Note, key: str | None, *tags: str, when: tuple[Expect, ...] = ()) -> int:
        return await send(self, note, None if isinstance(note, Updated) else key, *tags, when=when)

    def offered(self: Mailbox, seqnum: int, note: Updated) -> None:
        self._answered.discard(note.id)
        offer(self, seqnum, note)

    stack = ExitStack()
    stack.enter_context(patch.object(Handle, "_send", sent))
    stack.enter_context(patch.object(Mailbox, "_offer_update", offered))
    return stack


def _compensations_in_order() -> AbstractContextManager[Any]:
    """What was done first is undone first."""
    compensate = Body._compensate

    async def compensated(self: Body, cause: BaseException) -> None:
        self._compensations.reverse()
        await compensate(self, cause)

    return patch.object(Body, "_compensate", compensated)


def _one_compensation_is_left_out() -> AbstractContextManager[Any]:
    """The compensation that would run last is left out."""
    compensate = Body._compensate

    async def compensated(self: Body, cause: BaseException) -> None:
        del self._compensations[:1]
        await compensate(self, cause)

    return patch.object(Body, "_compensate", compensated)


def _kept_messages_are_lost() -> AbstractContextManager[Any]:
    """`flow.continue_as_new` reads from behind all that it has seen."""

    return patch.object(Mailbox, "left", {})


def _children_are_left_alone() -> AbstractContextManager[Any]:
    """Nothing is done to children that have not ended."""

    async def close(_self: Calling, _work: CallWork, _keep_s: float) -> None: ...

    return patch.object(Calling, "close", close)


def _children_are_killed() -> AbstractContextManager[Any]:
    """Children that are to be cancelled undo nothing."""
    return patch.object(
        CallWork, "closes_by", property(lambda work: "abandon" if work.parent_close == "abandon" else "kill")
    )


def _validators_are_not_asked() -> AbstractContextManager[Any]:
    """Every update is accepted."""
    on_update = Mailbox.on_update

    def without(self: Mailbox, name: str, handler: Callable[[Any], Any], _validator: Any) -> None:
        on_update(self, name, handler, None)

    return patch.object(Mailbox, "on_update", without)


BUGS: Final = {
    "an update is not deduplicated": _updates_are_repeated,
    "compensations run in the order of what they undo": _compensations_in_order,
    "one compensation is left out": _one_compensation_is_left_out,
    "continue-as-new loses kept messages": _kept_messages_are_lost,
    "children are left alone": _children_are_left_alone,
    "children are killed": _children_are_killed,
    "validators are not asked": _validators_are_not_asked,
}
