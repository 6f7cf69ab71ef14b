"""Which system a command talks to: flags and variables over the project's `boki.toml` over the default."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from boki.cli import connection
from boki.errors import ConfigError
from boki.launch.up.identity import start_mark
from boki.launch.up.state import SupervisorState, write_state


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, and no variables set."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("BOKI_")]:
        monkeypatch.delenv(name)
    return tmp_path / "boki.toml"


def target(monkeypatch: pytest.MonkeyPatch, url: str = "", token: str = "") -> tuple[str, str]:
    """The URL and token with which a client would have been made."""
    found: list[tuple[str, str]] = []
    monkeypatch.setattr("boki.client.BlockingClient", lambda url, *, token: found.append((url, token)))
    connection.connect(url, token)
    return found[0]


def needed(url: str, token: str) -> str:
    """What a start screen would say."""
    return connection.tries(["boki status"], url, token)


def test_the_strongest_source_wins(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Default, file, variables, flags, each over the one before; other keys of the file are none of a client's."""
    assert target(monkeypatch) == ("http://127.0.0.1:8080", "")
    project.write_text('port = 9000\ntoken = "t"\nreplicas = 3\n[limits]\ntag_bytes = 9\n')
    assert target(monkeypatch) == ("http://127.0.0.1:9000", "t")
    monkeypatch.setenv("BOKI_PORT", "9001")
    monkeypatch.setenv("BOKI_UNKNOWN", "x")
    assert target(monkeypatch) == ("http://127.0.0.1:9001", "t")
    assert target(monkeypatch, token="flag") == ("http://127.0.0.1:9001", "flag")
    assert target(monkeypatch, url="http://other:1") == ("http://other:1", "")


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:8080"), ("::", "http://[::1]:8080"), ("localhost", "http://localhost:8080")],
)
def test_a_system_that_listens_everywhere_is_found_here(
    project: Path, monkeypatch: pytest.MonkeyPatch, host: str, url: str
) -> None:
    """What one listens on is not always what one connects to."""
    project.write_text(f'host = "{host}"\n')
    assert target(monkeypatch) == (url, "")


def test_an_address_that_cannot_be_known_is_refused_with_the_way_out(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Port 0 is chosen at the start; a port that is none is told with its file."""
    project.write_text("port = 0\n")
    with pytest.raises(ConfigError, match="--url"):
        target(monkeypatch)
    project.write_text('port = "x"\n')
    with pytest.raises(ConfigError, match=r"boki\.toml"):
        target(monkeypatch)


def test_only_what_the_file_does_not_say_must_be_typed(project: Path) -> None:
    """The start screen's commands carry the address if the project's file has another one, and never the token."""
    assert needed("http://127.0.0.1:8080", "") == "  try        boki status"
    assert needed("http://127.0.0.1:9000", "") == "  try        boki status --url http://127.0.0.1:9000"
    with_token = "  try        boki status{}\n             (with the token in BOKI_TOKEN)"
    assert needed("http://0.0.0.0:8080", "secret") == with_token.format("")
    project.write_text('port = 9000\ntoken = "secret"\n')
    assert needed("http://127.0.0.1:9000", "secret") == "  try        boki status"
    assert needed("http://[::1]:1", "secret") == with_token.format(" --url http://[::1]:1")


def test_a_cluster_that_runs_in_the_folder_is_found_wherever_it_listens(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor's file says where; one that does not run any more counts for nothing, and variables win."""
    folder = project.parent / "data/cluster"
    folder.mkdir(parents=True)
    project.write_text('data = "data"\nport = 0\ntoken = "t"\n')
    mine = SupervisorState(
        pid=os.getpid(), mark=start_mark(os.getpid()), url="http://127.0.0.1:7", zookeeper="", chroot=""
    )
    write_state(folder, mine)
    assert target(monkeypatch) == ("http://127.0.0.1:7", "t")
    assert needed("http://127.0.0.1:7", "") == "  try        boki status"
    assert target(monkeypatch, url="http://other:1") == ("http://other:1", "")
    monkeypatch.setenv("BOKI_PORT", "9001")
    assert target(monkeypatch) == ("http://127.0.0.1:9001", "t")
    monkeypatch.delenv("BOKI_PORT")
    write_state(folder, structs.replace(mine, mark="gone"))
    with pytest.raises(ConfigError, match="--url"):
        target(monkeypatch)
