"""`boki new`: what it makes works, and it takes nothing away."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from boki.cli.app import app
from boki.cli.new import PLACEHOLDER
from boki.config.loading import DevConfig, load


def test_the_new_project_passes_its_own_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command tells one to do next works, before anything is changed."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["new", "guestbook"])
    assert done.exit_code == 0, done.output
    assert "boki dev" in done.output
    assert "pip install pytest && pytest" in done.output
    project = tmp_path / "guestbook"
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_boki.plugin"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert "1 passed" in tests.stdout


def test_the_new_project_is_complete_and_named(tmp_path: Path) -> None:
    """Its configuration is one that `boki dev` takes, and its name stands wherever it should."""
    project = tmp_path / "my-app"
    assert CliRunner().invoke(app, ["new", str(project)]).exit_code == 0
    files = {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()}
    assert files == {
        ".gitignore",
        "README.md",
        "boki.toml",
        "functions/hello.py",
        "pyproject.toml",
        "tests/test_hello.py",
    }
    assert not any(PLACEHOLDER in path.read_text() for path in project.rglob("*") if path.is_file())
    assert tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"] == "my-app"
    assert tomllib.loads((project / "pyproject.toml").read_text())["dependency-groups"]["dev"] == ["pytest"]
    config = load(DevConfig, flags={}, environment={}, file=project / "boki.toml")
    assert config.functions == project / "functions"


@pytest.mark.parametrize("name", ["there", "no/such/folder", "-x y", "a b", ".hidden", "é"])
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What exists stays as it is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").write_text("")
    done = CliRunner().invoke(app, ["new", "--", name])
    assert done.exit_code == 2
    assert "error" in done.output
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "file"]
