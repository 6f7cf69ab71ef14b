"""What a controller hears: from its shell, from the coordinator and from nodes."""

from __future__ import annotations

from dataclasses import dataclass

from boki.controller.term_change import TermChangeInput
from boki.log.view import View
from boki.protocol.effects import Note
from boki.protocol.messages import (
    InstallMembership,
    InstallPlacement,
    InstallPlan,
    InstallView,
    Ping,
    Pong,
    ShardsFetched,
)


@dataclass(frozen=True, slots=True)
class Leadership(Note):
    """The shell's word: whether this process leads the controllers, and whether its session with the coordinator
    stands right now. Only a connected leader acts.
    """

    is_leader: bool
    is_connected: bool


@dataclass(frozen=True, slots=True)
class ConnectionEnded(Note):
    """The shell's word: a connection of this process to another one has ended, whichever. That process may be dead."""


@dataclass(frozen=True, slots=True)
class Installed(Note):
    """The outcome of `ProposeView` with that very view: it stands (`won`), or another of its term does."""

    view: View
    won: bool


@dataclass(frozen=True, slots=True)
class Placed(Note):
    """The outcome of `ProposePlacement` with `placement.version`: it stands, or the placement had changed."""

    version: int
    won: bool


ControllerNews = (
    Leadership
    | ConnectionEnded
    | Installed
    | Placed
    | InstallView
    | InstallMembership
    | InstallPlan
    | InstallPlacement
    | TermChangeInput
)
"""Messages that are sent when something has changed, and are no regular answers."""
ControllerInput = ControllerNews | Ping | Pong | ShardsFetched
