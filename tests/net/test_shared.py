"""Links of a process that plays several roles: one set of sockets, and each name speaks for itself."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from boki.log.ids import NodeId
from boki.log.membership import Member, Role
from boki.net.keys import load_keys, make_keys, roles_text
from boki.net.traffic import Lane
from boki.net.zmq import ZmqLinks
from boki.protocol.messages import EntriesStored, FetchMetalog, IndexBatch, Ping, Pong, StoreBatch
from tests.net.nodes import Log, Node, Watcher, closing, run

ROLES = {NodeId(f"{role}-1"): role for role in Role}
HOST = NodeId("node-1")


class Hosting:
    """A process with all roles, and what its names have heard."""

    def __init__(self, **settings: Any) -> None:
        self.links = ZmqLinks(HOST, ROLES, "cluster", asyncio.get_running_loop(), **settings)
        self.heard: list[tuple[NodeId, NodeId, Any]] = []
        self.watcher = Watcher()
        for name in ROLES:
            self.links.join(name, 1)
            self.links.attach(name, self._deliver_to(name))

    def _deliver_to(self, name: NodeId) -> Any:
        def deliver(sender: NodeId, message: Any) -> None:
            self.heard.append((name, sender, message))
            self.watcher.tell()

        return deliver

    @property
    def members(self) -> list[Member]:
        lanes = dict(self.links.lanes)
        return [Member(node=name, role=role, incarnation=1, lanes=lanes, host=HOST) for name, role in ROLES.items()]


def test_roles_of_a_process_share_connections_and_speak_under_their_own_names(tmp_path: Path) -> None:
    """With one key for all of them; what they say to each other never leaves the process."""

    async def test() -> None:
        make_keys(tmp_path, {HOST: roles_text(Role), "storage-2": Role.STORAGE})
        host = Hosting(keys=load_keys(tmp_path, HOST))
        other = Node("storage-2", keys=load_keys(tmp_path, NodeId("storage-2")))
        with contextlib.closing(host.links), closing(other):
            other.links.set_peers(host.members)
            host.links.set_peers([other.member, *host.members])
            message = Pong(7, 0, 1)
            host.links.send(NodeId("storage-1"), NodeId("controller-1"), message)
            (told,) = host.heard
            assert told[2] is message
            for sender, sent in (("controller-1", Ping(1)), ("sequencer-1", EntriesStored(1, 0, 1, 1))):
                host.links.send(NodeId(sender), other.name, sent)
            await other.received(2)
            assert {sender for sender, _ in other.inbox} == {"controller-1", "sequencer-1"}
            other.send("sequencer-1", FetchMetalog(1, 0, 1))
            other.send("controller-1", Pong(1, 0, 1))
            await host.watcher.until(lambda: len(host.heard) == 3)
            assert {(to, type(sent)) for to, _, sent in host.heard[1:]} == {
                ("sequencer-1", FetchMetalog),
                ("controller-1", Pong),
            }
            assert len(host.links._outboxes) == len(other.links._outboxes) == 1

    run(test())


def test_a_role_that_begins_anew_leaves_the_others_their_connection() -> None:
    """What waits for its former incarnation is forgotten, and nothing else is."""

    async def test() -> None:
        with Log() as log:
            host, engine = Hosting(), Node("engine-2", role=Role.ENGINE)
            with contextlib.closing(host.links), closing(engine):
                engine.links.set_peers(host.members)
                host.links.set_peers([engine.member, *host.members])
                engine.send("engine-1", IndexBatch(b"i"))
                engine.send("storage-1", StoreBatch(b"a"))
                await host.watcher.until(lambda: len(host.heard) == 2)
                (outbox,) = engine.links._outboxes.values()
                engine.send("storage-1", StoreBatch(b"lost"))
                host.links.join(NodeId("storage-1"), 2)
                changed = [
                    m if m.role is not Role.STORAGE else Member(**fields(m) | {"incarnation": 2}) for m in host.members
                ]
                engine.links.set_peers(changed)
                assert engine.links.queued_bytes(Lane.APPENDS) == 0
                assert list(engine.links._outboxes.values()) == [outbox]
                engine.send("storage-1", StoreBatch(b"b"))
                await host.watcher.until(lambda: len(host.heard) == 3)
                assert host.heard[2] == ("storage-1", "engine-2", StoreBatch(b"b"))
                assert not log.find("refused")

    run(test())


def fields(member: Member) -> dict[str, Any]:
    return {name: getattr(member, name) for name in member.__struct_fields__}
