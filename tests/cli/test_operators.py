"""Commands for operators: keys, changes of the cluster, drains. What cannot be is refused in words."""

import os
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from boki.cli import reconfigure
from boki.cli.app import app
from boki.cli.coordination import place_of
from boki.cli.keygen import roles_of
from boki.cli.reconfigure import _changed, _drained, is_so
from boki.errors import InvalidArgument
from boki.launch.up.identity import start_mark
from boki.launch.up.state import SupervisorState, write_state
from boki.log.ids import NodeId
from boki.log.membership import ClusterPlan, Member, Membership, Role
from boki.log.view import View
from boki.net.keys import DIGEST_NAME, read_list, roles_text

PLAN = ClusterPlan(version=4)


def registered(**counts: int) -> Membership:
    members = tuple(
        Member(node=NodeId(f"{role}-{number}"), role=Role(role), incarnation=number)
        for role, count in counts.items()
        for number in range(1, count + 1)
    )
    return Membership(number=1, members=members)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"BOKI_ZOOKEEPER": None, "BOKI_CHROOT": None, "BOKI_DATA": None})


def test_keys_are_made_for_a_default_cluster_and_kept(tmp_path: Path) -> None:
    """A second run makes none again; a node more gets one."""
    keys = tmp_path / "keys"
    first = run("keygen", str(keys))
    assert first.exit_code == 0, first.output
    owners = read_list(keys / "cluster.keys")
    assert {(owner.node, owner.role) for owner in owners} == {
        (f"node-{number}", "node:gateway,engine,storage,sequencer,controller") for number in (1, 2, 3)
    }
    assert "have keys already" in run("keygen", str(keys)).output
    assert "storage-4" in run("keygen", str(keys), "storage-4", "node-1").output
    assert {owner.node for owner in read_list(keys / "cluster.keys")} == {owner.node for owner in owners} | {
        "storage-4"
    }


def test_a_name_says_its_role_or_is_told_it() -> None:
    """A role that is none, and a name that comes twice, are refused together."""
    assert roles_of(["engine-3", "eu=storage"]) == {"engine-3": Role.ENGINE, "eu": Role.STORAGE}
    assert roles_of(["node-7", "eu=node"]) == dict.fromkeys(["node-7", "eu"], roles_text(Role))
    assert roles_of(["node-4=storage,engine"]) == {"node-4": "node:engine,storage"}
    with pytest.raises(InvalidArgument) as caught:
        roles_of(["eu", "x=king", "y=storage,king", "z=engine,engine", "engine-1", "engine-1"])
    for words in (
        "eu: write",
        "x=king: write",
        "y=storage,king: write",
        "z=engine,engine: write",
        "engine-1 is named twice",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("logs", "sequencers", "expected"),
    [
        (3, "", {"logs": 3}),
        (None, "5", {"sequencers": 5, "sequencer_names": ()}),
        (2, "sequencer-1", {"logs": 2, "sequencers": 1, "sequencer_names": ("sequencer-1",)}),
        (
            None,
            "sequencer-3, sequencer-4,sequencer-5",
            {"sequencers": 3, "sequencer_names": ("sequencer-3", "sequencer-4", "sequencer-5")},
        ),
    ],
)
def test_a_change_is_the_plan_with_what_was_said(
    logs: int | None, sequencers: str, expected: dict[str, object]
) -> None:
    """And nothing else of it changes, the version that it replaces included."""
    changed = _changed(PLAN, logs, sequencers, None, registered(sequencer=5))
    assert changed == msgspec.structs.replace(PLAN, **expected)
    for is_on in (True, False):
        ahead = _changed(changed, None, "", is_on, registered(sequencer=5))
        assert ahead == msgspec.structs.replace(changed, speculative_cuts=is_on)


@pytest.mark.parametrize(
    ("sequencers", "words"),
    [
        ("4", "even number"),
        ("0", "even number"),
        ("7", "5 are running"),
        ("sequencer-1,sequencer-2", "even number"),
        ("sequencer-1,sequencer-9,storage-1", "no sequencer named sequencer-9, storage-1"),
        ("sequencer-1,sequencer-1,sequencer-2", "named twice"),
    ],
)
def test_sequencers_that_no_term_could_have_are_refused(sequencers: str, words: str) -> None:
    """Before anything is written down, and in words that say what exists."""
    with pytest.raises(InvalidArgument, match=words):
        _changed(PLAN, None, sequencers, None, registered(sequencer=5, storage=1))


def test_a_term_is_what_was_wanted_when_counts_and_names_agree() -> None:
    """The same number of other sequencers is not the same."""
    names = [NodeId(f"s{number}") for number in range(3)]
    view = View(
        term=2,
        log_count=1,
        sequencers=tuple(names),
        primaries=(names[0],),
        incarnations=dict.fromkeys(names, 1),
        storage=(NodeId("d"),),
        replicas=1,
        write_quorum=1,
        previous_ends=(0,),
    )
    assert is_so(view, ClusterPlan())
    assert is_so(view, ClusterPlan(sequencer_names=tuple(reversed(names))))
    assert not is_so(view, ClusterPlan(sequencer_names=(names[0], names[1], NodeId("other"))))
    assert not is_so(view, ClusterPlan(logs=2))
    assert not is_so(view, ClusterPlan(sequencers=5))


def test_a_drain_needs_a_storage_node_and_enough_others() -> None:
    """An unknown node is told with those that there are; the last replicas are not drained away."""
    assert _drained(PLAN, NodeId("storage-4"), registered(storage=4)).draining == ("storage-4",)
    with pytest.raises(InvalidArgument, match="no storage node named engine-1 is running; there are: storage-1"):
        _drained(PLAN, NodeId("engine-1"), registered(storage=4, engine=1))
    with pytest.raises(InvalidArgument, match="only 2 storage nodes would be left for 3 replicas"):
        _drained(PLAN, NodeId("storage-1"), registered(storage=3))
    already = msgspec.structs.replace(PLAN, draining=(NodeId("storage-1"),))
    assert _drained(already, NodeId("storage-1"), registered(storage=4)) is already


def test_without_a_cluster_the_commands_say_how_to_name_one(tmp_path: Path) -> None:
    """There is none in that folder; or there was one, and it does not run."""
    data = tmp_path / "data"
    for words in (["reconfigure", "--logs", "2"], ["drain", "storage-1"], ["undrain", "storage-1"]):
        done = run(*words, "--data", str(data))
        assert done.exit_code == 1
        assert "--zookeeper" in done.output
    (data / "cluster").mkdir(parents=True)
    write_state(data / "cluster", SupervisorState(pid=1, mark="gone", url="", zookeeper="z:1", chroot="/boki"))
    assert "does not run: start it with `boki up`" in run("drain", "storage-1", "--data", str(data)).output


def test_another_chroot_than_that_of_the_cluster_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the cluster here would be changed, and not the one that was named."""
    here = SupervisorState(
        pid=os.getpid(), mark=start_mark(os.getpid()), url="", zookeeper="127.0.0.1:1", chroot="/boki"
    )
    (tmp_path / "cluster").mkdir()
    write_state(tmp_path / "cluster", here)
    for chroot in ("/staging", "staging"):
        done = run("reconfigure", "--logs", "3", "--data", str(tmp_path), "--chroot", chroot)
        assert done.exit_code == 2
        assert "is at chroot /boki" in " ".join(done.output.split())
    for chroot in ("/boki", ""):
        assert place_of("", chroot, tmp_path).chroot == "/boki"
    monkeypatch.setenv("BOKI_CHROOT", "/staging")
    assert place_of("", "", tmp_path).chroot == "/boki"  # the flag wins over what the variable names
    monkeypatch.setenv("BOKI_DATA", str(tmp_path))
    with pytest.raises(InvalidArgument, match="/staging"):
        place_of("", "", None)


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of a running cluster, named from the folder of a project that is about another one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boki.toml").write_text(
        'zookeeper = "prod:2181"\nchroot = "/prod"\ntoken = "prod"\n'
        '[zookeeper_access]\ndigest = "prod:secret"\ntls = true\n'
    )
    folder = tmp_path / "other" / "cluster"
    (folder / "keys").mkdir(parents=True)
    (folder / "keys" / DIGEST_NAME).write_text("boki:own\n")
    (folder / "boki.toml").write_text('token = "own"\nname = "x"\n')
    me = os.getpid()
    write_state(
        folder,
        SupervisorState(pid=me, mark=start_mark(me), url="http://127.0.0.1:7", zookeeper="127.0.0.1:1", chroot="/boki"),
    )
    return tmp_path / "other"


def test_a_data_directory_on_the_command_line_wins_over_variables_and_the_file(
    other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the cluster of the file would be changed, with its secret; it counts where no flag names a cluster."""
    for name in ("BOKI_ZOOKEEPER", "BOKI_CHROOT"):
        monkeypatch.delenv(name, raising=False)
    for _ in range(2):
        place = place_of("", "", other)
        assert (place.zookeeper, place.chroot) == ("127.0.0.1:1", "/boki")
        assert (place.zookeeper_access.digest, place.zookeeper_access.tls) == ("boki:own", False)
        monkeypatch.setenv("BOKI_ZOOKEEPER", "staging:2181")
    assert place_of("", "", None).zookeeper == "staging:2181"
    assert place_of("here:1", "", other).zookeeper == "here:1"
    monkeypatch.delenv("BOKI_ZOOKEEPER")
    assert (place_of("", "", None).zookeeper, place_of("", "", None).chroot) == ("prod:2181", "/prod")


def test_a_drain_asks_the_cluster_that_it_changes(other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And sends its token there, and to nobody else, whatever the variables and the file say."""
    asked: list[tuple[str, str]] = []
    changed: list[str] = []
    monkeypatch.setattr(
        reconfigure, "with_coordinator", lambda place, act: bool(changed.append(place.zookeeper)) or bool(act)
    )
    monkeypatch.setattr(
        reconfigure, "_wait_until_empty", lambda _node, _timeout_s, url, token: asked.append((url, token))
    )
    variables = {"BOKI_URL": "http://prod:1", "BOKI_TOKEN": "prod", "BOKI_ZOOKEEPER": None, "BOKI_CHROOT": None}

    def drain(*flags: str) -> Result:
        return CliRunner().invoke(app, ["drain", "storage-1", "--wait", *flags], env=variables)

    assert drain("--data", str(other)).exit_code == 0
    assert drain("--data", str(other), "--url", "http://b:2", "--token", "b").exit_code == 0
    assert drain().exit_code == 0
    assert asked == [("http://127.0.0.1:7", "own"), ("http://b:2", "b"), ("http://prod:1", "prod")]
    assert changed == ["127.0.0.1:1", "127.0.0.1:1", "prod:2181"]
    refused = drain("--zookeeper", "127.0.0.1:2")
    assert (refused.exit_code, len(changed)) == (2, 3)
    assert "add --url" in refused.output
    assert drain("--zookeeper", "127.0.0.1:2", "--url", "http://c:3").exit_code == 0
    assert (changed[3], asked[3]) == ("127.0.0.1:2", ("http://c:3", "prod"))


def test_a_change_of_nothing_is_told() -> None:
    """Nobody is connected to for it."""
    done = run("reconfigure")
    assert done.exit_code == 2
    assert "--logs N" in done.output


def test_a_node_that_cannot_run_is_refused_with_every_problem(tmp_path: Path) -> None:
    """A start with three problems lists three."""
    file = tmp_path / "boki.toml"
    file.write_text("replicas = 2\nwrite_quorum = 3\nsequencers = 4\nchroot = 'x'\n")
    done = run("start", "controller", "--config", str(file), "--name", "c1", "--data", str(tmp_path))
    assert done.exit_code == 2
    for words in ("3 problems", "write_quorum", "even number", "chroot"):
        assert words in done.output
