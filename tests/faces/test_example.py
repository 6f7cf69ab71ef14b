"""The library of docs/libraries.md: written from the page, installed, and used through a gateway and the CLI."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boki.config.loading import DevConfig
from boki.launch.child import Child

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/libraries.md").read_text(encoding="utf-8")


def install(folder: Path) -> None:
    """The files of the page, and what an installer writes of its entry point."""
    for text in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        path = folder / text.partition("\n")[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (toml,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    section, entry = toml.strip().splitlines()
    assert section == '[project.entry-points."boki.libraries"]'
    add_entry_point(folder, *entry.replace('"', "").split(" = "))


def add_entry_point(folder: Path, name: str, value: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[boki.libraries]\n{name} = {value}\n")


def boki(*words: str, url: str = "") -> subprocess.CompletedProcess[str]:
    """A command, in a process that has the folder of the fixture on its path."""
    environment = os.environ | {"BOKI_URL": url, "COLUMNS": "100"}
    command = [sys.executable, "-P", "-m", "boki", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """On the path of all processes that are started."""
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(path))
    yield path


def system(tmp_path: Path) -> Child:
    (tmp_path / "functions").mkdir()
    return Child(DevConfig(data=tmp_path / "data", functions=tmp_path / "functions", port=0, reload=False))


def asked(url: str, path: str, method: str = "GET") -> str:
    request = urllib.request.Request(f"{url}{path}", method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: str = answer.read().decode()
    return found


def test_a_library_of_another_package_has_routes_metrics_and_commands(tmp_path: Path, folder: Path) -> None:
    """All of it by its entry point: nothing of Boki names it."""
    install(folder)
    with system(tmp_path).start() as child:
        for page in ("home", "cart", "home"):
            assert asked(child.url, f"/lib/visits/shop/{page}", "POST") == "{}"
        assert json.loads(asked(child.url, "/lib/visits/shop")) == {"home": 2, "cart": 1}
        assert "boki_visits_total 3.0" in asked(child.url, "/metrics").splitlines()
        paths: dict[str, Any] = json.loads(asked(child.url, "/openapi.json"))["paths"]
        assert "/lib/visits/{book}" in paths
        top = boki("visits", "top", "shop", url=child.url)
        assert [line.split() for line in top.stdout.splitlines()] == [["page", "visits"], ["home", "2"], ["cart", "1"]]
        forged = boki("log", "append", "shop", "x", "--tag", "!visits", url=child.url)
        assert (forged.returncode, forged.stderr) == (
            2,
            "error: tag '!visits' belongs to library visits: choose another\n",
        )
    assert "Count visits of pages" in boki("--help").stdout
    assert boki("completion", "bash", "--", "visits", "").stdout == "top\n"
    assert "boki visits top shop" in boki("visits", "-h").stdout


def test_the_tests_of_the_page_pass(folder: Path) -> None:
    """A library is tested like a function, over a log in memory."""
    install(folder)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_boki.plugin"]
    done = subprocess.run([*command, "."], cwd=folder, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_library_that_cannot_be_loaded_stops_gateways_and_not_the_cli(tmp_path: Path, folder: Path) -> None:
    """Routes and consumers that are silently missing would be worse; other commands do not need it."""
    add_entry_point(folder, "broken", "nowhere.face:FACE")
    told = "library broken (nowhere.face:FACE) cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"
    listed = boki("completion", "bash")
    assert (listed.returncode, listed.stderr.strip().replace("\n", " ")) == (0, told)
    (tmp_path / "functions").mkdir()
    done = boki("dev", "--port", "0", "--data", str(tmp_path / "data"), "--functions", str(tmp_path / "functions"))
    assert done.returncode != 0
    assert f"{told}: repair or uninstall it" in " ".join(done.stderr.split())
