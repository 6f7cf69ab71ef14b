"""What `boki start ROLE` is told: one configuration for each role, over what all nodes share.

The nodes of one machine can share one `boki.toml`: a role leaves the keys of the others to them, and each node keeps
its data in a folder of its own name. What the whole cluster must agree on (`logs`, `replicas`, ...) is read by
controllers, and only counts at the very first start; from then on it stands in ZooKeeper, and `boki reconfigure`
changes it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta

from boki.config.loading import (
    AppendBuffer,
    AuxCacheSize,
    BatchSize,
    CacheSize,
    Config,
    Cors,
    DiskReserve,
    Drain,
    Durability,
    FunctionsVersion,
    Host,
    IndexMemory,
    Insecure,
    KeepCalls,
    LogFormatField,
    LogLevel,
    Port,
    Token,
    WriteBuffer,
    ZooKeeperAccess,
    load,
    settings,
)
from boki.config.rules import (
    address_problems,
    are_addresses,
    budget_problems,
    chroot_problems,
    is_loopback,
    quorum_problems,
    zookeeper_problems,
)
from boki.log.ids import NodeId, check_name
from boki.log.limits import KIB, MIB, Limits
from boki.log.membership import ClusterPlan, Role, role_name


class NodeConfig(Config, frozen=True, kw_only=True):
    """What every node is told."""

    name: Annotated[str, Meta(description="The node's name; no other node of the cluster has it.")] = ""
    data: Annotated[Path, Meta(description="Directory of all nodes' data here; each has a folder of its name.")] = Path(
        ".boki"
    )
    zookeeper: Annotated[str, Meta(description="host:port,... of the ZooKeeper that coordinates the cluster.")] = (
        "127.0.0.1:2181"
    )
    chroot: Annotated[str, Meta(description="Path in ZooKeeper under which the cluster keeps everything.")] = "/boki"
    zookeeper_access: ZooKeeperAccess = ZooKeeperAccess()
    session_s: Annotated[
        float, Meta(ge=0.5, le=60, description="Silence after which ZooKeeper gives this process up.")
    ] = 6.0
    link_host: Annotated[str, Meta(description="Address to listen on for the other nodes.")] = "127.0.0.1"
    advertise: Annotated[str, Meta(description="Name or address under which they find it; empty: link_host.")] = ""
    control_port: Annotated[int, Meta(ge=0, le=65_535, description="Port for what must be quick; 0: any.")] = 0
    appends_port: Annotated[int, Meta(ge=0, le=65_535, description="Port for batches of records; 0: any.")] = 0
    reads_port: Annotated[int, Meta(ge=0, le=65_535, description="Port for what is fetched, and calls; 0: any.")] = 0
    proxy: Annotated[
        str, Meta(description="host:port of a SOCKS5 proxy that all links to other nodes go through; empty: none.")
    ] = ""
    keys: Annotated[
        str,
        Meta(description="Directory with the keys that boki keygen made; empty: links are neither secret nor safe."),
    ] = ""
    durability: Annotated[
        Durability,
        Meta(description="fsync, or memory: a power cut loses appends that returned. The same at all nodes."),
    ] = "fsync"
    write_buffer_bytes: WriteBuffer = 64 * MIB
    stall_s: Annotated[
        float, Meta(gt=0, description="A log that grows for this long while nothing of it is applied is reported.")
    ] = 5.0
    log_format: LogFormatField = "console"
    limits: Limits = Limits()

    def problems(self) -> list[str]:
        """See `Config.problems`."""
        found = []
        try:
            check_name(self.name, "name")
        except ValueError as error:
            found.append(
                str(error) if self.name else "name is empty: say with --name which node of the cluster this is"
            )
        found += zookeeper_problems(self.zookeeper)
        if self.proxy and not are_addresses(self.proxy):
            found.append(f"proxy is {self.proxy!r}: expected host:port")
        found += chroot_problems(self.chroot)
        if not self.keys and not is_loopback(self.link_host):
            found.append(
                f"link_host {self.link_host} is open to others and keys is empty: run boki keygen, and name its folder"
            )
        found += _unusable(self.data, "data")
        return found

    @property
    def node(self) -> NodeId:
        """The node's name."""
        return NodeId(self.name)

    @property
    def directory(self) -> Path:
        """Where the node's own data is."""
        return self.data / self.name

    @property
    def link_ports(self) -> tuple[int, int, int]:
        """Ports of the lanes control, appends and reads; 0: any free one."""
        return self.control_port, self.appends_port, self.reads_port


class GatewayNodeConfig(NodeConfig, frozen=True, kw_only=True):
    """`boki start gateway`: HTTP in, calls and log operations out."""

    host: Host = "127.0.0.1"
    port: Port = 8080
    reuse_port: Annotated[bool, Meta(description="Share the port with other gateways of this machine and user.")] = (
        False
    )
    token: Token = ""
    insecure: Insecure = False
    cors: Cors = Cors()
    drain_s: Drain = 10.0

    def problems(self) -> list[str]:
        """See `Config.problems`."""
        return NodeConfig.problems(self) + address_problems(self.host, self.token, self.insecure)


class EngineNodeConfig(NodeConfig, frozen=True, kw_only=True):
    """`boki start engine`: runs functions, holds the index, serves log operations."""

    functions: Annotated[Path, Meta(description="Folder whose modules register functions, until `boki deploy`.")] = (
        Path("functions")
    )
    functions_version: FunctionsVersion = "deployed"
    log_level: LogLevel = "info"
    index_memory_bytes: IndexMemory = 256 * MIB
    cache_bytes: CacheSize = 256 * MIB
    aux_cache_bytes: AuxCacheSize = 32 * MIB
    append_buffer_bytes: AppendBuffer = 64 * MIB
    batch_bytes: BatchSize = MIB
    drain_s: Drain = 10.0
    keep_calls_s: KeepCalls = 86_400.0

    def problems(self) -> list[str]:
        """See `Config.problems`."""
        return NodeConfig.problems(self) + budget_problems(
            self.limits,
            keep_calls_s=self.keep_calls_s,
            cache_bytes=self.cache_bytes,
            append_buffer_bytes=self.append_buffer_bytes,
        )


class StorageNodeConfig(NodeConfig, frozen=True, kw_only=True):
    """`boki start storage`: keeps records."""

    disk_reserve_bytes: DiskReserve = 256 * MIB
    repair_bytes_per_s: Annotated[
        int, Meta(ge=64 * KIB, description="How fast lost replicas are copied, so that others go on.")
    ] = 64 * MIB


class SequencerNodeConfig(NodeConfig, frozen=True, kw_only=True):
    """`boki start sequencer`: orders records."""


class ControllerNodeConfig(NodeConfig, frozen=True, kw_only=True):
    """`boki start controller`: changes terms, moves shards. The rest is the plan of a cluster that has none yet."""

    logs: Annotated[int, Meta(ge=1, le=255, description="Physical logs that the LogBooks share.")] = 1
    sequencers: Annotated[int, Meta(ge=1, le=15, description="Sequencers of a term, an odd number.")] = 3
    replicas: Annotated[int, Meta(ge=1, le=15, description="Storage nodes that hold each record.")] = 3
    write_quorum: Annotated[
        int, Meta(ge=1, le=15, description="Storage nodes that hold a record before it counts.")
    ] = 2
    index_replicas: Annotated[int, Meta(ge=0, le=64, description="Engines that hold the index; 0: all.")] = 0
    speculative_cuts: Annotated[
        bool, Meta(description="Let cuts run ahead of reports: one sync for an append on three nodes with all roles.")
    ] = True
    failure_timeout_s: Annotated[
        float, Meta(ge=0.1, description="A node that answers no heartbeat for this long is taken for dead.")
    ] = 0.5
    repair_after_s: Annotated[
        float, Meta(ge=0, description="A storage node gone for this long is replaced by a spare one.")
    ] = 60.0
    move_primary_after_s: Annotated[
        float,
        Meta(
            ge=0,
            description="Age from which a term is ended to move a primary to the node that appends; 0: never.",
        ),
    ] = 300.0

    def problems(self) -> list[str]:
        """See `Config.problems`."""
        return NodeConfig.problems(self) + quorum_problems(self.replicas, self.write_quorum, self.sequencers)

    @property
    def plan(self) -> ClusterPlan:
        """What a new cluster begins with."""
        return ClusterPlan(
            logs=self.logs,
            sequencers=self.sequencers,
            replicas=self.replicas,
            write_quorum=self.write_quorum,
            index_replicas=self.index_replicas,
            speculative_cuts=self.speculative_cuts,
        )


CONFIGS: Mapping[Role, type[NodeConfig]] = {
    Role.GATEWAY: GatewayNodeConfig,
    Role.ENGINE: EngineNodeConfig,
    Role.STORAGE: StorageNodeConfig,
    Role.SEQUENCER: SequencerNodeConfig,
    Role.CONTROLLER: ControllerNodeConfig,
}


_HOSTED: Final = (Role.STORAGE, Role.SEQUENCER, Role.ENGINE, Role.CONTROLLER)


class HostConfig(NodeConfig, frozen=True, kw_only=True):
    """`boki start node`: one process that plays several roles, each configured as a node of its own."""

    roles: Annotated[str, Meta(description="What the node does, of storage,sequencer,engine,controller,gateway.")] = (
        ",".join(_HOSTED)
    )

    def problems(self) -> list[str]:
        """See `Config.problems`."""
        found = NodeConfig.problems(self)
        words = self.roles.split(",")
        if unknown := [word for word in words if word not in set(Role)]:
            found.append(f"roles is {self.roles!r}: {unknown[0]!r} is none of {', '.join(CONFIGS)}")
        if len(set(words)) < len(words):
            found.append(f"roles is {self.roles!r}: name each role once")
        return found

    @property
    def hosted(self) -> tuple[Role, ...]:
        """The roles, in an order of their own."""
        words = self.roles.split(",")
        return tuple(role for role in (*_HOSTED, Role.GATEWAY) if role in words)


ALL_CONFIGS: Final[tuple[type[NodeConfig], ...]] = (HostConfig, *CONFIGS.values())


def load_host(
    *, flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None
) -> tuple[HostConfig, dict[Role, NodeConfig]]:
    """The configuration of a node that plays several roles, and of each of them, as `load_node` finds it.

    Each role has a name, and with it a directory, of its own.
    """
    others = _all_settings()
    given = {name: value for name, value in flags.items() if name in {one.name for one in settings(HostConfig)}}
    host = load(HostConfig, flags=given, environment=environment, file=file, others=others)
    roles = {}
    for role in host.hosted:
        known = {setting.name for setting in settings(CONFIGS[role])}
        own = {name: value for name, value in flags.items() if name in known}
        own["name"] = role_name(host.node, role)
        roles[role] = load_node(role, flags=own, environment=environment, file=file)
    return host, roles


def _all_settings() -> set[str]:
    return {setting.name for kind in ALL_CONFIGS for setting in settings(kind)}


def load_node(
    role: Role, *, flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None
) -> NodeConfig:
    """The configuration of a node of that role, as `boki.config.loading.load` finds it.

    Keys that only other roles have are theirs. `ConfigError` lists every problem.
    """
    return load(CONFIGS[role], flags=flags, environment=environment, file=file, others=_all_settings())


def _unusable(path: Path, name: str) -> list[str]:
    """Why nothing can be written there; it is made if it is not there."""
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return [f"{name} is {path}: {place} is not a directory"]
    if not os.access(place, os.W_OK | os.X_OK):
        return [f"{name} is {path}: {place} is not writable for this user"]
    return []
