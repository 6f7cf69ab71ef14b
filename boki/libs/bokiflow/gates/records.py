"""Records of flow control: who asks to begin, and what was decided. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from boki.libs.bokiflow.gates.spec import Limit


class Asked(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A workflow was started, and asks to begin. `id` names the request: its call, and which life of it."""

    id: str
    call: str
    key: str
    priority: int
    limit: Limit
    """What holds for the key from here on."""
    is_unreported: bool = False
    """Whether its end does not name the attendant, which has to look for it: its start knew of no limit."""


class Admission(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """What was decided, once: it also stands in the inboxes of the workflows that it names.

    `refused` are not run at all, `cancelled` run and are to end; each with the reason. `ended` are the calls that were
    seen to end, and `ends_from` says from where on further ends are read.
    """

    at_us: int
    admitted: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    cancelled: tuple[tuple[str, str], ...] = ()
    ended: tuple[str, ...] = ()
    ends_from: int = 0


def reason_of(decided: Admission, requests: Collection[str]) -> str | None:
    """Why the decision cancels the workflow that has asked so; None: it does not."""
    return next((why for request, why in decided.cancelled if request in requests), None)


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A request that was not decided yet."""

    asked: Asked
    at_us: int
    """When it came, by the log's time."""
    first_us: int
    """When the first one came that it has superseded, or it itself."""


class Running(msgspec.Struct, frozen=True, array_like=True):
    """A workflow that was let begin, and has not ended as far as is known."""

    call: str
    key: str
    at_us: int
    is_ending: bool = False
    """Whether it was cancelled to make room."""
    is_unreported: bool = False
    """See `Asked.is_unreported`."""


class GateKept(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The whole state: what stands below this record is trimmed."""

    waiting: tuple[Waiting, ...]
    running: dict[str, Running]
    begun: dict[str, tuple[int, ...]]
    ends_from: int


GateNote = Asked | Admission | GateKept


class GateRecord(msgspec.Struct, frozen=True, array_like=True, tag="g"):
    """A record of flow control. A copy of one in another workflow's inbox says when and where that stood there."""

    note: GateNote
    at_us: int = 0
    stood_at: int = 0


def gate_tag(gate_id: str) -> str:
    """The tag of the records of a workflow's flow control, in the LogBook of its runs."""
    return f"!fq:{gate_id}"
