"""The log that two roles of a node share: who has it, and in which terms they run ahead of its syncs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.node.common_log import common_log
from tests.members import view

STORAGE, SEQUENCER = NodeId("storage-1"), NodeId("sequencer-1")
ALONE = view(sequencers=1, storage=1)
AMONG_OTHERS = view()


class Told:
    """A host that notes with which others it shares a log, and whether it runs ahead of its syncs."""

    mates: Mapping[NodeId, Any] = {}
    runs_ahead = False

    def share_log(self, mates: Mapping[NodeId, Any], *, runs_ahead: bool) -> None:
        self.mates, self.runs_ahead = mates, runs_ahead


@pytest.mark.parametrize(
    ("roles", "has_one"),
    [(tuple(Role), True), ((Role.STORAGE, Role.SEQUENCER), True), ((Role.STORAGE, Role.ENGINE), False)],
)
def test_a_node_has_one_if_it_keeps_both_records_and_metalogs(roles: tuple[Role, ...], *, has_one: bool) -> None:
    """All else has a log of its own."""

    async def body() -> None:
        assert (common_log(dict.fromkeys(roles, STORAGE), is_synced=True) is not None) is has_one

    asyncio.run(body())


@pytest.mark.parametrize("is_synced", [True, False])
def test_roles_run_ahead_only_where_they_decide_alone(*, is_synced: bool) -> None:
    """Among several, what leaves would wait for this one disk; without syncs there is nothing to run ahead of."""

    async def body() -> None:
        log = common_log({Role.STORAGE: STORAGE, Role.SEQUENCER: SEQUENCER}, is_synced=is_synced)
        assert log is not None
        storage, sequencer = Told(), Told()
        log.join(STORAGE, storage)  # type: ignore[arg-type] # as much of a host as this is about
        log.install(ALONE)
        assert not storage.mates
        log.join(SEQUENCER, sequencer)  # type: ignore[arg-type] # as above
        both = {STORAGE: storage, SEQUENCER: sequencer}
        assert storage.mates == sequencer.mates == (both if is_synced else {})
        assert storage.runs_ahead is sequencer.runs_ahead is is_synced
        log.install(AMONG_OTHERS)
        assert not storage.runs_ahead
        assert not sequencer.runs_ahead

    asyncio.run(body())
