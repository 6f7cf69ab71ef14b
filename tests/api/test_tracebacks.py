"""What is left of a traceback for the author of a function."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import boki.testing
from boki import Context, Response
from boki.api.failures import failure_of
from boki.api.tracebacks import MAX_TEXT_CHARS, traceback_text
from boki.errors import BokiError


async def appends_text(ctx: Context) -> None:
    """Raises deep inside of Boki."""
    await ctx.logbook.append("text")  # type: ignore[arg-type]


async def raised_by(work: object) -> BaseException:
    async with boki.testing.context() as ctx:
        with pytest.raises(BaseException) as caught:
            await work(ctx)  # type: ignore[operator]
    return caught.value


def frames_of(text: str) -> list[str]:
    return [line.rpartition(" in ")[2] for line in text.splitlines() if line.startswith('  File "')]


def test_frames_of_boki_are_left_out() -> None:
    """The user's own lines stay, with their source (found.md, D)."""
    error = asyncio.run(raised_by(appends_text))
    text = traceback_text(error)
    assert frames_of(text) == ["raised_by", "appends_text"]
    assert 'await ctx.logbook.append("text")' in text
    assert text.splitlines()[-1].startswith("boki.errors.WrongType: data must be bytes")
    assert failure_of("f", error, with_traceback=True).details["traceback"] == text


def test_frames_that_dataclasses_generate_are_left_out() -> None:
    """`__init__` of `Response` has no file: it says nothing."""

    async def answers(ctx: Context) -> None:
        Response(status=99)

    text = traceback_text(asyncio.run(raised_by(answers)))
    assert frames_of(text) == ["raised_by", "answers"]


def test_causes_contexts_and_groups_are_cleaned_too() -> None:
    """Each part of a chain is a traceback of its own."""

    async def wraps(ctx: Context) -> None:
        try:
            await appends_text(ctx)
        except BokiError as error:
            raise RuntimeError("wrapped") from error

    async def groups(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(appends_text(ctx))

    wrapped = traceback_text(asyncio.run(raised_by(wraps)))
    assert frames_of(wrapped) == ["wraps", "appends_text", "raised_by", "wraps"]
    grouped = traceback_text(asyncio.run(raised_by(groups)))
    assert "ExceptionGroup" in grouped
    assert "logbook.py" not in grouped
    assert "appends_text" in grouped


def test_a_deployed_file_has_the_name_that_its_author_knows(tmp_path: Path) -> None:
    """Not that of the folder where an engine keeps the version; the source line is there all the same."""
    file = tmp_path / "bundles" / ("0f" * 32) / "work.py"
    file.parent.mkdir(parents=True)
    file.write_text("def boom():\n    raise KeyError('xx')\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    with pytest.raises(KeyError) as caught:
        names["boom"]()
    assert "  File \"work.py\", line 2, in boom\n    raise KeyError('xx')\n" in traceback_text(caught.value)


def test_a_long_text_is_cut_in_the_middle() -> None:
    """It says how much is missing, and both ends are there."""
    text = traceback_text(ValueError("x" * 10 * MAX_TEXT_CHARS + "end"))
    assert len(text) < MAX_TEXT_CHARS + 100
    assert text.startswith("ValueError: xxx")
    assert "characters left out" in text
    assert text.endswith("xend")
