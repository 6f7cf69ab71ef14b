"""Configurations of roles: what cannot work is refused with every problem, and roles share one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from boki.config.loading import settings
from boki.config.node import CONFIGS, ControllerNodeConfig, EngineNodeConfig, load_node
from boki.errors import ConfigError
from boki.log.membership import Role


def refusal(role: Role, **flags: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_node(role, flags=flags, environment={})
    return list(caught.value.problems)


@pytest.mark.parametrize("role", Role)
def test_every_role_needs_a_name_and_nothing_else(role: Role, tmp_path: Path) -> None:
    """The defaults work on one machine; without a name the refusal says how to give one."""
    flags = {"name": f"{role}-1", "data": str(tmp_path)}
    config = load_node(role, flags=flags, environment={})
    assert config.node == f"{role}-1"
    assert config.directory == tmp_path / f"{role}-1"
    assert [problem for problem in refusal(role, data=str(tmp_path)) if "--name" in problem]


def test_every_problem_is_listed(tmp_path: Path) -> None:
    """Nobody has to start a node five times to fix five typing errors."""
    file = tmp_path / "file"
    file.touch()
    problems = refusal(
        Role.CONTROLLER,
        name="a b",
        data=str(file / "below"),
        zookeeper="nowhere",
        chroot="boki",
        link_host="0.0.0.0",
        write_quorum="4",
        sequencers="4",
        colour="red",
    )
    words = ["name", "not a directory", "zookeeper", "chroot", "boki keygen", "write_quorum", "even number", "colour"]
    assert len(problems) == len(words)
    for word in words:
        assert [problem for problem in problems if word in problem], (word, problems)


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started, with the path."""
    monkeypatch.setattr("os.access", lambda _path, _mode: False)
    (problem,) = refusal(Role.STORAGE, name="storage-1", data=str(tmp_path / "data"))
    assert f"{tmp_path} is not writable" in problem


def test_roles_of_a_machine_share_one_file(tmp_path: Path) -> None:
    """A key of another role is no typing error; a key of none is."""
    file = tmp_path / "boki.toml"
    file.write_text('data = "d"\nlogs = 4\nfunctions = "f"\nport = 81\n[limits]\nrecord_bytes = 10000\n')
    controller = load_node(Role.CONTROLLER, flags={"name": "c"}, environment={}, file=file)
    assert isinstance(controller, ControllerNodeConfig)
    assert controller.plan.logs == 4
    engine = load_node(Role.ENGINE, flags={"name": "e"}, environment={}, file=file)
    assert isinstance(engine, EngineNodeConfig)
    assert engine.functions == tmp_path / "f"
    assert engine.directory == tmp_path / "d" / "e"
    file.write_text("lgos = 4\n")
    with pytest.raises(ConfigError, match=r"unknown setting lgos .* did you mean logs\?|unknown setting lgos"):
        load_node(Role.ENGINE, flags={"name": "e"}, environment={}, file=file)


def test_every_setting_has_a_meaning() -> None:
    """The command line and the documentation show it."""
    for kind in CONFIGS.values():
        assert all(setting.description for setting in settings(kind) if "." not in setting.name)
