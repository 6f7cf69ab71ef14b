"""What `boki up` writes and runs: one file that every role can read, keys, and the processes in their order."""

import asyncio
import re
import tomllib
from pathlib import Path

import pytest

from boki.config.loading import ZooKeeperAccess, load, settings
from boki.config.node import ControllerNodeConfig, EngineNodeConfig, GatewayNodeConfig, load_host, load_node
from boki.config.up import UpConfig
from boki.errors import ConfigError
from boki.host.redo import RedoMissing
from boki.launch.up import launch as launching
from boki.launch.up.launch import prepare
from boki.launch.zookeeper.parts import Parts
from boki.log.limits import Limits
from boki.log.membership import Role
from boki.net.keys import DIGEST_NAME, read_digest, read_list
from boki.node.stopping import AFTER_DRAIN_S
from tests.node.test_separating import keys_of, killed_node


def config(folder: Path, **changes: object) -> UpConfig:
    return UpConfig(**{"data": folder / "data", "zookeeper": "z:1,y:2", "port": 0, **changes})  # type: ignore[arg-type]


def problems(**changes: object) -> str:
    with pytest.raises(ConfigError) as caught:
        UpConfig(**changes)  # type: ignore[arg-type]
    return str(caught.value)


def test_the_zookeeper_that_it_starts_is_the_clusters_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret beside the keys, the same at every start, for all nodes and for the server (found.md, H6)."""
    monkeypatch.setattr(launching, "find_parts", lambda: Parts(Path("/java"), ()))
    wanted = config(tmp_path, zookeeper="")
    server, node, *_ = prepare(wanted).processes
    assert node.role == "node"
    digest = read_digest(wanted.folder / "keys")
    assert re.fullmatch("boki:[0-9a-f]{40}", digest)
    assert (wanted.folder / "keys" / DIGEST_NAME).stat().st_mode & 0o077 == 0
    settings_of, _ = load_host(flags={"name": node.node}, environment={}, file=wanted.folder / "boki.toml")
    assert settings_of.zookeeper_access.digest == digest
    assert any(word.startswith("-Dzookeeper.DigestAuthenticationProvider.superDigest=boki:") for word in server.command)
    assert digest not in " ".join(server.command)
    zoo = (wanted.folder / "zookeeper" / "zoo.cfg").read_text().splitlines()
    assert {"4lw.commands.whitelist=srvr", "maxClientCnxns=256"} <= set(zoo)
    prepare(wanted)
    assert read_digest(wanted.folder / "keys") == digest


def test_every_role_can_read_the_file_that_is_written(tmp_path: Path) -> None:
    """What the user has said reaches the roles that it concerns, limits and secrets too."""
    wanted = config(
        tmp_path,
        log_format="json",
        token='s"e\\cret',
        logs=2,
        cache_bytes=64 << 20,
        drain_s=0.5,
        limits=Limits(tag_bytes=9),
        separate=True,
    )
    launch = prepare(wanted)
    file = wanted.folder / "boki.toml"
    assert file.stat().st_mode & 0o077 == 0
    nodes = {}
    for process in launch.processes:
        assert process.is_boki
        _, role, _, name, _, path = process.command
        assert Path(path) == file
        nodes[role] = load_node(Role(role), flags={"name": name}, environment={}, file=file)
    assert set(nodes) == {role.value for role in Role}
    for node in nodes.values():
        assert (node.zookeeper, node.limits.tag_bytes, node.durability) == ("z:1,y:2", 9, "fsync")
        assert node.directory == wanted.folder / "nodes" / node.name
        assert node.log_format == "json"  # found.md, A3
    gateway, engine, controller = nodes["gateway"], nodes["engine"], nodes["controller"]
    assert isinstance(gateway, GatewayNodeConfig)
    assert isinstance(engine, EngineNodeConfig)
    assert isinstance(controller, ControllerNodeConfig)
    assert gateway.token == 's"e\\cret'
    assert launch.about.url == f"http://127.0.0.1:{gateway.port}"
    assert (engine.cache_bytes, engine.drain_s, engine.functions.is_absolute()) == (64 << 20, 0.5, True)
    assert (controller.plan.logs, controller.plan.sequencers, controller.plan.replicas) == (2, 3, 3)


def test_the_default_cluster_is_three_nodes_with_all_roles(tmp_path: Path) -> None:
    """Each with one key, and a gateway that shares its port with the others."""
    wanted = config(tmp_path)
    launch = prepare(wanted)
    assert [process.node for process in launch.processes] == ["node-1", "node-2", "node-3"]
    for number, process in enumerate(launch.processes, 1):
        words = dict(zip(process.command[2::2], process.command[3::2], strict=True))
        host, roles = load_host(
            flags={name[2:]: value for name, value in words.items() if name != "--config"},
            environment={},
            file=wanted.folder / "boki.toml",
        )
        assert set(roles) == set(Role)
        assert set(process.plays) == {own.name for own in roles.values()} == {f"{role}-{number}" for role in Role}
        gateway = roles[Role.GATEWAY]
        assert isinstance(gateway, GatewayNodeConfig)
        assert gateway.reuse_port
        assert host.directory not in {own.directory for own in roles.values()}
    owners = read_list(wanted.folder / "keys/cluster.keys")
    assert [owner.node for owner in owners] == ["node-1", "node-2", "node-3"]


def test_counts_say_how_many_nodes_play_a_role(tmp_path: Path) -> None:
    """A fifth storage node is a node that plays nothing else."""
    launch = prepare(config(tmp_path, storage=5, controllers=1))
    plays = {process.node: process.plays for process in launch.processes}
    assert plays["node-5"] == ("storage-5",)
    assert set(plays["node-2"]) == {"sequencer-2", "storage-2", "engine-2", "gateway-2"}


def test_separate_roles_and_their_keys(tmp_path: Path) -> None:
    """One gateway, two engines, three storage nodes, three sequencers, two controllers; each with a key of its role."""
    wanted = config(tmp_path, separate=True)
    launch = prepare(wanted)
    roles = [process.role for process in launch.processes]
    assert {role: roles.count(role) for role in roles} == {
        "controller": 2,
        "sequencer": 3,
        "storage": 3,
        "engine": 2,
        "gateway": 1,
    }
    owners = read_list(wanted.folder / "keys/cluster.keys")
    assert {owner.node: owner.role for owner in owners} == {one.node: one.role for one in launch.processes}
    again = prepare(wanted)
    assert read_list(wanted.folder / "keys/cluster.keys") == owners
    assert [one.node for one in again.processes] == [one.node for one in launch.processes]


def test_nodes_that_were_here_before_are_started_again(tmp_path: Path) -> None:
    """With fewer storage nodes wanted than before, the data of the others must not be missing."""
    wanted = config(tmp_path)
    (wanted.folder / "nodes/storage-10").mkdir(parents=True)
    (wanted.folder / "nodes/engine-9").mkdir()
    for layout in (wanted, config(tmp_path, separate=True)):
        names = [name for process in prepare(layout).processes for name in process.plays or (process.node,)]
        assert "storage-10" in names
        assert "engine-9" not in names


def test_roles_that_shared_a_node_are_separated_before_they_start(tmp_path: Path) -> None:
    """After a kill, too. Nothing is opened that nodes with all roles will open together."""

    async def body() -> None:
        live = await killed_node(tmp_path)
        wanted = config(tmp_path, separate=True)
        wanted.folder.mkdir(parents=True)
        live.rename(wanted.folder / "nodes")
        prepare(config(tmp_path))
        with pytest.raises(RedoMissing):
            keys_of(wanted.folder / "nodes")
        prepare(wanted)
        assert keys_of(wanted.folder / "nodes") == [b"e1"]

    asyncio.run(body())


def test_whoever_is_served_by_others_stops_before_them(tmp_path: Path) -> None:
    """Gateways, then engines, then controllers, then those that keep the log; a drain has its time."""
    ranks = {process.role: process.stop_rank for process in prepare(config(tmp_path, separate=True)).processes}
    assert ranks["gateway"] < ranks["engine"] < ranks["controller"] < ranks["storage"] == ranks["sequencer"]
    slow = {process.role: process.stop_us for process in prepare(config(tmp_path, drain_s=60, separate=True)).processes}
    assert slow["engine"] > (60 + AFTER_DRAIN_S) * 1e6 > slow["storage"]
    hosts = prepare(config(tmp_path, drain_s=60)).processes
    assert all(process.stop_us == slow["engine"] for process in hosts)


def test_a_zookeeper_of_ones_own_is_run_and_stopped_last(tmp_path: Path) -> None:
    """Its data stays where it is from start to start."""
    launch = prepare(config(tmp_path, zookeeper=""))
    zookeeper = next(process for process in launch.processes if process.node == "zookeeper")
    assert not zookeeper.is_boki
    assert zookeeper.stop_rank > max(process.stop_rank for process in launch.processes if process is not zookeeper)
    assert launch.about.zookeeper.startswith("127.0.0.1:")
    assert (config(tmp_path).folder / "zookeeper/zoo.cfg").exists()


def test_what_cannot_work_is_refused_with_every_problem() -> None:
    """Nobody should have to start a cluster five times to fix five typing errors."""
    text = problems(storage=2, sequencers=4, index_replicas=4, write_quorum=4, host="0.0.0.0")
    for words in ("a storage node", "even number", "engines", "replicas", "BOKI_TOKEN"):
        assert words in text
    assert text.startswith("the configuration has 5 problems")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chroot": "boki"}, "chroot is 'boki'"),
        ({"chroot": "/"}, "chroot is '/'"),
        ({"chroot": "/boki/"}, "chroot is '/boki/'"),
        ({"zookeeper": "a"}, "zookeeper is 'a'"),
        ({"zookeeper": "a:1 b:2"}, "zookeeper is 'a:1 b:2'"),
        ({"zookeeper": "[::1]:2181"}, r"zookeeper is '\[::1\]:2181'"),
        ({"zookeeper_access": ZooKeeperAccess(tls=True)}, "zookeeper_access.tls is for a ZooKeeper that runs already"),
        ({"zookeeper_access": ZooKeeperAccess(digest="a:b")}, "zookeeper_access.digest is for a ZooKeeper that runs"),
    ],
)
def test_what_every_node_would_refuse_is_refused_before_any_is_started(changes: dict[str, object], words: str) -> None:
    """Else each of them would be started again and again, and the reason stand in its log."""
    assert re.search(words, problems(**changes))


def test_addresses_may_have_spaces_between_them(tmp_path: Path) -> None:
    """The nodes get them without."""
    wanted = config(tmp_path, zookeeper=" a:1 , b:2")
    launch = prepare(wanted)
    assert launch.about.zookeeper == "a:1,b:2"
    node, _ = load_host(flags={"name": "node-1"}, environment={}, file=wanted.folder / "boki.toml")
    assert node.zookeeper == "a:1,b:2"


def test_dev_and_up_can_share_a_file(tmp_path: Path) -> None:
    """What only the other one knows is left to it; what neither knows is a typing error."""
    from boki.config.loading import DevConfig

    file = tmp_path / "boki.toml"
    file.write_text("port = 9\nreload = false\nengines = 3\n")
    others = {setting.name for setting in settings(DevConfig)}
    loaded = load(UpConfig, flags={}, environment={"BOKI_RELOAD": "off"}, file=file, others=others)
    assert (loaded.port, loaded.engines) == (9, 3)
    file.write_text("enigines = 3\n")
    with pytest.raises(ConfigError, match="did you mean engines"):
        load(UpConfig, flags={}, environment={}, file=file, others=others)


def test_the_file_is_toml_whatever_stands_in_it(tmp_path: Path) -> None:
    """Paths with quotes and other letters, too."""
    strange = tmp_path / 'a "b" ü'
    wanted = config(strange, functions=strange / "f")
    prepare(wanted)
    text = (wanted.folder / "boki.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["functions"] == str(strange / "f")
