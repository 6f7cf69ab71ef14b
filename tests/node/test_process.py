"""A node as a process: what a supervisor's arguments mean, and what is refused before anything takes part."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from boki.net.keys import make_keys
from boki.node import process


def config(folder: Path, **settings: str) -> Path:
    file = folder / "boki.toml"
    values = {"zookeeper": "127.0.0.1:1", "data": str(folder / "data"), **settings}
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in values.items()))
    return file


@pytest.mark.parametrize("role", ["gateway", "node"])
def test_a_port_in_use_is_refused_in_a_line_before_the_node_registers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], role: str
) -> None:
    """A supervisor would start it again and again, and each time all its roles would take part first."""
    roles = ("--roles", "storage,gateway") if role == "node" else ()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["start", role, "--name", "node-1", "--config", str(config(tmp_path)), "--port", port, *roles]
        assert process.main(arguments) == 1
    assert f"error: cannot listen at 127.0.0.1:{port}: address already in use" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_what_a_setting_does_not_take_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As by the command line, and with its exit code."""
    arguments = ["start", "storage", "--name", "s", "--config", str(config(tmp_path)), "--control-port", "99999"]
    assert process.main(arguments) == 2
    assert "control_port" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["start", "poet"], ["start", "storage", "--colour", "red"], ["stop"]])
def test_what_no_supervisor_says_is_refused(wrong: list[str], tmp_path: Path) -> None:
    """An unknown role, flag or command."""
    with pytest.raises(SystemExit) as refused:
        process.main([*wrong, "--name", "s", "--config", str(config(tmp_path))])
    assert refused.value.code == 2


def test_a_key_for_fewer_roles_is_refused_before_zookeeper_is_waited_for(tmp_path: Path) -> None:
    """ZooKeeper is not there, and the node says at once what else is wrong: which roles, and what to do."""
    keys = tmp_path / "keys"
    make_keys(keys, {"node-4": "node:storage,engine"})
    file = str(config(tmp_path, keys=str(keys)))
    told = {}
    for name in ("node-4", "node-5"):
        arguments = ["start", "node", "--config", file, "--roles", "storage,engine,gateway", "--port", "0"]
        done = subprocess.run(  # a process of its own: it sets up logs, signals and the collector
            [sys.executable, "-P", "-m", "boki", *arguments, "--name", name],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 2, done.stdout + done.stderr
        told[name] = " ".join(done.stderr.split())
    assert "which may be storage, engine, and this is gateway gateway-4" in told["node-4"]
    assert "run boki keygen" in told["node-4"]
    assert "node-5.key is missing: run boki keygen" in told["node-5"]
    assert not (tmp_path / "data").exists()


def test_only_a_gateway_imports_an_http_server() -> None:
    """It is nearly half of what the start of a node costs. A zygote has it: some of its nodes are gateways."""
    code = (
        "import importlib, sys; from boki.launch.up.zygote import _IMPORTED; import boki.node.process;"
        "print('aiohttp' in sys.modules);"
        "[importlib.import_module(name) for name in _IMPORTED];"
        "print('aiohttp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
