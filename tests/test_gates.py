"""The gates that a change passes: format, lint, types and the direction of imports, each as a test.

What runs here is what runs in CI; there is no second list of checks anywhere.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = Path(sys.executable).parent
COMMANDS = {
    "format": ("ruff", "format", "--check", "."),
    "lint": ("ruff", "check", "."),
    "types": ("mypy",),
    "imports": ("lint-imports", "--no-cache"),
}


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    tool, *arguments = command
    return subprocess.run([str(PYTHON / tool), *arguments], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("gate", COMMANDS)
def test_gate(gate: str) -> None:
    """The whole tree passes the gate."""
    done = run(*COMMANDS[gate])
    assert done.returncode == 0, f"{' '.join(COMMANDS[gate])}\n{done.stdout}\n{done.stderr}"


def layers() -> list[str]:
    """Every module that stands in a layer, or in a package that does."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    down = next(contract for contract in contracts if contract["type"] == "layers")
    separated = " ".join(down["layers"]).replace("|", " ").replace(":", " ").replace("(", " ").replace(")", " ")
    return separated.split()


def forbidden() -> list[str]:
    """The libraries that nothing of Boki may import."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (modules,) = (contract["forbidden_modules"] for contract in contracts if contract["type"] == "forbidden")
    return list(modules)


def unlayered(modules: list[str]) -> list[str]:
    known = layers()
    return [module for module in modules if not any(module == name or module.startswith(f"{name}.") for name in known)]


def test_every_module_stands_in_a_layer() -> None:
    """A new file cannot slip past the import contract by not being named in it."""
    files = [
        path.relative_to(ROOT).with_suffix("") for path in (ROOT / "boki").rglob("*.py") if path.stem != "__init__"
    ]
    assert len(files) > 20
    missing = unlayered([".".join(path.parts) for path in files])
    assert not missing, f"name them in a layer of pyproject.toml: {missing}"


def test_every_library_is_known_to_the_registry_alone() -> None:
    """A new library cannot be imported by gateways for not being named in the contract. All stand on `fold`."""
    libraries = {f"boki.libs.{path.parent.name}" for path in (ROOT / "boki/libs").glob("*/__init__.py")}
    assert libraries - {"boki.libs.fold"} == set(forbidden())


def test_a_module_outside_of_all_layers_is_found() -> None:
    """The check above can fail."""
    assert unlayered(["boki.log.ids", "boki.nowhere"]) == ["boki.nowhere"]


@pytest.mark.parametrize(
    ("name", "source", "gate"),
    [
        ("format", "x  =  1\n", ("ruff", "format", "--check", ".")),
        ("lint", '"""Doc."""\n\nimport asyncio\n\nprint(asyncio)\n', ("ruff", "check", ".")),
        ("types", '"""Doc."""\n\nx: int = "one"\n', ("mypy", "--strict", "bad.py")),
    ],
)
def test_the_gate_finds_a_violation(name: str, source: str, gate: tuple[str, ...], tmp_path: Path) -> None:
    """A gate that cannot fail would hold nothing."""
    (tmp_path / "bad.py").write_text(source)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    assert run(*gate, cwd=tmp_path).returncode == 1, name


def test_an_import_upwards_is_found(tmp_path: Path) -> None:
    """The import contracts refuse a core that imports a shell, a role that imports another, a gateway that imports a
    library, and a face that imports more than faces may.
    """
    cores = ["boki.gateway.core", "boki.engine.core", "boki.storage.core"]
    shells = ["boki.gateway.server.http", "boki.gateway.server.listener", "boki.libs.bokiqueue.face.http"]
    for layer in [*layers(), *forbidden(), *cores, *shells]:
        folder = tmp_path.joinpath(*layer.split("."))
        folder.mkdir(parents=True, exist_ok=True)
        for package in (folder, *folder.relative_to(tmp_path).parents):
            (tmp_path / package / "__init__.py").touch()
    (tmp_path / "boki/storage/core/__init__.py").write_text("import boki.host\n")
    (tmp_path / "boki/gateway/core/__init__.py").write_text("import boki.engine.core\n")
    (tmp_path / "boki/gateway/server/http/__init__.py").write_text("import boki.libs.bokiqueue\n")
    (tmp_path / "boki/libs/bokiqueue/face/http/__init__.py").write_text("import boki.gateway.server.listener\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "__init__.py").unlink()
    done = run("lint-imports", "--no-cache", cwd=tmp_path)
    assert done.returncode == 1
    assert "boki.storage.core -> boki.host" in done.stdout, done.stdout + done.stderr
    assert "boki.gateway.core -> boki.engine.core" in done.stdout
    assert "boki.gateway.server.http -> boki.libs.bokiqueue" in done.stdout
    assert "boki.libs.bokiqueue.face.http -> boki.gateway.server.listener" in done.stdout


@pytest.mark.xdist_group("gates")
def test_tests_of_one_group_share_one_worker(request: pytest.FixtureRequest) -> None:
    """Else each worker would start the group's cluster again, and nothing would say why: pytest-xdist's issue 1386."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith("@gates"), f"pytest {pytest.__version__} ignores groups: see pyproject.toml"
