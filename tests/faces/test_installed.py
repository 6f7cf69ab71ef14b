"""The registry of libraries: what is installed is found without being imported, and what is wrong is said."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from boki.cli import libraries as cli_libraries
from boki.errors import ConfigError
from boki.faces import CommandGroup, Face, GatewayPart, Route
from boki.faces.installed import Installed, Loader, all_faces, find, installed
from boki.gateway.server.http import libraries as gateway_libraries
from boki.gateway.server.http.libraries import Libraries
from boki.gateway.server.http.routing import Routes


def group(name: str) -> CommandGroup:
    return CommandGroup(name, "Helps.", load=lambda: pytest.fail("its commands are not asked for"))


def loader(face: Any) -> Loader:
    return Loader("it", lambda: face)


def test_the_command_line_starts_without_importing_a_library() -> None:
    """The list of commands costs no more with ten libraries than with one."""
    code = (
        "import sys; from boki.cli.app import app; import typer; typer.main.get_command(app); "
        "print(*sorted(name for name in sys.modules if name.startswith('boki.libs.')))"
    )
    found = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    libraries = [f"boki.libs.{name}" for name in ("bokiflow", "bokiqueue", "bokistore")]
    assert found == sorted([*libraries, *(f"{name}.face" for name in libraries)])


def test_bokis_own_libraries_are_installed() -> None:
    """With all that their faces have, which can be had."""
    found = installed()
    assert found.problems == ()
    assert found.built_in == {"bokiqueue", "bokistore", "bokiflow"}
    for face in all_faces():
        assert face.openapi is None or face.openapi()
        assert face.commands is None or face.commands.load().registered_commands


def test_what_is_no_face_or_clashes_is_left_out_and_named() -> None:
    """The first of two wins; each of the others has its reason."""
    first = Face("visits", commands=group("visits"))
    found = find([loader(first), loader("x"), loader(Face("visits")), loader(Face("b", commands=group("visits")))])
    assert found.faces == (first,)
    assert found.problems == (
        "library it cannot be used: its entry point names str, not a boki.faces.Face",
        "library it cannot be used: there is another library visits",
        "library it cannot be used: another library has the commands `boki visits`",
    )


def test_an_error_in_one_of_bokis_own_libraries_is_a_bug() -> None:
    """It is raised where it happens, and not reported as a package to uninstall."""
    with pytest.raises(ZeroDivisionError):
        find([Loader("own", lambda: 1 / 0)], built_in=1)


def test_commands_of_boki_itself_are_not_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A library cannot take `boki log`, and its user is told why its commands are missing."""
    logs = Face("logs", commands=group("log"))
    visits = Face("visits", commands=group("visits"))
    monkeypatch.setattr(cli_libraries, "installed", lambda: Installed((logs, visits), (), frozenset()))
    assert cli_libraries.groups_besides(["log", "dev"]) == [visits.commands]
    cli_libraries.say_problems(["log", "dev"])
    told = "library logs has no commands here: `boki log` is one of Boki's own"
    assert " ".join(capsys.readouterr().err.split()) == told


@pytest.mark.parametrize("template", ["/queue/{book}", "/lib/others/{book}", "/lib/visits", "/visits"])
def test_routes_of_other_packages_stay_below_their_own_path(monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    """No library can answer for the gateway or for another library."""
    face = Face("visits", at_gateway=lambda _: GatewayPart(routes=[Route("GET", template, _never)]))
    port: Any = SimpleNamespace()
    monkeypatch.setattr(gateway_libraries, "all_faces", lambda: (face,))
    with pytest.raises(ConfigError, match=r"^library visits: its route .* must begin with /lib/visits/, "):
        Libraries(port, CollectorRegistry())


def test_two_routes_for_one_path_are_refused() -> None:
    """Of two handlers one would never be called."""
    route = Route("GET", "/lib/visits/{book}", _never)
    with pytest.raises(ConfigError, match=r"^two routes take GET /lib/visits/\{page\}$"):
        Routes([route, replace(route, template="/lib/visits/{page}")])


def test_a_driver_that_cannot_finish_keeps_no_gateway_from_stopping(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other drivers finish, and the log says whose calls may be lost."""
    ended: list[str] = []

    class Driver:
        def __init__(self, name: str) -> None:
            self.name = name

        def start(self) -> None:
            ended.append(f"{self.name} started")

        def stop(self) -> None:
            ended.append(f"{self.name} stopped")

        async def finish(self) -> None:
            if self.name == "bad":
                raise ZeroDivisionError
            ended.append(f"{self.name} finished")

    faces = [Face(name, at_gateway=lambda _, name=name: GatewayPart(driver=Driver(name))) for name in ("bad", "good")]
    monkeypatch.setattr(gateway_libraries, "all_faces", lambda: tuple(faces))
    port: Any = SimpleNamespace()
    libraries = Libraries(port, CollectorRegistry())
    libraries.start()
    libraries.stop()
    asyncio.run(libraries.finish())
    assert ended == ["bad started", "good started", "bad stopped", "good stopped", "good finished"]
    ours = [record.message for record in caplog.records if record.name == "boki.gateway"]
    assert ours == ["library bad could not finish its calls"]


async def _never(_request: Any) -> Any:
    raise AssertionError
