"""`boki deploy` and `boki functions`: what they send and print, and what they refuse before they send anything."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from boki.books.functions.bundle import read_bundle
from boki.cli import deploy, functions
from boki.cli.app import app
from boki.errors import InvalidArgument, NotFound
from boki.protocol.calls import FunctionInfo
from boki.protocol.deployments import Deployment, VersionInfo

NEW = VersionInfo(number=2, bundle_hash="ab" * 32, deployed_us=1_700_000_000_000_000, size_bytes=2048, functions=("f",))
NEW_AND_ACTIVE = msgspec.structs.replace(NEW, is_active=True)
OLD = VersionInfo(
    number=1, bundle_hash="cd" * 32, deployed_us=1_600_000_000_000_000, size_bytes=9, functions=(), broken=("bad",)
)


class Client:
    """Answers as a cluster would."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.engines = {"engine-1": True, "engine-2": True}
        self.running = {"engine-1": 2, "engine-2": 2}
        self.superseded_by = 0
        self.refusal: Exception | None = None
        self.kept = [NEW, OLD]

    def deploy(self, bundle: bytes, *, is_forced: bool) -> Deployment:
        self.asked.append(([file.path for file in read_bundle(bundle)], is_forced))
        if self.refusal is not None:
            raise self.refusal
        return Deployment(version=NEW, is_new=True, engines=self.engines, superseded_by=self.superseded_by)

    def functions(self) -> list[FunctionInfo]:
        return [FunctionInfo(name="f", module="app", is_async=True, payload_encoding="text", result_encoding="bytes")]

    def status(self) -> dict[str, Any]:
        return {"nodes": {name: {"functions_version": number} for name, number in self.running.items()}}

    def versions(self) -> list[VersionInfo]:
        return self.kept

    def use_version(self, version: str) -> Deployment:
        self.asked.append(version)
        if version == "9":
            raise NotFound("there is no version 9 (any more)")
        return Deployment(version=OLD, is_new=False, engines=self.engines)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    for module in (deploy, functions):
        monkeypatch.setattr(module, "connect", lambda _url, _token: nullcontext(made))
    return made


def boki(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def folder_of(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text("x = 1\n")
    (tmp_path / ".secret").write_text("x")
    return tmp_path


def test_a_folder_is_deployed_and_the_version_told(client: Client, tmp_path: Path) -> None:
    """Its files without the hidden ones, forced only if that was said; JSON for programs."""
    told = boki("deploy", str(folder_of(tmp_path)))
    assert (told.exit_code, client.asked) == (0, [(["app.py"], False)])
    assert "version 2 (abababababab, 2.0 KiB) runs from now on: f" in told.output
    forced = boki("deploy", str(tmp_path), "--force", "--json")
    assert client.asked[1] == (["app.py"], True)
    assert json.loads(forced.output)["version"]["number"] == 2


def test_engines_that_lag_are_named(client: Client, tmp_path: Path) -> None:
    """They follow by themselves; who calls a function right now should know."""
    client.engines["engine-2"] = False
    told = boki("deploy", str(folder_of(tmp_path)))
    assert told.exit_code == 0
    assert "not yet at engine-2" in told.output


def test_a_deployment_that_is_superseded_is_told(client: Client, tmp_path: Path) -> None:
    """By the version that runs instead; engines that do not run this one are not behind."""
    client.engines["engine-2"] = False
    client.superseded_by = 3
    told = boki("deploy", str(folder_of(tmp_path)))
    assert told.exit_code == 0
    assert "is deployed and does not run: f" in told.output
    assert "version 3 has been deployed or chosen since, and runs instead" in told.output
    assert "not yet at" not in told.output


def test_functions_in_subfolders_are_named(client: Client, tmp_path: Path) -> None:
    """They are part of the bundle, and nothing registers them."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "m.py").write_text("@function\nasync def lost(ctx): ...\n")
    told = boki("deploy", str(folder_of(tmp_path)))
    assert told.exit_code == 0
    assert "pkg/m.py is not looked into" in " ".join(told.output.split())
    assert client.asked == [(["app.py", "pkg/m.py"], False)]


def test_what_cannot_be_deployed_is_refused_without_a_request(client: Client, tmp_path: Path) -> None:
    """A folder that is none, and one with a link in it."""
    assert boki("deploy", str(tmp_path / "nowhere")).exit_code == 2
    (folder_of(tmp_path) / "link.py").symlink_to("app.py")
    told = boki("deploy", str(tmp_path))
    assert told.exit_code == 2
    assert "link.py is a link" in told.output
    assert not client.asked


def test_a_refusal_is_told_with_its_errors(client: Client, tmp_path: Path) -> None:
    """Each with file and line, and no traceback of ours."""
    client.refusal = InvalidArgument("nothing was deployed:\n  app.py:7: NameError: name 'y' is not defined")
    told = boki("deploy", str(folder_of(tmp_path)))
    assert told.exit_code == 2
    assert "app.py:7: NameError" in told.output
    assert "Traceback" not in told.output


def test_versions_are_listed_the_newest_first(client: Client) -> None:
    """Number, hash, time, functions; none is said in words."""
    told = boki("functions")
    assert told.exit_code == 0
    assert told.output.index("abababababab") < told.output.index("cdcdcdcdcdcd")
    assert "version 1 was deployed with broken modules: bad" in told.output
    assert "f(str) -> bytes\tapp" in told.output
    lines = boki("functions", "--json").output.splitlines()
    assert [json.loads(line)["number"] for line in lines] == [2, 1]
    client.kept = []
    assert "Nothing deployed yet; run boki deploy DIR." in boki("functions").output


def test_going_back_to_a_version(client: Client) -> None:
    """By number or name; one that is not there fails."""
    told = boki("functions", "use", "previous")
    assert (told.exit_code, client.asked) == (0, ["previous"])
    assert "version 1 (cdcdcdcdcdcd" in told.output
    assert "module bad cannot be loaded" in told.output
    gone = boki("functions", "use", "9")
    assert gone.exit_code == 1
    assert "there is no version 9" in gone.output


@pytest.mark.parametrize(
    ("running", "told"),
    [
        ({"engine-1": 2, "engine-2": 2}, "* runs now; boki functions use N goes back to version N"),
        (
            {"engine-1": 0, "engine-2": 0},
            (
                "* is to run, and runs at no engine: they were started with --functions-version none, or cannot run it "
                "(boki logs says why). boki functions use 2 has them run it"
            ),
        ),
        (
            {"engine-1": 1, "engine-2": 0},
            (
                "* is to run, and does not run everywhere (boki logs says why): engine-1 runs version 1, engine-2 "
                "runs none"
            ),
        ),
        ({}, "* is to run; no engine says which version it runs"),
    ],
)
def test_the_list_says_what_really_runs(client: Client, running: dict[str, int], told: str) -> None:
    """Engines may run without functions, or the previous version, or not answer."""
    client.kept = [NEW_AND_ACTIVE, OLD]
    client.running = running
    assert boki("functions").output.splitlines()[-1] == told
