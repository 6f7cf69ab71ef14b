"""`boki dev`'s flags are the configuration's fields, and what is wrong is told as a whole, without a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from boki.cli import dev
from boki.cli.app import app
from boki.config.loading import DevConfig, flag, settings
from boki.launch.child import arguments
from boki.log.limits import Limits


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[DevConfig]:
    """The configurations with which a system would have been started."""
    found: list[DevConfig] = []

    async def serve(config: DevConfig) -> None:
        found.append(config)

    monkeypatch.setattr(dev, "serve", serve)
    for name in [name for name in os.environ if name.startswith("BOKI_")]:
        monkeypatch.delenv(name)
    return found


def test_every_setting_is_a_flag(started: list[DevConfig]) -> None:
    """All flags at once, with values that are not the defaults."""
    config = DevConfig(
        data=Path("d").resolve(),
        replicas=3,
        logs=2,
        port=0,
        insecure=True,
        reload=False,
        token="t",
        drain_s=2.5,
        durability="memory",
        limits=Limits(tag_bytes=99),
    )
    done = CliRunner().invoke(app, arguments(config))
    assert done.exit_code == 0, done.output
    (seen,) = started
    assert seen == msgspec.structs.replace(config, functions=config.functions.resolve())


def test_the_help_names_every_setting_but_the_limits() -> None:
    """What can be set is found without reading the source."""
    text = CliRunner().invoke(app, ["dev", "--help"], env={"COLUMNS": "200"}).output
    for setting in settings(DevConfig):
        assert (flag(setting.name) in text) == (not setting.name.startswith("limits.")), setting.name


def test_all_problems_are_told_at_once_and_the_exit_code_is_that_of_wrong_usage(started: list[DevConfig]) -> None:
    """A start is refused with everything that is wrong, whether it came from flags or from the environment."""
    done = CliRunner().invoke(
        app,
        ["dev", "--port", "many", "--host", "0.0.0.0", "--replicas", "2", "--write-quorum", "3"],
        env={"BOKI_LOGS": "0"},
    )
    assert done.exit_code == 2
    assert not started
    for word in ("--port", "BOKI_LOGS", "BOKI_TOKEN", "write_quorum"):
        assert word in done.output
    assert "Traceback" not in done.output


def test_an_unknown_flag_is_wrong_usage() -> None:
    """The command line itself says which."""
    done = CliRunner().invoke(app, ["dev", "--colour", "red"])
    assert done.exit_code == 2
    assert "--colour" in done.output


def test_help_is_quick() -> None:
    """`boki --help` imports nothing that serves, speaks HTTP or draws."""
    code = (
        "import sys; import boki.cli; "
        "sys.argv = ['boki', '--help']\n"
        "try: boki.cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'aiohttp', 'rocksdict', 'uvloop', 'zmq', 'kazoo', 'pandas', 'rich.progress', 'prometheus_client'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HEAVY []" in done.stdout, done.stdout
    for name in ("dev", "demo", "new", "invoke", "log", "status", "bench"):
        assert name in done.stdout
