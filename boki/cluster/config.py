"""What `boki up` is told: how many nodes of each role, where their data is, and what they all must agree on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from boki.config import Config, Durability, Host, LogFormat, Port, Token, is_loopback
from boki.log.limits import KIB, MIB, Limits


class UpConfig(Config, frozen=True, kw_only=True):
    """`boki up`: every role as processes of its own on this machine."""

    data: Annotated[
        Path, Meta(description="Directory that holds all data, under cluster/; made if it is not there.")
    ] = Path(".boki")
    functions: Annotated[Path, Meta(description="Folder whose modules register functions, until `boki deploy`.")] = (
        Path("functions")
    )
    host: Host = "127.0.0.1"
    port: Port = 8080
    token: Token = ""
    insecure: Annotated[bool, Meta(description="Listen on any address without a token.")] = False
    engines: Annotated[int, Meta(ge=1, le=64, description="Engines: they run functions and serve the log.")] = 2
    storage: Annotated[int, Meta(ge=1, le=64, description="Storage nodes, each with its own directory.")] = 3
    sequencers: Annotated[int, Meta(ge=1, le=15, description="Sequencers, an odd number.")] = 3
    controllers: Annotated[int, Meta(ge=1, le=15, description="Controllers; one leads, the others wait.")] = 2
    zookeeper: Annotated[
        str, Meta(description="host:port,... of a ZooKeeper that runs already; empty: one is started.")
    ] = ""
    chroot: Annotated[str, Meta(description="Path in ZooKeeper under which the cluster keeps everything.")] = "/boki"
    replicas: Annotated[int, Meta(ge=1, le=15, description="Storage nodes that hold each record.")] = 3
    write_quorum: Annotated[
        int, Meta(ge=1, le=15, description="Storage nodes that hold a record before it counts.")
    ] = 2
    logs: Annotated[
        int, Meta(ge=1, le=255, description="Physical logs at the first start; later: `boki reconfigure`.")
    ] = 1
    index_replicas: Annotated[int, Meta(ge=0, le=64, description="Engines that hold the index; 0: all.")] = 0
    durability: Annotated[
        Durability,
        Meta(
            description="fsync: an append is on disks when it returns. memory: a power cut loses appends that returned."
        ),
    ] = "fsync"
    index_memory_bytes: Annotated[int, Meta(ge=MIB, description="An engine's budget for the index.")] = 256 * MIB
    cache_bytes: Annotated[int, Meta(ge=MIB, description="An engine's budget for the record cache.")] = 256 * MIB
    aux_cache_bytes: Annotated[int, Meta(ge=64 * KIB, description="An engine's budget for auxiliary data.")] = 32 * MIB
    append_buffer_bytes: Annotated[
        int, Meta(ge=MIB, description="Appends that wait at an engine for their order; beyond it they are refused.")
    ] = 64 * MIB
    batch_bytes: Annotated[int, Meta(ge=4 * KIB, description="Appends travel in batches of about this size.")] = MIB
    disk_reserve_bytes: Annotated[
        int, Meta(ge=0, description="Appends are refused when a storage node's disk has less room than this.")
    ] = 64 * MIB
    keep_calls_s: Annotated[
        float, Meta(gt=0, description="How long results of asynchronous calls and idempotency keys are kept.")
    ] = 86_400.0
    drain_s: Annotated[float, Meta(ge=0, description="How long a stop waits for calls that still run.")] = 10.0
    log_format: Annotated[LogFormat, Meta(description="console: for people. json: one object a line.")] = "console"
    limits: Limits = Limits()

    def problems(self) -> list[str]:
        """See `Config.problems`."""
        found = []
        if self.replicas > self.storage:
            found.append(f"replicas is {self.replicas}, but there are only {self.storage} storage nodes")
        if self.write_quorum > self.replicas:
            found.append(f"write_quorum is {self.write_quorum}, but there are only {self.replicas} replicas")
        if self.sequencers % 2 == 0:
            found.append(f"sequencers is {self.sequencers}: an even number tolerates no more losses than one less")
        if self.index_replicas > self.engines:
            found.append(f"index_replicas is {self.index_replicas}, but there are only {self.engines} engines")
        if not self.token and not self.insecure and not is_loopback(self.host):
            found.append(f"host {self.host} is open to others: set a token, or say insecure if you mean it")
        return found

    @property
    def folder(self) -> Path:
        """Where everything of the cluster is, as an absolute path."""
        return (self.data / "cluster").resolve()
