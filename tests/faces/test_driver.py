"""A library of another package that calls functions: its decorator, its settings and its driver, in a real system."""

from __future__ import annotations

from pathlib import Path

import pytest

from boki import BlockingClient
from boki.config.loading import DevConfig
from boki.launch.child import Child
from tests.faces.test_example import add_entry_point

LIBRARY = {
    "once/__init__.py": '''"""Calls a function once, when a gateway starts."""

import msgspec

from boki import ConfigError, function
from boki.faces import Signature, Use


class Settings(msgspec.Struct):
    word: str


def _check(signature: Signature) -> None:
    if signature.payload != "str":
        raise ConfigError(f"{signature.where} is called with a word: annotate its payload with str")


def once(word, **options):
    return function(use=Use(library="once", decorator="@once", settings=Settings(word), check=_check), **options)
''',
    "once/face.py": '''"""The face."""

from boki.faces import Face, GatewayPart


def _at_gateway(gateway):
    from once.driver import Driver

    return GatewayPart(driver=Driver(gateway))


FACE = Face(library="once", at_gateway=_at_gateway)
''',
    "once/driver.py": '''"""The driver."""

import asyncio
import os

from boki import BokiError
from boki.protocol.calls import Call, Payload


class Driver:
    def __init__(self, gateway):
        self._gateway = gateway
        self._called = set()

    def start(self):
        self._task = asyncio.get_running_loop().create_task(self._look())

    def stop(self):
        self._task.cancel()

    async def finish(self):
        await asyncio.wait([self._task])
        await self._gateway.own_session().logbook("shop").append(b"finished", tags=["end"])

    async def _look(self):
        while True:
            for name, info in self._gateway.functions.items():
                settings = info.settings_of("once")
                if settings is not None and name not in self._called:
                    payload = Payload("text", settings["word"].encode())
                    try:
                        await self._gateway.run(Call(os.urandom(16).hex(), name, payload, "shop", 10_000_000))
                    except BokiError:
                        continue  # no engine is there yet
                    self._called.add(name)
            await asyncio.sleep(0.01)
''',
}
FUNCTIONS = '''"""Called by the library, and refused by it."""
from once import once


@once("hello")
async def say(ctx, word: str) -> None:
    await ctx.logbook.append(word.encode(), tags=["said"])
'''
REFUSED = '''"""A function that the library could never call."""
from once import once


@once("hello")
async def count(ctx, number: int) -> None: ...
'''


def test_a_library_calls_the_functions_that_its_decorator_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings come from the worker to the driver. It may append while the gateway drains, and its error about a
    function names the line.
    """
    for name, text in LIBRARY.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    add_entry_point(tmp_path / "site", "once", "once.face:FACE")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions/app.py").write_text(FUNCTIONS)
    (tmp_path / "functions/bad.py").write_text(REFUSED)
    config = DevConfig(data=tmp_path / "data", functions=tmp_path / "functions", port=0, reload=False)
    with Child(config).start() as child:
        with BlockingClient(child.url) as client:
            said = client.logbook("shop").read_next("said", wait_s=30)
            assert said is not None
            assert said.data == b"hello"
            errors = {module["module"]: module["error"] for module in client.status()["modules"]}
            assert errors["app"] is None
            assert "count (" in errors["bad"]
            assert errors["bad"].endswith("is called with a word: annotate its payload with str")
        child.stop()
        child.start()
        with BlockingClient(child.url) as client:
            assert client.logbook("shop").read_next("end", wait_s=30) is not None
