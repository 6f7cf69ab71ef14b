"""Which messages travel between nodes: who may send them, and on which lane.

Three lanes with sockets of their own, so that bulk never delays what all wait for. Control carries what is small and
must be quick: progress, cuts, seals, heartbeats. Appends carries batches on their way to storage nodes. Reads carries
everything that is fetched, and function calls. Messages keep their order only within a lane.

A class that is missing here cannot be sent to another node; those in `LOCAL` are between a node and its own shell.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from boki.log.membership import Role
from boki.protocol import call_messages as remote
from boki.protocol import messages
from boki.protocol.messages import Message


class Lane(IntEnum):
    """The more urgent, the smaller."""

    CONTROL = 0
    APPENDS = 1
    READS = 2

    __hash__ = int.__hash__
    """That of `Enum` is a call of Python code, several for each message."""


class Rule(NamedTuple):
    """The lane of a message class, and the roles that may send it."""

    lane: Lane
    senders: frozenset[Role]


def _control(*senders: Role) -> Rule:
    return Rule(Lane.CONTROL, frozenset(senders))


def _appends(*senders: Role) -> Rule:
    return Rule(Lane.APPENDS, frozenset(senders))


def _reads(*senders: Role) -> Rule:
    return Rule(Lane.READS, frozenset(senders))


_ENGINE: Final = Role.ENGINE
_STORAGE: Final = Role.STORAGE
_SEQUENCER: Final = Role.SEQUENCER
_CONTROLLER: Final = Role.CONTROLLER

_OF_THE_LOG: Final[dict[type[Message], Rule]] = {
    messages.StoreBatch: _appends(_ENGINE),
    messages.IndexBatch: _appends(_ENGINE),
    messages.FetchBatches: _reads(_ENGINE, _STORAGE),
    messages.BatchesFetched: _reads(_STORAGE),
    messages.IndexSaved: _control(_ENGINE),
    messages.ShardProgress: _control(_STORAGE),
    messages.RequestEntry: _control(_ENGINE, _CONTROLLER),  # controllers ask for fences
    messages.AppendEntry: _control(_SEQUENCER),
    messages.EntriesStored: _control(_SEQUENCER),
    messages.Metalog: _control(_SEQUENCER),
    messages.FetchMetalog: _control(_ENGINE, _STORAGE, _SEQUENCER),  # sequencers: what ended before they came
    messages.AskTail: _control(_ENGINE),
    messages.TellTail: _control(_SEQUENCER),
    messages.Seal: _control(_CONTROLLER),
    messages.Sealed: _control(_SEQUENCER),
    messages.FetchSealed: _control(_CONTROLLER),
    messages.SealedEntries: _control(_SEQUENCER),
    messages.Complete: _control(_CONTROLLER),
    messages.Completed: _control(_SEQUENCER),
    messages.Ping: _control(_CONTROLLER),
    messages.Pong: _control(*Role),
    messages.FetchShards: _reads(_CONTROLLER),
    messages.ShardsFetched: _reads(_STORAGE),
    messages.StoreCheckpoint: _reads(_ENGINE),
    messages.CheckpointStored: _control(_STORAGE),
    messages.FetchCheckpoint: _reads(_ENGINE),
    messages.CheckpointFetched: _reads(_STORAGE),
    messages.FetchState: _reads(_STORAGE),
    messages.StateFetched: _reads(_STORAGE),
    messages.DropEntries: _control(_ENGINE),
    messages.EntriesDropped: _control(_SEQUENCER, _CONTROLLER),  # a completion continues above it
}

_SMALL_OF_CALLS: Final = frozenset(
    {remote.Poll, remote.Load, remote.FetchFunctions, remote.AskStatus, remote.StreamTaken, remote.StopCall}
)

RULES: Final[dict[type[Message], Rule]] = _OF_THE_LOG | {
    kind: Rule(Lane.CONTROL if kind in _SMALL_OF_CALLS else Lane.READS, senders)
    for kind, senders in remote.SENDERS.items()
}
"""Every message class that travels."""

LOCAL: Final[frozenset[type[Message]]] = frozenset(
    {
        messages.InstallMembership,
        messages.InstallPlacement,
        messages.InstallPlan,
        messages.InstallView,
        messages.FetchView,
        messages.RecordsTaken,
        messages.NeedRecords,
    }
)
"""Between a core and the coordinator, which each process reaches through its own shell, or between a storage node and a
sequencer that share a log: never on a wire.
"""


def allowed(role: Role) -> frozenset[type[Message]]:
    """What a node of this role may send."""
    return frozenset(kind for kind, rule in RULES.items() if role in rule.senders)
