"""A log that refuses for a moment is no failure of the workflow: it tries again."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import boki.testing
from boki import LogBook, Unavailable
from boki.libs.bokiflow import flow, workflow
from boki.libs.bokiflow.records import Answered, inbox_tag, journal_tag, note_of
from boki.libs.bokiflow.replaying import read_history

Refuses = Callable[[str, Callable[..., bool]], list[str]]


@workflow
async def account() -> int:
    """Adds up what updates bring."""
    total = 0

    async def deposit(cents: int) -> int:
        nonlocal total
        total += cents
        return total

    flow.on_update("deposit", deposit)
    await flow.receive("close")
    return total


@workflow
async def counting(number: int) -> int:
    """Continues as new until it has come to three."""
    await flow.receive("next")
    return number if number == 3 else flow.continue_as_new(number + 1)


@pytest.fixture(name="refuses_once")
def fixture_refuses_once(monkeypatch: pytest.MonkeyPatch) -> Refuses:
    """Let a method of LogBooks refuse the first request that is meant; the list says that it has."""

    def refuse(method: str, is_meant: Callable[..., bool]) -> list[str]:
        refused: list[str] = []
        real: Callable[..., Awaitable[Any]] = getattr(LogBook, method)

        async def once(self: LogBook, *args: Any, **kwargs: Any) -> Any:
            if not refused and is_meant(*args, **kwargs):
                refused.append(method)
                raise Unavailable("no quorum for a moment", retryable=True)
            return await real(self, *args, **kwargs)

        monkeypatch.setattr(LogBook, method, once)
        return refused

    return refuse


async def test_the_answer_to_an_update_is_sent_again(boki_context: boki.testing.Context, refuses_once: Refuses) -> None:
    """Its key makes a repetition harmless."""
    refused = refuses_once("append", lambda data, *_args, **_kwargs: isinstance(note_of(data), Answered))
    handle = await account.start(boki_context, id="a")
    assert await handle.update("deposit", 5) == 5
    assert refused
    await handle.signal("close")
    assert await handle.result() == 5


async def test_a_continuation_trims_again(boki_context: boki.testing.Context, refuses_once: Refuses) -> None:
    """What is trimmed twice is as if it were once."""
    handle = await counting.start(boki_context, 1, id="c")
    refused = refuses_once("trim", lambda *_args, **kwargs: journal_tag("") in str(kwargs.get("tag")))
    for _ in range(3):
        await handle.signal("next")
    assert await handle.result() == 3
    assert refused


async def test_a_journal_is_read_again(boki_context: boki.testing.Context, refuses_once: Refuses) -> None:
    """A run that begins again does not fail because one page of its journal was refused."""
    refused = refuses_once("read", lambda tag, **_kwargs: tag == journal_tag("run"))
    history = await read_history(boki_context.logbook, journal_tag("run"))
    assert refused
    assert history.place == 0


async def test_an_inbox_is_read_again(boki_context: boki.testing.Context, refuses_once: Refuses) -> None:
    """A workflow that is woken reads its messages first, and does not end because that was refused once."""
    handle = await counting.start(boki_context, 3, id="c")
    await boki_context.clock.advance(10)
    assert (await handle.status()).status == "suspended"
    refused = refuses_once("read", lambda tag, **_kwargs: tag == inbox_tag(handle.invocation_id))
    await handle.signal("next")
    assert await handle.result() == 3
    assert refused


async def test_a_replay_reads_its_inbox_again(boki_context: boki.testing.Context, refuses_once: Refuses) -> None:
    """So does one that answers a query in another process."""

    @workflow
    async def asked() -> None:
        flow.on_query("state", lambda _: "waits")
        await flow.receive("close")

    handle = await asked.start(boki_context, id="q")
    await boki_context.clock.advance(10)
    refused = refuses_once("read", lambda tag, **_kwargs: tag == inbox_tag(handle.invocation_id))
    assert await handle.query("state") == "waits"
    assert refused


async def test_a_workflow_is_paused_all_the_same(boki_context: boki.testing.Context, refuses_once: Refuses) -> None:
    """One that diverges asks for the end of its inbox, from where on messages wake it."""
    names = ["close"]

    @workflow
    async def changes() -> str:
        if names == ["close"]:
            await flow.sleep(60)
        return str(await flow.receive("close"))

    handle = await changes.start(boki_context, id="d")
    await boki_context.clock.advance(100)
    names.append("changed")
    refused = refuses_once("check_tail", lambda tag=None, **_kwargs: tag == inbox_tag(handle.invocation_id))
    await handle.signal("close", "well")
    while (state := await handle.status()).status != "paused":
        assert not state.failure
    assert state.note.startswith("paused: workflow changes diverged")
    assert refused
    names.pop()
    await handle.resume()
    assert await handle.result() == "well"
