"""A node's directory belongs to one cluster, one name and one role, forever."""

from __future__ import annotations

from pathlib import Path

import pytest

from boki.errors import ConfigError, DataDirectoryInUse
from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.node.home import Home

NODE = NodeId("storage-1")


def test_a_directory_keeps_its_id_and_its_owner(tmp_path: Path) -> None:
    """The same node finds its directory as it left it."""
    home = Home(tmp_path / "d", NODE, Role.STORAGE)
    home.bind("c1")
    first = home.id
    home.close()
    again = Home(tmp_path / "d", NODE, Role.STORAGE)
    again.bind("c1")
    assert again.id == first
    again.close()


@pytest.mark.parametrize(("node", "role"), [("storage-2", Role.STORAGE), ("storage-1", Role.SEQUENCER)])
def test_a_directory_of_another_node_is_refused(node: str, role: Role, tmp_path: Path) -> None:
    """What one node acknowledged is not brought in under another's name."""
    home = Home(tmp_path / "d", NODE, Role.STORAGE)
    home.bind("c1")
    home.close()
    with pytest.raises(ConfigError, match=r"is that of storage storage-1"):
        Home(tmp_path / "d", NodeId(node), role)


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """Nor in another cluster."""
    home = Home(tmp_path / "d", NODE, Role.STORAGE)
    home.bind("c1")
    with pytest.raises(ConfigError, match="belongs to cluster c1"):
        home.bind("c2")
    home.close()


def test_a_directory_is_in_one_process(tmp_path: Path) -> None:
    """Two at once would each believe that the other's life is over."""
    home = Home(tmp_path / "d", NODE, Role.STORAGE)
    with pytest.raises(DataDirectoryInUse):
        Home(tmp_path / "d", NODE, Role.STORAGE)
    home.close()


def test_a_damaged_binding_is_told(tmp_path: Path) -> None:
    """Nobody guesses whose data it is."""
    home = Home(tmp_path / "d", NODE, Role.STORAGE)
    home.bind("c1")
    home.close()
    (tmp_path / "d" / "node.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        Home(tmp_path / "d", NODE, Role.STORAGE)
