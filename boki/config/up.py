"""What `boki up` is told: how many nodes of each role, where their data is, and what they all must agree on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from msgspec.structs import force_setattr

from boki.config.loading import (
    AppendBuffer,
    AuxCacheSize,
    BatchSize,
    CacheSize,
    Config,
    Cors,
    DiskReserve,
    Drain,
    DurabilityField,
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
)
from boki.config.rules import address_problems, budget_problems, chroot_problems, quorum_problems, zookeeper_problems
from boki.log.limits import MIB, Limits
from boki.log.membership import Role


class UpConfig(Config, frozen=True, kw_only=True):
    """`boki up`: a cluster on this machine, of nodes that play all roles, or (`separate`) one process a role."""

    data: Annotated[
        Path, Meta(description="Directory that holds all data, under cluster/; made if it is not there.")
    ] = Path(".boki")
    functions: Annotated[Path, Meta(description="Folder whose modules register functions, until `boki deploy`.")] = (
        Path("functions")
    )
    functions_version: FunctionsVersion = "deployed"
    host: Host = "127.0.0.1"
    port: Port = 8080
    token: Token = ""
    insecure: Insecure = False
    separate: Annotated[
        bool, Meta(description="Run each role as a process of its own, instead of all roles in each of three nodes.")
    ] = False
    engines: Annotated[
        int, Meta(ge=0, le=64, description="Engines: they run functions and serve the log; 0: 3, separate 2.")
    ] = 0
    storage: Annotated[int, Meta(ge=1, le=64, description="Storage nodes, each with its own directory.")] = 3
    sequencers: Annotated[int, Meta(ge=1, le=15, description="Sequencers, an odd number.")] = 3
    controllers: Annotated[
        int, Meta(ge=0, le=15, description="Controllers: one leads, the others wait; 0: 3, separate 2.")
    ] = 0
    zookeeper: Annotated[
        str, Meta(description="host:port,... of a ZooKeeper that runs already; empty: one is started.")
    ] = ""
    zookeeper_access: ZooKeeperAccess = ZooKeeperAccess()
    chroot: Annotated[str, Meta(description="Path in ZooKeeper under which the cluster keeps everything.")] = "/boki"
    replicas: Annotated[int, Meta(ge=1, le=15, description="Storage nodes that hold each record.")] = 3
    write_quorum: Annotated[
        int, Meta(ge=1, le=15, description="Storage nodes that hold a record before it counts.")
    ] = 2
    logs: Annotated[
        int, Meta(ge=1, le=255, description="Physical logs at the first start; later: `boki reconfigure`.")
    ] = 1
    index_replicas: Annotated[int, Meta(ge=0, le=64, description="Engines that hold the index; 0: all.")] = 0
    speculative_cuts: Annotated[
        bool, Meta(description="Let cuts run ahead of reports: one sync for an append on three nodes with all roles.")
    ] = True
    durability: DurabilityField = "fsync"
    index_memory_bytes: IndexMemory = 256 * MIB
    cache_bytes: CacheSize = 256 * MIB
    aux_cache_bytes: AuxCacheSize = 32 * MIB
    append_buffer_bytes: AppendBuffer = 64 * MIB
    batch_bytes: BatchSize = MIB
    write_buffer_bytes: WriteBuffer = 64 * MIB
    disk_reserve_bytes: DiskReserve = 256 * MIB
    keep_calls_s: KeepCalls = 86_400.0
    drain_s: Drain = 10.0
    log_format: LogFormatField = "console"
    log_level: LogLevel = "info"
    cors: Cors = Cors()
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        force_setattr(self, "zookeeper", re.sub(r"\s*,\s*", ",", self.zookeeper.strip()))
        super().__post_init__()

    def problems(self) -> list[str]:
        """See `Config.problems`."""
        found = []
        if self.replicas > self.storage:
            found.append(
                f"replicas is {self.replicas} and storage is {self.storage}: each replica needs a storage node"
            )
        found += quorum_problems(self.replicas, self.write_quorum, self.sequencers)
        engines = self.counts[Role.ENGINE]
        if self.index_replicas > engines:
            found.append(
                f"index_replicas is {self.index_replicas} and engines is {engines}: each replica needs an engine"
            )
        found += budget_problems(
            self.limits,
            keep_calls_s=self.keep_calls_s,
            cache_bytes=self.cache_bytes,
            append_buffer_bytes=self.append_buffer_bytes,
        )
        found += address_problems(self.host, self.token, self.insecure)
        found += zookeeper_problems(self.zookeeper) if self.zookeeper else []
        found += chroot_problems(self.chroot)
        if self.zookeeper_access.digest and not self.zookeeper:
            found.append(
                "zookeeper_access.digest is for a ZooKeeper that runs already, and boki up starts one with a digest of "
                "its own: set zookeeper, too, or leave the digest out"
            )
        if self.zookeeper_access.tls and not self.zookeeper:
            found.append(
                "zookeeper_access.tls is for a ZooKeeper that runs already, and boki up starts one without TLS: set "
                "zookeeper, too, or leave tls, ca, certificate and key out"
            )
        return found

    @property
    def counts(self) -> Mapping[Role, int]:
        """How many times each role is played. A gateway stands beside each engine, or there is one."""
        default = 2 if self.separate else 3
        engines = self.engines or default
        return {
            Role.CONTROLLER: self.controllers or default,
            Role.SEQUENCER: self.sequencers,
            Role.STORAGE: self.storage,
            Role.ENGINE: engines,
            Role.GATEWAY: 1 if self.separate else engines,
        }

    @property
    def folder(self) -> Path:
        """Where everything of the cluster is, as an absolute path."""
        return (self.data / "cluster").resolve()
