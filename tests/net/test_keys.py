"""Key files: made once, readable by their owner only, and every contradiction refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from boki.errors import ConfigError, InvalidArgument
from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.net.keys import LIST_NAME, KeyRing, load_keys, make_keys, read_list, roles_text

NODES = {"engine-1": Role.ENGINE, "storage-1": Role.STORAGE}
ENGINE = NodeId("engine-1")


def test_each_node_gets_a_key_that_only_its_owner_reads(tmp_path: Path) -> None:
    """One file per node with mode 0600, and a list that ties each public key to a name and a role."""
    assert make_keys(tmp_path / "keys", NODES) == ["engine-1", "storage-1"]
    files = sorted((tmp_path / "keys").iterdir())
    assert [file.name for file in files] == [LIST_NAME, "engine-1.key", "storage-1.key"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    keys = load_keys(tmp_path / "keys", ENGINE)
    assert (keys.own.node, keys.own.role) == (ENGINE, Role.ENGINE)
    assert keys.ring.owner_of(keys.own.public) == keys.own
    listed = (tmp_path / "keys" / LIST_NAME).read_text()
    assert keys.own.public in listed
    assert keys.secret not in listed


def test_keys_that_are_there_stay(tmp_path: Path) -> None:
    """A second run gives keys to new nodes alone, also if files have been moved to other machines."""
    make_keys(tmp_path, NODES)
    before = read_list(tmp_path / LIST_NAME)
    (tmp_path / "storage-1.key").unlink()
    assert make_keys(tmp_path, {**NODES, "storage-2": Role.STORAGE}) == ["storage-2"]
    assert make_keys(tmp_path, {"storage-2": Role.STORAGE}) == []
    after = read_list(tmp_path / LIST_NAME)
    assert after[:2] == before
    assert [owner.node for owner in after] == ["engine-1", "storage-1", "storage-2"]
    assert not (tmp_path / "storage-1.key").exists()


def test_a_list_that_was_lost_is_made_again_from_the_files(tmp_path: Path) -> None:
    """As after a crash between the files and the list."""
    make_keys(tmp_path, NODES)
    before = read_list(tmp_path / LIST_NAME)
    (tmp_path / LIST_NAME).unlink()
    assert make_keys(tmp_path, NODES) == []
    assert read_list(tmp_path / LIST_NAME) == before


def test_a_running_node_learns_new_keys(tmp_path: Path) -> None:
    """The list is read again when an unknown key is met; one that cannot be read changes nothing."""
    make_keys(tmp_path, NODES)
    ring = KeyRing(tmp_path / LIST_NAME)
    make_keys(tmp_path, {"storage-2": Role.STORAGE})
    new = load_keys(tmp_path, NodeId("storage-2")).own
    assert ring.of(NodeId("storage-2")) == new
    (tmp_path / LIST_NAME).write_text("damaged\n")
    assert ring.of(NodeId("storage-3")) is None
    assert ring.owner_of(new.public) == new
    (tmp_path / LIST_NAME).unlink()
    assert ring.of(NodeId("storage-3")) is None
    assert ring.owner_of(new.public) == new


def test_a_node_that_hosts_roles_has_one_key_for_them(tmp_path: Path) -> None:
    """It may speak under the names of its own roles, and under no other node's."""
    make_keys(tmp_path, {"node-1": roles_text([Role.STORAGE, Role.ENGINE])})
    owner = load_keys(tmp_path, NodeId("node-1")).own
    assert read_list(tmp_path / LIST_NAME) == [owner]
    assert owner.may_be(NodeId("storage-1"), Role.STORAGE)
    assert owner.may_be(ENGINE, Role.ENGINE)
    for name, role in (
        ("node-1", Role.STORAGE),
        ("storage-2", Role.STORAGE),
        ("storage-1", Role.ENGINE),
        ("sequencer-1", Role.SEQUENCER),
    ):
        assert not owner.may_be(NodeId(name), role)


def test_what_others_can_read_proves_nothing(tmp_path: Path) -> None:
    """A key file with other permissions is refused, with the command that fixes it."""
    make_keys(tmp_path, NODES)
    (tmp_path / "engine-1.key").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_keys(tmp_path, ENGINE)


def swap(tmp_path: Path) -> None:
    (tmp_path / "storage-1.key").replace(tmp_path / "engine-1.key")


def damage(tmp_path: Path) -> None:
    (tmp_path / "engine-1.key").write_text("node = [")


def forge(tmp_path: Path) -> None:
    mine, other = ((tmp_path / f"{name}.key").read_text() for name in NODES)
    line = next(line for line in mine.splitlines() if line.startswith("secret"))
    (tmp_path / "engine-1.key").write_text(
        mine.replace(line, next(line for line in other.splitlines() if line.startswith("secret")))
    )


def promote(tmp_path: Path) -> None:
    text = (tmp_path / LIST_NAME).read_text()
    (tmp_path / LIST_NAME).write_text(text.replace("engine-1 engine", "engine-1 sequencer"))


def forget(tmp_path: Path) -> None:
    (tmp_path / "engine-1.key").unlink()


def repeat(tmp_path: Path) -> None:
    with (tmp_path / LIST_NAME).open("a") as stream:
        stream.write(f"engine-2 engine {read_list(tmp_path / LIST_NAME)[0].public}\n")


def scribble(tmp_path: Path) -> None:
    with (tmp_path / LIST_NAME).open("a") as stream:
        stream.write("engine-2 king abc\n")


def recode(tmp_path: Path) -> None:
    (tmp_path / LIST_NAME).write_bytes(b"\xff\xfe")


@pytest.mark.parametrize("wrong", [swap, damage, forge, promote, forget, repeat, scribble, recode])
def test_contradictions_are_refused(wrong: object, tmp_path: Path) -> None:
    """A node does not start with keys that are not its own, damaged, or not those of the list."""
    make_keys(tmp_path, NODES)
    assert callable(wrong)
    wrong(tmp_path)
    with pytest.raises(ConfigError):
        load_keys(tmp_path, ENGINE)


def test_a_node_keeps_its_role(tmp_path: Path) -> None:
    """A name that has a key as one role gets none as another; a name that is no name gets none at all."""
    make_keys(tmp_path, NODES)
    with pytest.raises(ConfigError, match="storage-1"):
        make_keys(tmp_path, {"storage-1": Role.SEQUENCER})
    with pytest.raises(InvalidArgument):
        make_keys(tmp_path, {"../storage": Role.STORAGE})


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The reason is the system's own."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file"):
        make_keys(tmp_path / "file", NODES)
