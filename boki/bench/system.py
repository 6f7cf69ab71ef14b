"""The system that a benchmark measures: one of its own in a temporary directory, or a running one behind a URL."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boki.client import BlockingClient
from boki.config.loading import DevConfig, Durability
from boki.config.up import UpConfig
from boki.errors import ConfigError
from boki.host.file_systems import MEMORY_FILE_SYSTEMS, file_system_of
from boki.launch.child import Child

LOAD_FUNCTIONS = Path(__file__).parent / "load_functions"
NEED_CLUSTER = frozenset({"failover", "scaling", "repair", "flow-takeover"})
NEED_OWN_SYSTEM = NEED_CLUSTER.union(
    ("cold-start", "restart", "memory", "idle", "flow-soak", "flow-sleepers", "peers", "floor")
)


@dataclass(frozen=True, slots=True)
class Options:
    """What all benchmarks take. `url` empty: a system of one's own, with these replicas and this durability.

    `scratch` is where its data directory is made: it must be on a disk for figures with fsync to mean anything.
    """

    url: str = ""
    token: str = ""
    is_cluster: bool = False
    """A system of one's own is a whole cluster: three nodes that play all roles."""
    is_separate: bool = False
    """Every role of that cluster is a process of its own."""
    replicas: int = 1
    logs: int = 1
    durability: Durability = "fsync"
    rounds: int = 3
    duration_s: float = 3.0
    scratch: Path | None = None
    inflight: tuple[int, ...] = ()
    """Empty: what the benchmark's targets speak of."""
    size_bytes: int = 1024
    record_count: int = 1_000_000
    sleepers: int = 0
    """Workflows that fall asleep; 0: a tenth of `record_count`."""
    with_peers: bool = False
    """Measure other systems in the same run, in turns."""
    speculates: bool | None = None
    """Whether cuts run ahead of reports; None: as a cluster has it by default."""
    is_traced: bool = False
    """Of append: where the time of one append goes."""
    with_apps: bool = False
    """Measure the example applications of workflows instead of single workflows."""

    def check(self, names: Collection[str]) -> None:
        """Refuse what no system could be measured with, before anything is. `ConfigError` says why."""
        if not self.is_cluster and (clusters := sorted(NEED_CLUSTER.intersection(names))):
            raise ConfigError(f"{', '.join(clusters)} need a cluster: say --cluster")
        if self.with_peers and (self.url or self.durability != "fsync"):
            raise ConfigError("--peers compares systems on this machine that sync: leave --url and --durability out")
        if self.is_traced and (self.url or list(names) != ["append"]):
            raise ConfigError("--trace shows where the time of append goes in a system of its own: name append alone")
        if "floor" in names and not self.size_bytes:
            raise ConfigError("floor counts bytes to know which records have arrived: say --size-bytes 1 or more")
        if self.is_separate and not self.is_cluster:
            raise ConfigError("--separate is a layout of clusters: say --cluster")
        has_clusters = self.is_cluster or set(names) == {"peers"}  # which starts them itself
        if self.speculates is not None and not has_clusters:
            raise ConfigError("how cuts go is a matter of clusters: say --cluster, or name peers alone")
        if self.is_cluster and self.url:
            raise ConfigError("--cluster starts a cluster of its own: leave --url out")
        if not self.url:
            self.config(Path("data"), LOAD_FUNCTIONS)
        elif alone := sorted(NEED_OWN_SYSTEM.intersection(names)):
            raise ConfigError(f"{', '.join(alone)} need a system of their own: leave --url out")

    def config(self, data: Path, functions: Path) -> DevConfig | UpConfig:
        """The system of one's own."""
        if self.is_cluster:
            return UpConfig(
                data=data,
                functions=functions,
                port=0,
                separate=self.is_separate,
                replicas=self.replicas,
                write_quorum=self.replicas // 2 + 1,
                storage=max(3, self.replicas),
                logs=self.logs,
                durability=self.durability,
                speculative_cuts=self.speculates is not False,
            )
        return DevConfig(
            data=data,
            functions=functions,
            port=0,
            replicas=self.replicas,
            logs=self.logs,
            durability=self.durability,
            reload=False,
        )

    @property
    def sleeper_count(self) -> int:
        """Workflows that fall asleep."""
        return self.sleepers or max(1_000, self.record_count // 10)

    @property
    def folder(self) -> Path:
        """Where the data of a system of one's own is made."""
        return self.scratch or Path(tempfile.gettempdir())

    @property
    def is_in_memory(self) -> bool:
        """Whether that is a place where fsync means nothing, though it is to be measured."""
        return not self.url and self.durability == "fsync" and file_system_of(self.folder) in MEMORY_FILE_SYSTEMS


@dataclass(frozen=True, slots=True)
class Target:
    """A system under load."""

    client: BlockingClient
    url: str
    token: str
    child: Child | None

    def run(self, function: str, payload: Any, kind: type[Any], *, key: str | None = None) -> Any:
        """One call of a load function, with time enough for a long round."""
        return self.client.invoke(function, payload, result_type=kind, timeout_s=600, key=key)


@contextlib.contextmanager
def target(options: Options, *, functions: Path = LOAD_FUNCTIONS) -> Iterator[Target]:
    """The system that the options name; one of its own is killed and its data removed at the end."""
    if options.url:
        with BlockingClient(options.url, token=options.token) as client:
            yield Target(client, options.url, options.token, None)
        return
    with tempfile.TemporaryDirectory(prefix="boki-bench-", dir=options.folder) as folder:
        config = options.config(Path(folder, "data"), functions)
        with Child(config).start() as child, BlockingClient(child.url) as client:
            yield Target(client, child.url, "", child)
