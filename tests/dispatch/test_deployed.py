"""What is deployed runs: an engine follows the book of versions, with real workers and a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from boki.books.calls.runs import is_refusal
from boki.books.functions.bundle import File, pack_files
from boki.books.functions.version_book import VersionBook
from boki.books.functions.versions import Deployed
from boki.dispatch.server import deployed as deployed_functions
from boki.dispatch.server.deployed import DeployedFunctions
from boki.errors import ConfigError, CorruptData, InvalidArgument, NoSuchFunction, Unavailable
from boki.log.limits import DEFAULT_LIMITS
from boki.protocol.call_messages import ActivateBundle
from boki.protocol.calls import PINNED, ChosenId, Outcome, Payload
from boki.retry import Backoff
from tests.books.calls.call_world import FaultyPort, WatchedLog, a_call, failing
from tests.engine.host import HEAD, TIMEOUT_S, Gate, Host, drive

SAYS = """
@function
async def says(ctx: Context) -> str:
    return "{}"
"""
WAITS = """
@function
async def waits(ctx: Context, gate: str) -> str:
    await asyncio.to_thread(wait_at, gate)
    from _late import VALUE  # read when it runs: from the folder of the version that it began with
    return "{} " + VALUE
"""


def bundle(**modules: str) -> bytes:
    return pack_files([File(f"{name}.py", (HEAD + text).encode()) for name, text in modules.items()])


class Watched(DeployedFunctions):
    """Lets a test wait for what runs."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.tried = asyncio.Event()
        self.tries: list[int] = []

    async def _try_to_run(self, version: Deployed) -> bool:
        runs = await super()._try_to_run(version)
        self.tries.append(version.number)
        self.tried.set()
        return runs

    async def until(self, number: int, *, runs: bool = True) -> None:
        """Return once that version runs, or has been tried."""
        async with asyncio.timeout(TIMEOUT_S):
            while self.number != number if runs else number not in self.tries:
                self.tried.clear()
                await self.tried.wait()


class System:
    """An engine's functions, and the log that says which."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "bundles"
        self.log = WatchedLog(DEFAULT_LIMITS)
        self.host = Host(tmp_path / "functions")
        self.deployed = Watched(FaultyPort(self.log), self.host, self.folder)
        self.book = VersionBook(FaultyPort(self.log))
        self._requests = 0

    async def deploy(self, content: bytes, *, is_forced: bool = False) -> int:
        uploaded = await self.book.upload(content)
        return await self.activate(uploaded, is_forced=is_forced)

    async def activate(self, uploaded: Deployed, *, is_forced: bool = False) -> int:
        self._requests += 1
        asked = ActivateBundle(
            self._requests,
            {},
            60_000_000,
            uploaded.bundle_hash,
            uploaded.size_bytes,
            uploaded.upload,
            uploaded.first_seqnum,
            is_forced,
        )
        return (await self.deployed.activate(asked)).number


@asynccontextmanager
async def system(tmp_path: Path) -> AsyncIterator[System]:
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "app.py").write_text(HEAD + SAYS.format("folder"))
    made = System(tmp_path)
    try:
        await made.host.start()
        await made.deployed.start()
        yield made
    finally:
        await made.deployed.stop()
        await made.host.stop(0)


def test_the_folder_is_used_until_something_is_deployed(tmp_path: Path) -> None:
    """Then exactly what is deployed can be called, and the folder counts no more."""

    async def test() -> None:
        async with system(tmp_path) as made:
            assert await made.host.result("says") == "folder"
            assert await made.deploy(bundle(other=SAYS.format("one").replace("says", "tells"))) == 1
            await made.deployed.until(1)
            assert await made.host.result("tells") == "one"
            assert (await made.host.failure("says")).code == "no_such_function"
            assert set(made.host.functions) == {"tells"}

    drive(test())


def test_calls_in_flight_finish_on_the_version_that_they_began_with(tmp_path: Path) -> None:
    """Also what they import late, and also when the switch is back to an older one; new calls run the new one."""

    async def test() -> None:
        async with system(tmp_path) as made:
            with Gate(tmp_path / "first") as first, Gate(tmp_path / "second") as second:
                for number, text in ((1, "one"), (2, "two")):
                    await made.deploy(bundle(app=WAITS.format(text) + SAYS.format(text), _late=f"VALUE = '{text}'\n"))
                    await made.deployed.until(number)
                    gate = (first, second)[number - 1]
                    flying = made.host.begin("waits", gate.path)
                    await gate.arrived()
                    if number == 1:
                        old = flying
                assert await made.host.result("says") == "two"
                await made.book.use("previous")
                await made.deployed.until(1)
                assert await made.host.result("says") == "one"
                first.open()
                second.open()
                for call, text in ((old, "one"), (flying, "two")):
                    outcome = await call
                    assert outcome.result is not None, outcome.failure
                    assert outcome.result.data == f"{text} {text}".encode()
            await made.host.until(lambda: len([pool for pool in made.host.stats() if pool.workers]) == 1)

    drive(test())


def test_a_function_may_move_to_another_module(tmp_path: Path) -> None:
    """To one of an earlier name as well as of a later one: nobody refuses it as registered twice."""

    async def test() -> None:
        async with system(tmp_path) as made:
            for number, module in enumerate(("m", "a", "z"), 1):
                await made.deploy(bundle(**{module: SAYS.format(module)}))
                await made.deployed.until(number)
                assert await made.host.result("says") == module
                assert [(info.module, info.error) for info in made.host.modules] == [(module, "")]

    drive(test())


def test_a_bundle_with_a_broken_module_is_refused_with_its_place(tmp_path: Path) -> None:
    """Before anything changes; with force the module is there as broken, and its old functions are not."""

    async def test() -> None:
        async with system(tmp_path) as made:
            await made.deploy(bundle(app=SAYS.format("good"), more=SAYS.replace("says", "more").format("more")))
            await made.deployed.until(1)
            broken = bundle(app=SAYS.format("new"), more="\nimport no_such_module\n")
            with pytest.raises(InvalidArgument, match=r"\n  more\.py:\d+: ModuleNotFoundError"):
                await made.deploy(broken)
            with pytest.raises(InvalidArgument, match="registered by"):
                await made.deploy(bundle(app=SAYS.format("x"), b=SAYS.format("y")))
            assert await made.host.result("says") == "good"
            assert await made.deploy(broken, is_forced=True) == 2
            await made.deployed.until(2)
            assert await made.host.result("says") == "new"
            assert "no_such_module" in (await made.host.failure("more")).message

    drive(test())


def test_a_bundle_without_any_function_is_refused(tmp_path: Path) -> None:
    """It would take all functions away, and most often it is the wrong folder; with force it is what was meant."""

    async def test() -> None:
        async with system(tmp_path) as made:
            await made.deploy(bundle(app=SAYS.format("good")))
            await made.deployed.until(1)
            with pytest.raises(InvalidArgument, match="registers a function"):
                await made.deploy(bundle(app="x = 1"))
            assert await made.host.result("says") == "good"
            assert await made.deploy(bundle(app="x = 1"), is_forced=True) == 2

    drive(test())


def test_an_activation_that_is_repeated_makes_one_version(tmp_path: Path) -> None:
    """A gateway that has lost the answer asks again."""

    async def test() -> None:
        async with system(tmp_path) as made:
            uploaded = await made.book.upload(bundle(app=SAYS.format("one")))
            assert [await made.activate(uploaded) for _ in range(3)] == [1, 1, 1]

    drive(test())


def test_a_later_start_runs_what_is_deployed_whatever_lies_in_its_folder(tmp_path: Path) -> None:
    """What an earlier life has unpacked may be half written: it is never trusted."""

    async def test() -> None:
        async with system(tmp_path) as made:
            await made.deploy(bundle(app=SAYS.format("one")))
            await made.deployed.until(1)
            await made.deployed.stop()
            (folder,) = made.folder.iterdir()
            (folder / "app.py").write_text("damaged(")
            made.deployed = Watched(FaultyPort(made.log), made.host, made.folder)
            await made.deployed.start()
            assert made.deployed.number == 1
            assert await made.host.result("says") == "one"

    drive(test())


@pytest.mark.parametrize("name", ["../../etc", "", "x" * 64, "0" * 63, "/"])
def test_a_hash_that_is_none_is_never_used_as_a_path(tmp_path: Path, name: str) -> None:
    """Whoever sends it."""

    async def test() -> None:
        async with system(tmp_path) as made:
            with pytest.raises(CorruptData, match="no hash"):
                await made.activate(Deployed(0, name, 1, "bundle:x", 1))
            assert await made.host.result("says") == "folder"

    drive(test())


def test_a_bundle_that_cannot_be_run_leaves_the_old_one_running(tmp_path: Path) -> None:
    """Its pieces are not those of its hash: it is tried again, until something else is deployed."""

    async def test() -> None:
        async with system(tmp_path) as made:
            await made.deploy(bundle(app=SAYS.format("one")))
            await made.deployed.until(1)
            uploaded = await made.book.upload(bundle(app=SAYS.format("two")))
            wrong: Any = Deployed(0, "0" * 64, 1, uploaded.upload, uploaded.first_seqnum)
            assert (await made.book.activate(wrong)).number == 2
            await made.deployed.until(2, runs=False)
            assert await made.host.result("says") == "one"
            await made.deploy(bundle(app=SAYS.format("three")))
            await made.deployed.until(3)
            assert await made.host.result("says") == "three"

    drive(test())


def test_what_could_not_be_loaded_at_a_start_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import may have taken too long on a busy machine. Until then logged calls of it are refused for now."""
    monkeypatch.setattr(deployed_functions, "_AGAIN", Backoff(first_s=0.05, longest_s=0.05, jitter=0.0))
    obstacle = tmp_path / "obstacle"
    frail = f"from pathlib import Path\nassert not Path({str(obstacle)!r}).exists()\n"
    waits = frail + WAITS.format("late")

    async def test() -> None:
        async with system(tmp_path) as made:
            await made.deploy(bundle(app=SAYS.format("one"), other=waits, _late="VALUE = ''"))
            await made.deployed.until(1)
        obstacle.touch()
        host = Host(None)
        deployed = Watched(FaultyPort(made.log), host, made.folder)
        try:
            await host.start()
            await deployed.start()
            assert (deployed.number, set(host.functions)) == (1, {"says"})
            with pytest.raises(Unavailable) as refused:
                await deployed.run(a_call(1, "waits"))
            assert is_refusal(failing(refused.value))
            number = host.functions_number
            await host.until(lambda: host.retries > 2)
            assert (set(host.functions), host.functions_number) == ({"says"}, number), "nothing is news"
            obstacle.unlink()
            await host.until(lambda: "waits" in host.functions)
            assert await host.result("says") == "one"
        finally:
            await deployed.stop()
            await host.stop(0)

    drive(test())


def test_a_retry_that_fails_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as by a folder that cannot be read now: what runs is left alone, and deployments are followed still."""
    monkeypatch.setattr(deployed_functions, "_AGAIN", Backoff(first_s=0.01, longest_s=0.01, jitter=0.0))

    async def test() -> None:
        async with system(tmp_path) as made:
            broken = bundle(app=SAYS.format("one"), other="import here_today\n" + WAITS.format("never"))
            uploaded = await made.book.upload(broken)
            await made.book.activate(msgspec.structs.replace(uploaded, functions=("says", "waits")))
            await made.deployed.until(1)
            monkeypatch.setattr(made.host, "fails", ConfigError("the functions folder cannot be read: EMFILE"))
            before = made.host.retries
            await made.host.until(lambda: made.host.retries > before + 2)
            with pytest.raises(Unavailable):
                await made.deployed.run(a_call(1, "waits"))
            nobodys = await made.deployed.run(a_call(2, "nobodys"))
            assert nobodys.failure is not None and nobodys.failure.code == "no_such_function", "the version has none"
            assert await made.host.result("says") == "one"
            await made.deploy(bundle(app=SAYS.format("two")))
            await made.deployed.until(2)
            assert await made.host.result("says") == "two"

    drive(test())


def test_an_engine_may_start_without_what_is_deployed(tmp_path: Path) -> None:
    """Nothing of it is run until a version is chosen or deployed: the way back from one that harms its engines."""

    async def test() -> None:
        async with system(tmp_path) as made:
            for number, text in ((1, "one"), (2, "two")):
                await made.deploy(bundle(app=SAYS.format(text)))
                await made.deployed.until(number)
        host = Host(None)
        deployed = Watched(FaultyPort(made.log), host, made.folder, runs_at_start=False)
        try:
            await host.start()
            await deployed.start()
            assert (deployed.number, deployed.tries, host.functions) == (0, [], {})
            assert (deployed.is_held_back, made.deployed.is_held_back) == (True, False)
            await made.book.use("2")
            await deployed.until(2)
            assert not deployed.is_held_back
            assert await host.result("says") == "two", "also the one that is active"
            await made.book.use("1")
            await deployed.until(1)
            assert await host.result("says") == "one"
            assert deployed.tries == [2, 1]
        finally:
            await deployed.stop()
            await host.stop(0)

    drive(test())


def test_a_logged_call_waits_for_the_version_that_has_its_function(tmp_path: Path) -> None:
    """While another version is still to run, what is unknown is refused for now, so that the call runs later."""

    async def test() -> None:
        async with system(tmp_path) as made:
            await made.deploy(bundle(app=SAYS.format("one")))
            await made.deployed.until(1)
            assert (await made.deployed.run(a_call(1, "nobody"))) == failing(
                NoSuchFunction("no function is registered under 'nobody'", function="nobody")
            )
        host = Host(None)
        deployed = Watched(FaultyPort(made.log), host, made.folder, runs_at_start=False)
        try:
            await host.start()
            await deployed.start()
            with pytest.raises(Unavailable) as refused:
                await deployed.run(host.call_of("says"))
            assert is_refusal(failing(refused.value))
            await made.book.use("1")
            await deployed.until(1)
            assert (await deployed.run(host.call_of("says"))).result == Payload("text", b"one")
        finally:
            await deployed.stop()
            await host.stop(0)

    drive(test())


def test_a_pinned_call_runs_with_its_version(tmp_path: Path) -> None:
    """In processes of its own, also when that version has left the engine, and another engine never had it. A version
    that is not kept, or not as it was, gives way to the one that runs.
    """

    async def test() -> None:
        async with system(tmp_path) as made:
            for number, text in ((1, "one"), (2, "two")):
                await made.deploy(bundle(app=SAYS.format(text)))
                await made.deployed.until(number)
            uploaded = await made.book.upload(bundle(app=SAYS.format("three")))
            await made.book.activate(msgspec.structs.replace(uploaded, bundle_hash="0" * 64, functions=("says",)))
        host = Host(None)
        deployed = Watched(FaultyPort(made.log), host, made.folder, make_host=lambda: Host(None))
        try:
            await host.start()
            await deployed.start()

            async def said(version: int) -> Outcome:
                chosen = ChosenId("start", attributes={PINNED: version})
                return await deployed.run(msgspec.structs.replace(host.call_of("says"), chosen=chosen))

            found = await asyncio.gather(*map(said, (1, 2, 1, 7, 3)))
            words = [outcome.result and outcome.result.data for outcome in found]
            assert words == [b"one", b"two", b"one", b"two", b"two"]
            assert (deployed.number, set(host.functions)) == (2, {"says"})
        finally:
            await deployed.stop()
            await host.stop(0)

    drive(test())


def test_a_pinned_call_waits_until_its_version_can_be_loaded(tmp_path: Path) -> None:
    """It was accepted, so it does not fail permanently because an import failed on this machine."""
    obstacle = tmp_path / "obstacle"
    frail = f"from pathlib import Path\nassert not Path({str(obstacle)!r}).exists()\n"

    async def test() -> None:
        async with system(tmp_path) as made:
            await made.deploy(bundle(app=frail + SAYS.format("one"), other=WAITS.format("late")))
            await made.deployed.until(1)
            await made.deploy(bundle(app=SAYS.format("two")))
            await made.deployed.until(2)
        obstacle.touch()
        host = Host(None)
        deployed = Watched(FaultyPort(made.log), host, made.folder, make_host=lambda: Host(None))
        try:
            await host.start()
            await deployed.start()
            pinned = msgspec.structs.replace(host.call_of("says"), chosen=ChosenId("start", attributes={PINNED: 1}))
            for _ in range(2):
                with pytest.raises(Unavailable) as refused:
                    await deployed.run(pinned)
                assert is_refusal(failing(refused.value))
            obstacle.unlink()
            assert (await deployed.run(pinned)).result == Payload("text", b"one")
        finally:
            await deployed.stop()
            await host.stop(0)

    drive(test())


@pytest.mark.parametrize("harm", ["not a module here", "its bundle is gone"])
def test_a_start_falls_back_to_the_previous_version(tmp_path: Path, harm: str) -> None:
    """If the one that is deployed cannot be run here: none of its modules loads, or there is no bundle."""

    async def test() -> None:
        async with system(tmp_path) as made:
            await made.deploy(bundle(app=SAYS.format("one")))
            await made.deployed.until(1)
            content = bundle(app=SAYS.format("two") + "\nimport here_today\n")
            uploaded = await made.book.upload(content)
            if harm == "its bundle is gone":
                uploaded = msgspec.structs.replace(uploaded, upload="bundle:none")
            await made.book.activate(msgspec.structs.replace(uploaded, functions=("says",)))
            await made.deployed.stop()
            host = Host(None)
            deployed = Watched(FaultyPort(made.log), host, made.folder)
            try:
                await host.start()
                await deployed.start()
                assert deployed.number == 1
                assert await host.result("says") == "one"
            finally:
                await deployed.stop()
                await host.stop(0)

    drive(test())
