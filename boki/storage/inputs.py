"""What a storage node hears: from nodes, from the coordinator, from its disk and from itself."""

from __future__ import annotations

from boki.protocol.effects import DiskRoom, Loaded
from boki.protocol.messages import (
    BatchesFetched,
    EntriesDropped,
    FetchBatches,
    FetchCheckpoint,
    FetchShards,
    FetchState,
    IndexSaved,
    InstallMembership,
    InstallPlacement,
    InstallView,
    Metalog,
    NeedRecords,
    Ping,
    StateFetched,
    StoreBatch,
    StoreCheckpoint,
)
from boki.storage.answers import Question
from boki.storage.checkpoints import RowsAsked, Staged
from boki.storage.holdings import Written
from boki.storage.sweep import SweepStep

LoadedInput = Loaded[Question] | Loaded[SweepStep] | Loaded[Staged] | Loaded[RowsAsked]
SeldomInput = FetchShards | StoreCheckpoint | FetchCheckpoint | EntriesDropped | FetchState | StateFetched
"""From controllers, about checkpoints of the index, and from nodes that have fallen behind."""
StorageInput = (
    StoreBatch
    | Metalog
    | FetchBatches
    | LoadedInput
    | Written
    | BatchesFetched
    | NeedRecords
    | IndexSaved
    | Ping
    | InstallView
    | InstallMembership
    | InstallPlacement
    | DiskRoom
    | SeldomInput
)
