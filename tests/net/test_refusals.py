"""Who is not heard, and why: the reason stands in both sides' logs, once, and nothing is delivered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from boki.log.ids import NodeId
from boki.log.membership import Member, Role
from boki.net.codec import Envelope, encode_envelope
from boki.net.keys import make_keys
from boki.net.traffic import Lane
from boki.protocol.messages import AskTail, Metalog, Ping, Pong, Seal, StoreBatch
from tests.net.nodes import Log, Node, closing, keys_for, run

METALOG = Metalog(1, 0, 0, (), 0)


def test_another_cluster_is_refused() -> None:
    """Nodes of two clusters that find each other's addresses say so, and take nothing."""

    async def test() -> None:
        with Log() as log:
            engine, storage = Node("engine-1", cluster="blue"), Node("storage-1", cluster="green")
            with closing(engine, storage):
                engine.send("storage-1", StoreBatch(b"x"))
                await log.says("storage-1: refused", "'blue'", "'green'")
                await log.says("engine-1: storage storage-1", "refuses", "'blue'", "'green'")
                assert not storage.inbox
                assert storage.links.counts[Lane.APPENDS].refused_count == 1

    run(test())


def change(prefix: bytes, **changes: Any) -> bytes:
    fields = {"cluster": "cluster", "sender": "engine-1", "role": Role.ENGINE, "incarnation": 1}
    assert encode_envelope(Envelope(**fields, to=NodeId("storage-1"), to_incarnation=1)) == prefix  # type: ignore[arg-type]
    return encode_envelope(Envelope(**(fields | {"to": "storage-1", "to_incarnation": 1} | changes)))


WRONG: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda prefix: prefix.replace(b"boki\x01", b"boki\x02"), "protocol version 2, and here it is 1"),
    (lambda prefix: change(prefix, to=NodeId("storage-2")), "it is for 'storage-2', and this is storage-1"),
    (lambda prefix: change(prefix, to_incarnation=2), "it is for incarnation 2, and storage-1 is 1"),
    (lambda prefix: change(prefix, incarnation=0), "it is of incarnation 0, and engine-1 is 1 by now"),
    (lambda prefix: prefix[:7] + b"\xff" + prefix[8:], "an envelope that cannot be read"),
]


@pytest.mark.parametrize(("wrong", "reason"), WRONG, ids=[reason[:24] for _, reason in WRONG])
def test_a_wrong_envelope_is_refused(wrong: Callable[[bytes], bytes], reason: str) -> None:
    """Version, addressee, incarnations: each is named on both sides, once, however many messages come."""

    async def test() -> None:
        with Log() as log:
            engine, storage = Node("engine-1"), Node("storage-1")
            with closing(engine, storage):
                peer = engine.links._peers[NodeId("storage-1")]
                good = engine.links._address(engine.name, peer)
                peer.prefixes[engine.name] = wrong(good)
                engine.send("storage-1", StoreBatch(b"x"))
                await log.says("storage-1: refused", reason)
                await log.says("engine-1: storage storage-1", "refuses", reason)
                for _ in range(2):
                    engine.send("storage-1", StoreBatch(b"x"))
                    engine.links._flush()
                peer.prefixes[engine.name] = good
                engine.send("storage-1", StoreBatch(b"y"))
                assert await storage.received(1) == [StoreBatch(b"y")]
                assert storage.links.counts[Lane.APPENDS].refused_count == 3
                assert len(log.find(reason)) == 2

    run(test())


def test_a_role_sends_only_what_it_may() -> None:
    """An engine cannot publish, a storage node cannot seal; the connection continues to serve what is allowed."""

    async def test() -> None:
        with Log() as log:
            engine, sequencer, storage = Node("engine-1"), Node("sequencer-1"), Node("storage-1")
            with closing(engine, sequencer, storage):
                engine.send("sequencer-1", METALOG)
                await log.says("sequencer-1: refused", "engine engine-1 may not send Metalog")
                await log.says("engine-1: sequencer sequencer-1", "refuses", "engine engine-1 may not send Metalog")
                storage.send("sequencer-1", Seal(1))
                await log.says("sequencer-1: refused", "storage storage-1 may not send Seal")
                engine.send("sequencer-1", AskTail(1, 0))
                assert await sequencer.received(1) == [AskTail(1, 0)]

    run(test())


def test_an_earlier_incarnation_of_a_sender_is_not_heard_any_more() -> None:
    """Once a newer one is registered, a zombie's messages are refused; before that, a newer one is welcome."""

    async def test() -> None:
        with Log() as log:
            zombie, storage = Node("engine-1"), Node("storage-1")
            reborn = Node("engine-1", incarnation=2)
            with closing(zombie, storage):
                reborn.links.set_peers([storage.member])
                reborn.send("storage-1", StoreBatch(b"new"))
                assert await storage.received(1) == [StoreBatch(b"new")]
                zombie.send("storage-1", StoreBatch(b"old"))
                assert await storage.received(2) == [StoreBatch(b"new"), StoreBatch(b"old")]
                storage.links.set_peers([reborn.member])
                zombie.send("storage-1", StoreBatch(b"older"))
                await log.says("storage-1: refused", "engine-1 is 2 by now")
                assert len(storage.inbox) == 2
            reborn.links.close()

    run(test())


def test_a_name_must_be_that_of_the_key(tmp_path: Path) -> None:
    """With the key of an engine nobody is heard as a sequencer, nor as another engine."""

    async def test() -> None:
        with Log() as log:
            engine = Node("engine-1", keys=keys_for(tmp_path, "engine-1"))
            storage = Node("storage-1", keys=keys_for(tmp_path, "storage-1"))
            with closing(engine, storage):
                peer = engine.links._peers[NodeId("storage-1")]
                prefix = engine.links._address(engine.name, peer)
                peer.prefixes[engine.name] = change(prefix, sender="sequencer-1", role=Role.SEQUENCER)
                reason = "it calls itself sequencer 'sequencer-1', and has the key of engine engine-1"
                engine.send("storage-1", METALOG)
                await log.says("storage-1: refused", reason)
                await log.says("engine-1: storage storage-1", "refuses", reason)
                assert not storage.inbox

    run(test())


def test_a_node_with_keys_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """Whoever is in no list cannot connect, and does not hear from those that are."""

    async def test() -> None:
        with Log() as log:
            ours = Node("storage-1", keys=keys_for(tmp_path / "ours", "storage-1"))
            theirs = Node("engine-1", keys=keys_for(tmp_path / "theirs", "engine-1"))
            with closing(ours, theirs):
                theirs.send("storage-1", StoreBatch(b"x"))
                await log.says("engine-1: the connection to storage storage-1", "refused")
                await log.says("storage-1: a connection to", "refused")
                assert not ours.inbox

    run(test())


def test_a_key_that_is_not_listed_is_refused_by_name(tmp_path: Path) -> None:
    """One that knows the others' keys, but is not known itself: the log says which key it came with."""

    async def test() -> None:
        keys = keys_for(tmp_path, "storage-1")
        make_keys(tmp_path / "new", {"engine-2": Role.ENGINE})
        stranger = keys_for(tmp_path / "new", "engine-2")
        known = {owner.node: owner for owner in map(keys.ring.of, map(NodeId, ["storage-1"])) if owner}
        with Log() as log:
            storage = Node("storage-1", keys=keys)
            engine = Node("engine-2", role=Role.ENGINE, keys=stranger._replace(ring=FixedRing(known)))
            with closing(storage, engine):
                engine.send("storage-1", StoreBatch(b"x"))
                await log.says("storage-1: refused a connection", stranger.own.public, "not in cluster.keys")
                await log.says("engine-2: the connection to storage storage-1", "refuses this node's key")
                assert not storage.inbox

    run(test())


class FixedRing:
    """A key list that knows some owners."""

    def __init__(self, owners: dict[NodeId, Any]) -> None:
        self._owners = owners

    def of(self, node: NodeId) -> Any:
        return self._owners.get(node)

    def owner_of(self, public: str) -> Any:
        return next((owner for owner in self._owners.values() if owner.public == public), None)


@pytest.mark.parametrize("has_keys", ["sender", "receiver"])
def test_links_with_keys_and_without_do_not_mix(has_keys: str, tmp_path: Path) -> None:
    """A node that was started without the cluster's keys is refused, and told so."""

    async def test() -> None:
        names = {"sender": "engine-1", "receiver": "storage-1"}
        settings = {names[has_keys]: {"keys": keys_for(tmp_path, names[has_keys])}}
        with Log() as log:
            engine = Node("engine-1", **settings.get("engine-1", {}))
            storage = Node("storage-1", **settings.get("storage-1", {}))
            with closing(engine, storage):
                engine.send("storage-1", StoreBatch(b"x"))
                engine.send("storage-1", Pong(1, 1, 1))
                await log.says("engine-1: the connection to storage storage-1", "refused")
                await log.says("storage-1: a connection to", "refused")
                assert not storage.inbox

    run(test())


def test_nobody_is_connected_to_whose_key_is_not_listed(tmp_path: Path) -> None:
    """What is registered for a node is a hint: the list decides, and once it has the key the peer is reached."""

    async def test() -> None:
        make_keys(tmp_path, {"engine-1": Role.ENGINE})
        with Log() as log:
            engine = Node("engine-1", keys=keys_for_one(tmp_path, "engine-1"))
            storage_lanes = {lane.name.lower(): "127.0.0.1:1" for lane in Lane}
            member = Member(node=NodeId("storage-1"), role=Role.STORAGE, incarnation=1, lanes=storage_lanes)
            with closing(engine):
                engine.links.set_peers([member])
                engine.send("storage-1", StoreBatch(b"x"))
                await log.says("engine-1: storage storage-1", "cluster.keys has another key or none")
                make_keys(tmp_path, {"storage-1": Role.STORAGE})
                storage = Node("storage-1", keys=keys_for_one(tmp_path, "storage-1"))
                with closing(engine, storage):
                    engine.send("storage-1", StoreBatch(b"y"))
                    assert await storage.received(1) == [StoreBatch(b"y")]

    run(test())


def keys_for_one(directory: Path, name: str) -> Any:
    from boki.net.keys import load_keys

    return load_keys(directory, NodeId(name))


def test_a_key_of_another_node_is_refused_at_start(tmp_path: Path) -> None:
    """A node cannot even open its links with keys that are not its own."""

    async def test() -> None:
        with pytest.raises(Exception, match="the key is that of engine-1, which may be engine, and this is"):
            Node("storage-1", keys=keys_for(tmp_path, "engine-1"))

    run(test())


def test_a_ping_from_anybody_but_a_controller_is_refused() -> None:
    """Heartbeats, too, are tied to their role."""

    async def test() -> None:
        with Log() as log:
            engine, storage = Node("engine-1"), Node("storage-1")
            with closing(engine, storage):
                engine.send("storage-1", Ping(1))
                await log.says("storage-1: refused", "engine engine-1 may not send Ping")
                assert not storage.inbox

    run(test())
