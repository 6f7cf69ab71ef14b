"""Typed random messages, as a node with a valid key could send them: refused by the link, or borne by the core.

What a link lets through must not end a node, nor leave anything on its disk that its next start cannot read.
`FUZZ_SEEDS=1000 pytest tests/net/test_fuzzed_cores.py` runs more than the test run does.
"""

from __future__ import annotations

import enum
import os
import types
from collections.abc import Callable
from random import Random
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

import msgspec
import pytest

from boki.controller.core import ControllerConfig, ControllerCore
from boki.controller.inputs import Leadership
from boki.engine.core import EngineCore
from boki.log.batch import encode_batch
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import NodeId, make_shard
from boki.log.membership import ClusterPlan, Member, Membership, Role
from boki.net.codec import Decoder, Refusal, join_pack
from boki.net.traffic import RULES, allowed
from boki.protocol.effects import Core, Effect, Load, Store
from boki.protocol.follower import COORDINATOR
from boki.protocol.messages import InstallMembership, InstallPlan, InstallView, Message
from boki.sequencer.core import SequencerCore
from boki.storage.core import StorageCore
from tests.engine.cluster import CONFIG
from tests.members import SHARD, view
from tests.world import TICK_US, MemoryDisk

SEEDS = int(os.environ.get("FUZZ_SEEDS", "6"))
MESSAGES = 250
NUMBERS = (0, 1, 2, 3, 7, SHARD, 254, 255, 256, 1 << 20, (1 << 31) - 1, 1 << 32, 1 << 43, 1 << 62, (1 << 63) - 1)
BAD_NUMBERS = (-1, -(1 << 62), 1 << 63, (1 << 64) - 1)
NAMES = tuple(f"{role}-{number}" for role in ("storage", "sequencer", "engine", "controller") for number in (1, 2, 9))
CORES: dict[Role, Callable[[MemoryDisk], Core[Any]]] = {
    Role.STORAGE: lambda disk: StorageCore(NodeId("storage-1"), 1, disk),
    Role.SEQUENCER: lambda disk: SequencerCore(NodeId("sequencer-1"), 1, disk),
    Role.ENGINE: lambda disk: EngineCore(NodeId("engine-1"), 7, disk, CONFIG),
    Role.CONTROLLER: lambda _disk: ControllerCore(NodeId("controller-1"), 1, ControllerConfig()),
}


class Drawn:
    """Values of the types of messages' fields: mostly small or the largest ones, now and then what is out of range."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def value(self, kind: Any) -> Any:
        rng, origin, arguments = self.rng, get_origin(kind), get_args(kind)
        if isinstance(kind, NewType):
            return rng.choice(NAMES)
        if kind is int or origin is Annotated:
            return rng.choice(BAD_NUMBERS if rng.random() < 0.02 else NUMBERS[:4] if rng.random() < 0.6 else NUMBERS)
        if kind in (str, bytes, bool, float, type(None), None, Any):
            plain = {str: rng.choice(NAMES), bytes: self.some_bytes(), bool: rng.random() < 0.5, float: rng.random()}
            return plain.get(kind)
        if origin is Literal:
            return rng.choice(arguments)
        if origin in (Union, types.UnionType):
            return self.value(rng.choice(arguments))
        if origin in (tuple, list):
            if origin is list or arguments[-1] is ...:
                return [self.value(arguments[0]) for _ in range(rng.randrange(3))]
            return [self.value(argument) for argument in arguments]
        if origin is dict:
            return {self.value(arguments[0]): self.value(arguments[1]) for _ in range(rng.randrange(3))}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return rng.choice(list(kind))
        fields = msgspec.structs.fields(kind)
        drawn = {field.encode_name: self.value(field.type) for field in fields}
        config = kind.__struct_config__
        tag = [config.tag] if config.tag is not None else []
        return [*tag, *drawn.values()] if config.array_like else drawn

    def some_bytes(self) -> bytes:
        """A batch with numbers of every kind, or rubbish."""
        rng = self.rng
        if rng.random() < 0.3:
            return rng.randbytes(rng.randrange(40))
        count = rng.randrange(1, 4)
        chunk = encode_chunk("book", [Group([(b"x", ("tag",))] * count)])
        first_lid = rng.choice((*NUMBERS, (1 << 64) - 1, (1 << 64) - 4))
        shard = rng.choice((SHARD, make_shard(7, 1), (1 << 64) - 1))
        return encode_batch(
            rng.choice((1, 1, 1, 0, 2, 1 << 31)), rng.choice((0, 0, 1, 255)), shard, first_lid, [(chunk, count)]
        )


def settle(core: Core[Any], effects: list[Effect], disk: MemoryDisk, now_us: int) -> None:
    """Carry out what the core does to itself; what it tells others is lost."""
    waiting = list(effects)
    for _ in range(1000):
        if not waiting:
            return
        effect = waiting.pop(0)
        if isinstance(effect, Store):
            disk.write(effect.writes)
            waiting += effect.then
        elif isinstance(effect, Load):
            waiting += core.receive(core.node, disk.load(effect), now_us)  # type: ignore[attr-defined]
        elif getattr(effect, "to", None) == core.node:  # type: ignore[attr-defined]
            waiting += core.receive(effect.to, effect.message, now_us)  # type: ignore[union-attr]
    raise AssertionError("a core is never done with itself")


def members() -> Membership:
    names = {Role.STORAGE: view().storage, Role.SEQUENCER: view().sequencers, Role.ENGINE: (NodeId("engine-1"),)}
    return Membership(
        number=1,
        members=tuple(Member(node=node, role=role, incarnation=1, lanes={}) for role in names for node in names[role]),
    )


def begin(role: Role, disk: MemoryDisk) -> Core[Any]:
    core = CORES[role](disk)
    for message in (InstallView((view(),)), InstallMembership(members()), InstallPlan(ClusterPlan(version=1))):
        if type(message) in core.HEARS:
            settle(core, list(core.receive(COORDINATOR, message, 0)), disk, 0)
    if role is Role.CONTROLLER:
        settle(core, list(core.receive(COORDINATOR, Leadership(is_leader=True, is_connected=True), 0)), disk, 0)
    return core


@pytest.mark.parametrize("role", CORES)
def test_no_message_that_a_link_lets_through_ends_a_node_or_spoils_its_disk(role: Role) -> None:
    """Whatever its numbers are: nothing is raised, then or at the next start from what was stored."""
    taken = refused = 0
    for seed in range(SEEDS):
        rng = Random(f"{role}/{seed}")
        drawn, disk = Drawn(rng), MemoryDisk()
        core, now_us = begin(role, disk), TICK_US
        for _ in range(MESSAGES):
            sender = rng.choice(NAMES)
            kinds = sorted(allowed(Role(sender.split("-")[0])) & RULES.keys(), key=lambda kind: kind.__name__)
            kind = rng.choice([kind for kind in kinds if kind.__module__ == Message.__module__])
            place = msgspec.msgpack.encode(drawn.value(kind))
            try:
                (message,) = Decoder(kinds).decode(memoryview(join_pack(b"", [place])), ())
            except Refusal:
                refused += 1
                continue
            taken += 1
            now_us += rng.choice((0, 1000, TICK_US))
            if type(message) in core.HEARS:
                settle(core, list(core.receive(NodeId(sender), message, now_us)), disk, now_us)
            settle(core, list(core.settle(now_us)), disk, now_us)
            settle(core, list(core.tick(now_us)), disk, now_us)
        core = begin(role, disk)
        settle(core, list(core.tick(now_us)), disk, now_us)
    assert taken > refused > 0
